"""Which small chunks go together into packed chunk files, and which stay. Pure, in columns.

Chunks keep their bytes and their places; only the files change that hold them. So readers notice
nothing, and writers neither: a chunk whose reference changed meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.ids import ChunkId, NodeId
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind, sort_keys


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """What is small, and how large packed files become."""

    small: int = 1 << 20
    """Native chunks below this size move, in bytes."""
    target: int = 64 << 20
    """Size of a packed file."""
    enough: int = 4 << 20
    """A file of which at least this much is in use is left alone."""
    inline_from: int | None = None
    """Chunks in manifests of at least this size move as well; by default none."""

    def __post_init__(self) -> None:
        if self.small < 1 or self.target < self.small or self.enough > self.target:
            raise InvalidInputError(
                "compaction needs 0 < small <= target and enough <= target, in bytes"
            )


@dataclass(frozen=True, slots=True, eq=False)
class ArrayRefs:
    """All references of one array."""

    node_id: NodeId
    path: str
    refs: ChunkRefs


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Chunks of one array that become one file, in the order of the array."""

    node_id: NodeId
    path: str
    refs: ChunkRefs

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return int(self.refs.length.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A group as it was and as it is in its new file."""

    group: Group
    refs: ChunkRefs


def plan_groups(arrays: Sequence[ArrayRefs], rules: CompactionRules) -> list[Group]:
    """The groups that are worth a file of their own."""
    files, used = _usage(arrays)
    return [
        group
        for array in arrays
        for group in _cut(array, _movable(array.refs, files, used, rules), rules.target)
        if _saves_files(group.refs)
    ]


def packed_refs(refs: ChunkRefs, identity: ChunkId) -> ChunkRefs:
    """The same chunks, one after the other in one file."""
    ends = np.cumsum(refs.length, dtype=np.uint64)
    nowhere = np.broadcast_to(np.uint64(0), (len(refs), 2))
    return replace(
        refs,
        kind=np.broadcast_to(np.uint8(RefKind.NATIVE), (len(refs),)),
        chunk_id=np.broadcast_to(np.frombuffer(identity, np.uint8), (len(refs), len(identity))),
        offset=ends - refs.length,
        span=nowhere,
        etag=nowhere,
        modified=np.broadcast_to(np.uint32(0), (len(refs),)),
        heap=b"",
    )


def unchanged(current: ChunkRefs, planned: ChunkRefs) -> NDArray[np.bool_]:
    """Which planned rows are still what the array refers to."""
    if not len(current) or current.ndim != planned.ndim:
        return np.zeros(len(planned), np.bool_)
    now, then = sort_keys(current.index, planned.index)
    place = np.minimum(np.searchsorted(now, then), len(now) - 1)
    found = current.take(place)
    same = np.asarray(now[place] == then)
    same &= (found.kind == planned.kind) & (found.length == planned.length)
    same &= found.offset == planned.offset
    native = planned.kind == RefKind.NATIVE
    if found.chunk_id.shape == planned.chunk_id.shape:
        same &= ~native | (found.chunk_id == planned.chunk_id).all(axis=1)
    else:
        same &= ~native
    for row in np.flatnonzero(same & ~native).tolist():
        same[row] = found[row] == planned[row]
    return same


def file_count(parts: Sequence[ChunkRefs]) -> int:
    """How many chunk files the native references of several arrays name."""
    return len(_usage([ArrayRefs(NodeId(b""), "", refs) for refs in parts])[0])


def _usage(arrays: Sequence[ArrayRefs]) -> tuple[NDArray[np.bytes_], NDArray[np.uint64]]:
    """Chunk files in use, sorted, and how many bytes of each: a pack may hold several arrays."""
    parts = [array.refs.take(array.refs.kind == np.uint8(RefKind.NATIVE)) for array in arrays]
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.zeros(0, "S12"), np.zeros(0, np.uint64)
    ids = np.concatenate([_ids(part.chunk_id) for part in parts])
    lengths = np.concatenate([part.length for part in parts])
    files, inverse = np.unique(ids, return_inverse=True)
    used = np.zeros(len(files), np.uint64)
    np.add.at(used, inverse.reshape(-1), lengths)
    return files, used


def _movable(
    refs: ChunkRefs,
    files: NDArray[np.bytes_],
    used: NDArray[np.uint64],
    rules: CompactionRules,
) -> NDArray[np.bool_]:
    move = (refs.kind == RefKind.NATIVE) & (refs.length < rules.small)
    rows = np.flatnonzero(move)
    if len(rows):
        place = np.searchsorted(files, _ids(refs.chunk_id[rows]))
        move[rows] = used[place] < rules.enough
    if rules.inline_from is not None:
        move |= (refs.kind == RefKind.INLINE) & (refs.length >= rules.inline_from)
    return np.asarray(move)


def _cut(array: ArrayRefs, move: NDArray[np.bool_], target: int) -> list[Group]:
    rows = array.refs.take(move)
    if not len(rows):
        return []
    starts = np.cumsum(rows.length, dtype=np.uint64) - rows.length
    numbers = starts // np.uint64(target)
    borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(rows)]
    return [
        Group(array.node_id, array.path, rows.take(slice(start, stop)))
        for start, stop in pairwise(borders)
    ]


def _saves_files(refs: ChunkRefs) -> bool:
    """Whether moving gains anything: chunks of one file would only get another one."""
    native = refs.kind == RefKind.NATIVE
    if not native.all():
        return len(refs) > 1
    return bool((refs.chunk_id != refs.chunk_id[0]).any())


def _ids(rows: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    width = rows.shape[1]
    return np.ascontiguousarray(rows).view(f"S{width}").reshape(len(rows))
