"""Move the chunks of an array within its grid, without reading or copying any of them.

References are moved as columns. All chunks of the array must have the same shape: on other grids a
chunk fits only its own position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, common_rows
from airflow_provider_icechunk.engine.format.model import Node
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, UnsupportedError

from .tree import WorkingTree

ChunkMapping = Callable[[Iterable[int]], Iterable[int] | None]
"""Maps the position of a chunk to another one; `None` for nowhere."""

_FAR = 1 << 33
"""Farther than any grid reaches."""


def shifted(refs: ChunkRefs, offset: Sequence[int], counts: Sequence[int]) -> ChunkRefs:
    """The edits that move all of `refs` by `offset`: chunks that leave the grid are dropped, and
    positions that nothing moved to are erased. Pure.
    """
    near = np.array([min(max(step, -_FAR), _FAR) for step in offset], np.int64)
    places = refs.index.astype(np.int64) + near
    inside = np.asarray(((places >= 0) & (places < np.array(counts, np.int64))).all(axis=1))
    moved = replace(refs.take(inside), index=places[inside].astype(np.uint32))
    return _erasing(refs.index, moved)


def reindexed(
    refs: ChunkRefs,
    counts: Sequence[int],
    forward: ChunkMapping,
    backward: ChunkMapping | None,
    *,
    path: str,
) -> ChunkRefs:
    """The edits that move each of `refs` to where `forward` says; `None` leaves it where it is.

    With `backward`, positions that nothing moved to are erased if it finds no source chunk. If
    several chunks move to one position, the last one wins.
    """
    rows = refs.index.tolist()
    targets = [_place(forward(row), counts, path) for row in rows]
    going = np.array([target is not None for target in targets], np.bool_)
    places = [target for target in targets if target is not None]
    index = np.array(places, np.uint32).reshape(len(places), refs.ndim)
    moved = ChunkRefs.of(replace(refs.take(going), index=index))
    if backward is None:
        return moved
    left = ~common_rows(refs.index, moved.index)
    sources = [backward(row) for row, alone in zip(rows, left.tolist(), strict=True) if alone]
    found = [source is not None and refs.find_row(tuple(source)) is not None for source in sources]
    stale = refs.index[left][~np.array(found, np.bool_)]
    return ChunkRefs.blank(stale).overlay(moved)


def _erasing(before: NDArray[np.uint32], moved: ChunkRefs) -> ChunkRefs:
    vacated = before[~common_rows(before, moved.index)]
    return ChunkRefs.blank(vacated).overlay(moved)


def _place(
    target: Iterable[int] | None, counts: Sequence[int], path: str
) -> tuple[int, ...] | None:
    if target is None:
        return None
    place = tuple(target)
    whole = all(isinstance(one, int | np.integer) for one in place)
    if (
        not whole
        or len(place) != len(counts)
        or not all(0 <= one < count for one, count in zip(place, counts, strict=True))
    ):
        raise InvalidInputError(
            f"a chunk of {path} cannot be moved to {list(place)}: the grid has {list(counts)} "
            "chunks; resize the array first, or return `None` to leave the chunk where it is",
            kind=Kind.INVALID_KEY,
        )
    return place


def shift_array(tree: WorkingTree, path: str, chunk_offset: Iterable[int]) -> None:
    """Move all chunks of an array by an offset in each dimension."""
    offset = [int(step) for step in chunk_offset]

    def edits(refs: ChunkRefs, counts: Sequence[int]) -> ChunkRefs:
        if len(offset) != len(counts):
            raise InvalidInputError(
                f"{path} has {len(counts)} dimensions, the offset has {len(offset)}"
            )
        return shifted(refs, offset, counts)

    _reindex(tree, path, edits)


def reindex_array(
    tree: WorkingTree, path: str, forward: ChunkMapping, backward: ChunkMapping | None = None
) -> None:
    """Move every chunk of an array to where `forward` says."""
    _reindex(tree, path, lambda refs, counts: reindexed(refs, counts, forward, backward, path=path))


def _reindex(
    tree: WorkingTree, path: str, edits: Callable[[ChunkRefs, Sequence[int]], ChunkRefs]
) -> None:
    with tree.lock:
        tree.check_writable()
        node = tree.array(path)
        counts = _regular_counts(node)
        changed = edits(tree.references(node), counts)
        if len(changed):
            tree.put_references(path, changed)


def _regular_counts(node: Node) -> tuple[int, ...]:
    document = array_document(node)
    if document.chunk_counts is not None:
        raise UnsupportedError(
            f"the chunks of {node.path} cannot be moved: its grid is `rectilinear`, and a chunk of "
            "such a grid fits its own place only"
        )
    return document.num_chunks
