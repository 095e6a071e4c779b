"""Vectors of tables inside many tables, such as the references of all arrays of a manifest.

A file of a few kilobytes may have tens of thousands of arrays with one chunk each. Array operations
are done once for all of them, not once per array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.coordinates import distinct

from .flatbuffers_read import Buffer, batches, gather

Links = tuple[int, int]
"""Position and number of the links of a vector, verified to be inside."""

_LONG = 1024
"""Vectors of at least this length are read separately: joining their columns with others gains
nothing, and their memory prevents a small file from having many."""
_FEW = 2
"""Up to this many vectors, reading one by one is faster than grouping."""
_ROW_MEMORY = 8
"""Memory for finding a table; twice that if vectors are read together."""


def together(
    buffer: Buffer, vectors: Sequence[Links], slot: int, *, most: int
) -> Iterator[tuple[list[int], NDArray[np.int64]]]:
    """Which vectors to read together, and the positions of their tables.

    The first tables of vectors that are read together have the same number of coordinates in
    `slot`, at most `most`. The reader has to check the other tables. Empty vectors are omitted.
    """
    short: list[int] = []
    for row, (_, count) in enumerate(vectors):
        if count >= _LONG:
            yield [row], positions(buffer, [vectors[row]])
        elif count:
            short.append(row)
    if len(short) <= _FEW:
        for row in short:
            yield [row], positions(buffer, [vectors[row]])
    else:
        ranks = _ranks(buffer, np.array([vectors[row][0] for row in short], np.int64), slot, most)
        rows = np.array(short, np.int64)
        for rank in distinct(ranks).tolist():
            same = rows[ranks == rank].tolist()
            yield same, positions(buffer, [vectors[row] for row in same])


def positions(buffer: Buffer, vectors: Sequence[Links]) -> NDArray[np.int64]:
    """Unchecked positions of the tables of vectors, one vector after the other."""
    total = sum(count for _, count in vectors)
    buffer.hold(_ROW_MEMORY * total * min(len(vectors), 2))
    if not total:
        return np.zeros(0, np.int64)
    if len(vectors) == 1:
        ((start, count),) = vectors
        links: NDArray[np.uint32] = np.frombuffer(buffer.data, "<u4", count, start)
        return np.arange(start, start + 4 * count, 4, dtype=np.int64) + links
    starts, counts = np.array(vectors, np.int64).T
    ends = np.cumsum(counts)
    at: NDArray[np.int64] = np.repeat(starts - 4 * (ends - counts), counts)
    at += 4 * np.arange(total, dtype=np.int64)
    at += _numbers(buffer, at)
    return at


def increasing(keys: NDArray[np.generic], counts: NDArray[np.int64]) -> bool:
    """Whether keys strictly increase inside each of the vectors of `counts` keys."""
    rises = np.less(keys[:-1], keys[1:])
    if len(counts) > 1:
        ends = np.cumsum(counts)[:-1]
        rises[ends[(ends > 0) & (ends < len(keys))] - 1] = True
    return bool(rises.all())


def _ranks(buffer: Buffer, starts: NDArray[np.int64], slot: int, most: int) -> NDArray[np.int64]:
    """The number of coordinates in the first table of each vector."""
    ranks = np.empty(len(starts), np.int64)
    for batch in batches(buffer, starts + _numbers(buffer, starts)):
        ranks[batch.rows] = batch.lengths(slot)
    if int(ranks.max()) > most:
        buffer.fail(f"chunk coordinates have {ranks.max()} dimensions, more than {most}")
    return ranks


def _numbers(buffer: Buffer, at: NDArray[np.int64]) -> NDArray[np.uint32]:
    return gather(buffer, at, 4).view("<u4").reshape(len(at))
