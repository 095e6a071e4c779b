"""Boxes of cells: the written parts of an array.

Pure. A box has one half-open span of cells per dimension. A set of boxes may always be replaced by
a larger one: readers then assume that more was written than actually was, which can make a merge
impossible but never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import Extents, Index
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument

Box = tuple[tuple[int, int], ...]
"""From the first cell up to but not including the second, for each dimension."""
Boxes = tuple[Box, ...]

MOST_BOXES = 512
"""More of one array become their bounding box."""


def joined(boxes: Boxes, more: Iterable[Box]) -> Boxes:
    """All of them, as few as touching neighbours allow; above `MOST_BOXES` one around all."""
    kept = list(boxes)
    for box in more:
        _add(kept, box)
    return tuple(kept) if len(kept) <= MOST_BOXES else (around(kept),)


def _add(kept: list[Box], box: Box) -> None:
    if any(start >= stop for start, stop in box):
        return
    place = 0
    while place < len(kept):
        union = _union(kept[place], box)
        if union is None:
            place += 1
        elif union == kept[place]:
            return
        else:
            # A box that grew may touch boxes that were already visited.
            box = union
            del kept[place]
            place = 0
    kept.append(box)


def _union(one: Box, other: Box) -> Box | None:
    """Both as one box, if that adds no cell to them."""
    if contains(one, other):
        return one
    if contains(other, one):
        return other
    differing = [axis for axis, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if len(differing) != 1:
        return None
    (axis,) = differing
    (low, high), (start, stop) = one[axis], other[axis]
    if stop < low or high < start:
        return None
    return (*one[:axis], (min(low, start), max(high, stop)), *one[axis + 1 :])


def contains(outer: Box, inner: Box) -> bool:
    """Whether every cell of `inner` is in `outer`."""
    return all(
        low <= start and stop <= high
        for (low, high), (start, stop) in zip(outer, inner, strict=True)
    )


def common(one: Box, other: Box) -> Box | None:
    """The cells that are in both; `None` if there are none."""
    both = tuple(
        (max(low, start), min(high, stop))
        for (low, high), (start, stop) in zip(one, other, strict=True)
    )
    return None if any(start >= stop for start, stop in both) else both


def around(boxes: Sequence[Box]) -> Box:
    """The smallest box that contains all of them; there must be at least one."""
    return tuple(
        (min(start for start, _ in spans), max(stop for _, stop in spans))
        for spans in zip(*boxes, strict=True)
    )


_MOST_RUNS = 1024


def of_cells(cells: NDArray[np.bool_]) -> Boxes:
    """Boxes around the marked cells: exactly these, unless they are scattered."""
    places = np.argwhere(cells)
    if not len(places):
        return ()
    whole = tuple(
        (int(low), int(high) + 1)
        for low, high in zip(places.min(axis=0), places.max(axis=0), strict=True)
    )
    if cells[tuple(slice(*span) for span in whole)].all():
        return (whole,)
    beside = np.zeros((*cells.shape[:-1], 1), np.bool_)
    steps = np.diff(np.concatenate([beside, cells, beside], axis=-1).astype(np.int8), axis=-1)
    first, last = np.argwhere(steps == 1).tolist(), np.argwhere(steps == -1).tolist()
    if len(first) > _MOST_RUNS:
        return (whole,)
    runs = (
        (*((place, place + 1) for place in start[:-1]), (start[-1], stop[-1]))
        for start, stop in zip(first, last, strict=True)
    )
    return joined((), runs)


def moved(box: Box, by: Sequence[int]) -> Box:
    """A box elsewhere."""
    return tuple((start + k, stop + k) for (start, stop), k in zip(box, by, strict=True))


def chunk_box(index: Index, chunk_shape: Sequence[int], shape: Sequence[int]) -> Box:
    """The cells of a chunk that are inside the array."""
    return tuple(
        (number * size, max(number * size, min((number + 1) * size, length)))
        for number, size, length in zip(index, chunk_shape, shape, strict=True)
    )


def chunks_in(box: Box, chunk_shape: Sequence[int]) -> Extents:
    """Numbers of the chunks that have cells in the box."""
    return tuple(
        (start // size, -(-stop // size))
        for (start, stop), size in zip(box, chunk_shape, strict=True)
    )


def cover(boxes: Boxes, document: ArrayDocument, index: NDArray[np.integer]) -> bool:
    """Whether each of these chunks has cells in one of the boxes.

    Never in an array whose chunks differ in size, because their positions are unknown here.
    """
    rank = len(document.shape)
    if document.chunk_counts is not None or not all(document.chunk_shape):
        return False
    if any(len(box) != rank for box in boxes):
        return False
    if index.ndim != 2 or index.shape[1] != rank:
        return False
    covered = np.zeros(len(index), np.bool_)
    for box in boxes:
        spans = np.array(chunks_in(box, document.chunk_shape), np.int64).reshape(rank, 2)
        covered |= ((index >= spans[:, 0]) & (index < spans[:, 1])).all(axis=1)
    return bool(covered.all())


def inside(boxes: Boxes, document: ArrayDocument, index: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which of these chunks are entirely inside one of the boxes."""
    sizes, shape = (np.array(one, np.int64) for one in (document.chunk_shape, document.shape))
    starts = index.astype(np.int64) * sizes
    ends = np.minimum(starts + sizes, shape)
    found = np.zeros(len(index), np.bool_)
    for box in boxes:
        spans = np.array(box, np.int64).reshape(len(shape), 2)
        found |= ((spans[:, 0] <= starts) & (ends <= spans[:, 1])).all(axis=1)
    return found


def shown(box: Box) -> str:
    """A box as people write it."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"
