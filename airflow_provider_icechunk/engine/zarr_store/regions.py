"""Which part of an array each task writes. Pure.

Regions follow the chunk grid: two tasks never share a chunk, which is what makes parallel writes
safe without any lock. With shards, pass the shard shape as `chunks`: a shard is written as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError, Kind

Span = tuple[int, int]
"""From the first index up to, not including, the second."""
Region = tuple[Span, ...]
"""One span for each dimension."""


def plan_regions(shape: Sequence[int], chunks: Sequence[int], parts: int) -> list[Region]:
    """At most `parts` regions of whole chunks that cover the array, each cell once.

    The leading dimensions are cut first, so that a region is contiguous in the usual layout. An
    array without cells has no regions; one without dimensions has one.
    """
    if len(shape) != len(chunks):
        raise InvalidInputError(f"shape {tuple(shape)} and chunks {tuple(chunks)} differ in rank")
    if parts < 1 or any(chunk < 1 for chunk in chunks) or any(length < 0 for length in shape):
        raise InvalidInputError("parts and chunk lengths are at least 1, lengths at least 0")
    regions: list[tuple[Region, int]] = [((), parts)]
    for length, chunk in zip(shape, chunks, strict=True):
        regions = [
            ((*region, span), share)
            for region, budget in regions
            for span, share in _cut(length, chunk, budget)
        ]
    return [region for region, _ in regions]


def plan_parts(size: int, cores: int, *, target: int = 128 << 20, most: int = 100_000) -> int:
    """How many tasks `size` bytes of values are worth: of `target` bytes, two for each core."""
    return max(1, min(most, max(-(-size // target), 2 * cores)))


def plan_box(box: Region, chunks: Sequence[int], parts: int) -> list[Region]:
    """Like `plan_regions` for a part of an array: cut at chunk borders, and clipped to the box."""
    starts = [start // chunk * chunk for (start, _), chunk in zip(box, chunks, strict=True)]
    sizes = [
        stop - first if stop > start else 0
        for (start, stop), first in zip(box, starts, strict=True)
    ]
    return [
        tuple(
            (max(low + first, start), high + first)
            for (low, high), first, (start, _) in zip(region, starts, box, strict=True)
        )
        for region in plan_regions(sizes, chunks, parts)
    ]


def extent(region: Region) -> tuple[int, ...]:
    """The shape of a region."""
    return tuple(stop - start for start, stop in region)


def slices(region: Region) -> tuple[slice, ...]:
    """A region as an index for NumPy and Zarr."""
    return tuple(slice(start, stop) for start, stop in region)


def check_complete(planned: int, returned: Iterable[int]) -> None:
    """Refuse results unless every one of the planned tasks came back exactly once."""
    counts = Counter(returned)
    missing = [number for number in range(planned) if not counts[number]]
    surplus = [number for number, count in counts.items() if count > 1 or not 0 <= number < planned]
    if missing or surplus:
        raise FragmentError(
            f"of {planned} planned tasks {len(missing)} did not come back (first: {missing[:5]}) "
            f"and {len(surplus)} came back twice or unasked (first: {surplus[:5]}); nothing is "
            "handed over. Run the job again",
            kind=Kind.FRAGMENT_MISMATCH,
        )


def _cut(length: int, chunk: int, budget: int) -> list[tuple[Span, int]]:
    """Spans of whole chunks along one dimension, and the parts left for the next ones."""
    count = -(-length // chunk)
    pieces = min(count, budget)
    spans = []
    for piece in range(pieces):
        first, last = count * piece // pieces, count * (piece + 1) // pieces
        share = budget * (piece + 1) // pieces - budget * piece // pieces
        spans.append(((first * chunk, min(last * chunk, length)), share))
    return spans
