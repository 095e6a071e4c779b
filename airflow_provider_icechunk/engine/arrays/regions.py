"""Regions of arrays: named dimensions, boxes, and how they become tasks. Pure.

Regions follow the chunk grid: two tasks never share a chunk, which is what makes parallel writes
safe without any lock. With shards, pass the shard shape as `chunks`: a shard is written as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, TypeVar

import zarr

from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError, Kind

Span = tuple[int, int]
"""From the first index up to but not including the second."""
Region = tuple[Span, ...]
"""One span for each dimension."""
_TASK_BYTES = 128 << 20
_MOST_TASKS = 100_000


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


def plan_parts(size: int, cores: int) -> int:
    """The number of tasks for `size` bytes: 128 MiB each, and at least two per core."""
    return max(1, min(_MOST_TASKS, max(-(-size // _TASK_BYTES), 2 * cores)))


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


def show(region: Region) -> str:
    """A region as Python writes an index."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in region) + "]"


def check_complete(planned: int, returned: Iterable[int]) -> None:
    """Refuse results unless every planned task returned exactly once."""
    counts = Counter(returned)
    missing = [number for number in range(planned) if not counts[number]]
    surplus = [number for number, count in counts.items() if count > 1 or not 0 <= number < planned]
    if missing or surplus:
        raise FragmentError(
            f"of {planned} planned tasks {len(missing)} did not return (first: {missing[:5]}) and "
            f"{len(surplus)} returned twice or unexpectedly (first: {surplus[:5]}); nothing is "
            "passed on. Run the job again",
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


DimensionKey = str | int
"""The name of a dimension, or its number; the number may be text, as in the keys of JSON."""
Part = int | tuple[int, int] | slice
"""A position, or from the first up to but not including the second."""
Parts = Mapping[str, Part] | Mapping[int, Part] | Mapping[DimensionKey, Part]
"""Selected ranges by dimension; the others are selected in full."""
Chosen = TypeVar("Chosen")


def dimension_names(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of the dimensions; `dim_0`, `dim_1`... if the array has none."""
    given = getattr(array.metadata, "dimension_names", None) or (None,) * array.ndim
    return tuple(name or f"dim_{axis}" for axis, name in enumerate(given))


def axis_of(key: object, names: Sequence[str], where: str) -> int:
    """The number of the dimension that a key means; a name takes precedence over a number in text.
    :param where: the array, for error messages.
    """
    if isinstance(key, str) and names.count(key) == 1:
        return names.index(key)
    if isinstance(key, str) and key.isascii() and key.isdigit() and key not in names:
        key = int(key)
    number = None if isinstance(key, bool | str) else _whole(key)
    if number is None or not 0 <= number < len(names):
        several = "more than one dimension" if key in names else "no dimension"
        raise InvalidInputError(
            f"{where} has {several} {key!r}; it has {_listed(names)}: name one of them, or give "
            "its number"
        )
    return number


def by_axis(chosen: Mapping[Any, Chosen], names: Sequence[str], where: str) -> dict[int, Chosen]:
    """The selection by number of dimension; refuses a dimension that is named twice."""
    if not isinstance(chosen, Mapping):
        raise InvalidInputError(
            f"{chosen!r} is not a selection of {where}: give a mapping from dimensions, by name or "
            "number, to ranges"
        )
    found: dict[int, Chosen] = {}
    for key, value in chosen.items():
        axis = axis_of(key, names, where)
        if axis in found:
            raise InvalidInputError(f"dimension {names[axis]!r} of {where} is selected twice")
        found[axis] = value
    return found


def by_name(
    chosen: Mapping[Any, Chosen], arrays: Sequence[tuple[str, Sequence[str]]]
) -> dict[str, Chosen]:
    """The selection of several arrays together, by name of dimension.

    A number is refused if it means different dimensions in them.

    :param arrays: their paths and the names of their dimensions.
    """
    dims = list(dict.fromkeys(name for _, names in arrays for name in names))
    where = " and ".join(repr(path) for path, _ in arrays)
    found = {dims[axis]: part for axis, part in by_axis(chosen, dims, where).items()}
    for key in chosen:
        axis = None if key in dims else axis_of(key, dims, where)
        meant = {names[axis] for _, names in arrays if axis is not None and axis < len(names)}
        if axis is not None and meant != {dims[axis]}:
            raise InvalidInputError(
                f"dimension {key!r} is not the same one in {where}: name one of {_listed(dims)}"
            )
    return found


def span_of(part: object, name: str, length: int) -> Span:
    """The positions of a range of a dimension; refuses any outside it."""
    ends: tuple[object, ...]
    if isinstance(part, slice) and part.step in (None, 1):
        ends = (0 if part.start is None else part.start, length if part.stop is None else part.stop)
    elif isinstance(part, tuple | list):
        ends = tuple(part)
    else:
        ends = (part, None if (first := _whole(part)) is None else first + 1)
    whole = [_whole(end) for end in ends]
    if len(whole) != 2 or whole[0] is None or whole[1] is None:
        raise InvalidInputError(
            f"{part!r} is not a range of dimension {name!r}: give a position, or (first, one after "
            "the last)"
        )
    start, stop = whole[0], whole[1]
    if not 0 <= start <= stop <= length:
        raise InvalidInputError(
            f"positions {start} to {stop} are outside dimension {name!r} of length {length}"
        )
    return start, stop


def _whole(value: object) -> int | None:
    """An integer of Python or NumPy; True is not one."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _listed(names: Sequence[str]) -> str:
    return "no dimensions" if not names else f"the dimensions {', '.join(map(repr, names))}"
