"""Which chunk reference goes into which manifest. Pure.

Only what the edits touch is rewritten. A stored manifest is kept when no edit falls into any split
region it reaches into and it lies inside the array's grid; otherwise its rows are loaded and dealt
out again to the regions. A manifest that spans several regions (made under another configuration)
drags all of them in, so that boxes of one array never overlap.

The grid of chunks is cut at regular places along each dimension; every box of the cut is one
manifest. Boxes are numbered in row-major order, and numbering references is arithmetic on their
index columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Extents, concatenate
from airflow_provider_icechunk.engine.format.config.conditions import (
    ManifestSplittingConfig,
    dimension_matches,
)
from airflow_provider_icechunk.engine.format.coordinates import distinct
from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.model import ManifestRef


@dataclass(frozen=True, slots=True)
class SplitGrid:
    """A regular cut of a grid of chunks into boxes."""

    num_chunks: tuple[int, ...]
    """Chunks along each dimension."""
    sizes: tuple[int, ...]
    """Chunks of a box along each dimension; the last box may have fewer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Boxes along each dimension; at least one, so that a grid always has a box."""
        return tuple(
            max(1, -(-count // size))
            for count, size in zip(self.num_chunks, self.sizes, strict=True)
        )

    @property
    def count(self) -> int:
        """The number of boxes."""
        return prod(self.shape)

    def assign(self, index: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The number of the box of each row of `index`, an array of shape `(n, d)`.

        Rows outside the grid, as there are after an array shrank, count to the nearest box.
        """
        numbers = np.zeros(len(index), np.int64)
        for axis, (boxes, size) in enumerate(zip(self.shape, self.sizes, strict=True)):
            along = np.minimum(index[:, axis].astype(np.int64) // size, boxes - 1)
            numbers = numbers * boxes + along
        return numbers

    def extents(self, number: int) -> Extents:
        """The ranges of chunk indices of box `number`."""
        ranges = []
        shape = self.shape
        for axis in reversed(range(len(shape))):
            number, position = divmod(number, shape[axis])
            start = position * self.sizes[axis]
            ranges.append((start, min(start + self.sizes[axis], self.num_chunks[axis])))
        return tuple(reversed(ranges))


def split_grid(
    config: ManifestSplittingConfig | None,
    path: str,
    dimension_names: Sequence[str | None] | None,
    num_chunks: Sequence[int],
) -> SplitGrid:
    """The cut that `config` asks for, for the array at `path`.

    Every rule whose condition holds takes part, in order; a dimension takes the first size that
    fits it and is not split if none does.
    """
    names = list(dimension_names or [None] * len(num_chunks))
    sizes = [
        _size(config, path, axis, names[axis] if axis < len(names) else None) or max(1, count)
        for axis, count in enumerate(num_chunks)
    ]
    return SplitGrid(tuple(num_chunks), tuple(sizes))


def _size(
    config: ManifestSplittingConfig | None, path: str, axis: int, name: str | None
) -> int | None:
    for condition, dimensions in (config.split_sizes if config else None) or ():
        if condition.matches(path):
            for dimension, size in dimensions:
                if dimension_matches(dimension, axis, name):
                    return size
    return None


_FEW_ARRAYS = 16
_SMALL_PIECE = 256
_SHARED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Which stored manifests stay as they are and which are taken apart."""

    keep: tuple[ManifestRef, ...]
    load: tuple[ManifestRef, ...]


def choose(
    stored: Sequence[ManifestRef],
    touched: NDArray[np.uint32],
    grid: SplitGrid,
    num_chunks: tuple[int, ...],
    *,
    everything: bool = False,
) -> Rewrite:
    """Decide what a commit that edits the chunks `touched` has to load."""
    if everything or not stored:
        return Rewrite((), tuple(stored))
    regions = [_reach(grid, ref.extents) for ref in stored]
    dirty = set(distinct(grid.assign(touched)).tolist()) if len(touched) else set()
    load = {number for number, ref in enumerate(stored) if not _fits(ref.extents, num_chunks)}
    grown = True
    while grown:
        grown = False
        for number, reach in enumerate(regions):
            if number not in load and not dirty.isdisjoint(reach):
                load.add(number)
                grown = True
            if number in load and not dirty.issuperset(reach):
                dirty |= reach
                grown = True
    return Rewrite(
        keep=tuple(ref for number, ref in enumerate(stored) if number not in load),
        load=tuple(ref for number, ref in enumerate(stored) if number in load),
    )


def distribute(
    loaded: Sequence[ChunkRefs],
    edits: ChunkRefs,
    grid: SplitGrid,
    num_chunks: tuple[int, ...],
) -> list[ChunkRefs]:
    """Rows of the new manifests, one entry each; empty regions give none."""
    stored = [refs for refs in loaded if len(refs)]
    rows = ChunkRefs.of(concatenate(stored)).overlay(edits) if stored else edits
    rows = rows.without_erased()
    if not len(rows):
        return []
    inside = rows.inside(tuple((0, count) for count in num_chunks))
    if not inside.all():
        rows = rows.take(inside)
        if not len(rows):
            return []
    if grid.count == 1:
        return [rows]
    regions = grid.assign(rows.index)
    return [rows.take(regions == region).compact() for region in distinct(regions)]


def share(pieces: Sequence[tuple[NodeId, ChunkRefs]]) -> list[list[tuple[NodeId, ChunkRefs]]]:
    """Which pieces go into one manifest file together, each group in the order of node ids.

    A commit of hundreds of small arrays would write as many tiny files; they share a few. A file
    holds one piece of an array at most, and a commit to few arrays keeps them apart, so that
    reading one array loads nothing else.
    """
    if len({node_id for node_id, _ in pieces}) <= _FEW_ARRAYS:
        return [[piece] for piece in pieces]
    groups: list[list[tuple[NodeId, ChunkRefs]]] = []
    open_group: list[tuple[NodeId, ChunkRefs]] = []
    members: set[NodeId] = set()
    rows = 0
    for node_id, refs in sorted(pieces, key=lambda piece: piece[0]):
        if len(refs) > _SMALL_PIECE:
            groups.append([(node_id, refs)])
            continue
        if node_id in members or rows + len(refs) > _SHARED_ROWS:
            groups.append(open_group)
            open_group, members, rows = [], set(), 0
        open_group.append((node_id, refs))
        members.add(node_id)
        rows += len(refs)
    return [*groups, open_group] if open_group else groups


def _reach(grid: SplitGrid, extents: Extents | None) -> set[int]:
    """Numbers of the split regions that a box reaches into."""
    shape = grid.shape
    if extents is None or len(extents) != len(shape):
        return set(range(grid.count))
    numbers = np.zeros(1, np.int64)
    for (low, high), size, boxes in zip(extents, grid.sizes, shape, strict=True):
        along = np.arange(min(low // size, boxes - 1), min((high - 1) // size, boxes - 1) + 1)
        numbers = (numbers[:, None] * boxes + along).reshape(-1)
    return set(numbers.tolist())


def _fits(extents: Extents | None, num_chunks: tuple[int, ...]) -> bool:
    if extents is None:
        return True
    if len(extents) != len(num_chunks):
        return False
    return all(high <= count for (_, high), count in zip(extents, num_chunks, strict=True))
