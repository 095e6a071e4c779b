"""Which chunk reference goes into which manifest. Pure.

Only what the edits touch is rewritten. A stored manifest is kept when no edit falls into any split
region it reaches into and it lies inside the array's grid; otherwise its rows are loaded and
redistributed to the regions. A manifest that spans several regions (made under another
configuration) drags all of them in, so that boxes of one array never overlap.

The grid of chunks is cut at regular intervals along each dimension; every box of the cut is one
manifest. Boxes are numbered in row-major order, and numbering references is arithmetic on their
index columns.

Where the repository has the standard rules, boxes of large arrays are cut further, until none has
more than `_BOX_ROWS` references: a commit of one chunk rewrites one box, whatever the array holds.
Without rules the cut is the one that the stored manifests show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Extents, concatenate
from airflow_provider_icechunk.engine.format.config.conditions import (
    ManifestSplittingConfig,
    dimension_matches,
    standard_splitting,
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

        Rows outside the grid, which exist after an array shrank, belong to the nearest box.
        """
        last = np.array(self.shape, np.int64) - 1
        sizes = np.array(self.sizes, np.int64)
        return self.number(np.minimum(index.astype(np.int64) // sizes, last))

    def span(self, boxes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last box that each of `boxes`, of shape `(n, d, 2)`, reaches into."""
        last = np.array(self.shape, np.int64) - 1
        sizes = np.array(self.sizes, np.int64)
        return np.minimum(boxes[..., 0] // sizes, last), np.minimum(
            (boxes[..., 1] - 1) // sizes, last
        )

    def number(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of boxes from their positions along each dimension, of shape `(n, d)`."""
        numbers = np.zeros(len(places), np.int64)
        for axis, boxes in enumerate(self.shape):
            numbers = numbers * boxes + places[:, axis]
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


_BOX_ROWS = 1 << 15


def array_grid(
    config: ManifestSplittingConfig | None,
    path: str,
    dimension_names: Sequence[str | None] | None,
    num_chunks: Sequence[int],
    stored: Sequence[ManifestRef],
) -> SplitGrid:
    """The cut of an array whose references are in the manifests `stored`."""
    if config is None or not config.split_sizes:
        return shown_grid(stored, num_chunks) or split_grid(None, path, None, num_chunks)
    grid = split_grid(config, path, dimension_names, num_chunks)
    return finer_grid(grid) if config == standard_splitting() else grid


def finer_grid(grid: SplitGrid) -> SplitGrid:
    """A cut of each box of `grid` into boxes with few references, along its first dimensions.

    Sizes are powers of two, and growth along the first dimension does not change them, so that
    boxes of an array that grew in another direction still nest.
    """
    sizes = [1 << (size - 1).bit_length() for size in grid.sizes]
    for axis, size in enumerate(sizes):
        behind = prod(
            min(later, max(1, count))
            for later, count in zip(sizes[axis + 1 :], grid.num_chunks[axis + 1 :], strict=True)
        )
        sizes[axis] = min(size, 1 << (max(1, _BOX_ROWS // behind).bit_length() - 1))
        if behind <= _BOX_ROWS:
            break
    return SplitGrid(grid.num_chunks, tuple(sizes))


def shown_grid(stored: Sequence[ManifestRef], num_chunks: Sequence[int]) -> SplitGrid | None:
    """The regular cut that stored manifests show; `None` if they show none."""
    boxes = _boxes(stored, num_chunks)
    if len(stored) < 2 or boxes is None or not len(num_chunks):
        return None
    sizes = [
        gcd(*boxes[:, axis, 0].tolist()) or max(1, count) for axis, count in enumerate(num_chunks)
    ]
    grid = SplitGrid(tuple(num_chunks), tuple(sizes))
    first, last = grid.span(boxes)
    if (first != last).any() or len(distinct(grid.number(first))) != len(stored):
        return None
    return grid


def split_grid(
    config: ManifestSplittingConfig | None,
    path: str,
    dimension_names: Sequence[str | None] | None,
    num_chunks: Sequence[int],
) -> SplitGrid:
    """The cut that `config` asks for, for the array at `path`.

    Every rule whose condition holds applies, in order; a dimension takes the first size that
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
    """Which stored manifests stay as they are and which are split."""

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
    boxes = _boxes(stored, num_chunks)
    if boxes is None:
        return Rewrite((), tuple(stored))
    first, last = grid.span(boxes)
    alone = (first == last).all(axis=1)
    numbers = grid.number(first)
    dirty = distinct(grid.assign(touched))
    load: NDArray[np.bool_] = np.any(boxes[..., 1] > np.array(num_chunks, np.int64), axis=1)
    reach = {n: _reach(grid, first[n], last[n]) for n in np.flatnonzero(~alone).tolist()}
    while True:
        hit = load | (alone & np.isin(numbers, dirty))
        for number, reached in reach.items():
            hit[number] |= bool(np.isin(reached, dirty).any())
        more = [numbers[hit & alone], *(reach[n] for n in reach if hit[n])]
        grown = distinct(np.concatenate([dirty, *more]))
        if len(grown) == len(dirty) and (hit == load).all():
            break
        dirty, load = grown, hit
    return Rewrite(
        keep=tuple(ref for ref, loaded in zip(stored, load.tolist(), strict=True) if not loaded),
        load=tuple(stored[number] for number in np.flatnonzero(load).tolist()),
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
    if bool((regions[1:] < regions[:-1]).any()):
        order = np.argsort(regions, kind="stable")
        rows, regions = rows.take(order), regions[order]
    cuts = [0, *(np.flatnonzero(regions[1:] != regions[:-1]) + 1).tolist(), len(rows)]
    return [rows.take(slice(start, stop)).compact() for start, stop in pairwise(cuts)]


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


def _reach(grid: SplitGrid, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the boxes from place `first` to place `last`."""
    numbers = np.zeros(1, np.int64)
    for low, high, boxes in zip(first.tolist(), last.tolist(), grid.shape, strict=True):
        numbers = (numbers[:, None] * boxes + np.arange(low, high + 1)).reshape(-1)
    return numbers


def _boxes(stored: Sequence[ManifestRef], num_chunks: Sequence[int]) -> NDArray[np.int64] | None:
    """Extents of manifests, of shape `(n, d, 2)`; `None` if one was made for another rank.

    A manifest whose extents are not known may reach anywhere in the grid.
    """
    anywhere = tuple((0, max(1, count)) for count in num_chunks)
    extents = [anywhere if ref.extents is None else ref.extents for ref in stored]
    if any(len(box) != len(num_chunks) for box in extents):
        return None
    return np.array(extents, np.int64).reshape(len(stored), len(num_chunks), 2)
