"""Plan a read once, up front: which arrays, which part, which columns and tasks.

Planning fixes the snapshot, so all tasks see the same data, however long they take and whatever is
committed in the meantime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.blocks import chunk_grid
from airflow_provider_icechunk.engine.arrays.cf import Decoding, decoding
from airflow_provider_icechunk.engine.arrays.labels import span_between
from airflow_provider_icechunk.engine.arrays.regions import (
    DimensionKey,
    Parts,
    Region,
    Span,
    by_axis,
    dimension_names,
    plan_box,
    plan_parts,
    span_of,
)
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.columns import CHUNK_COLUMNS, Column, column_for
from airflow_provider_icechunk.spark.runtime import open_array

FrameLayout = Literal["long", "chunks"]
"""One row per cell, or one row per chunk."""
Range = tuple[Any, Any]
Ranges = Mapping[str, Range] | Mapping[int, Range] | Mapping[DimensionKey, Range]


@dataclass(frozen=True, slots=True)
class ReadDimension:
    """One dimension of a read."""

    name: str
    column: Column
    coordinate: str | None
    """Path of the coordinate array for the column's values; without one they are positions."""
    decoding: Decoding


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A part of the arrays at some paths."""

    paths: tuple[str, ...]
    region: Region


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A planned read. It is sent to executors and opens its snapshot there."""

    session: Session
    layout: FrameLayout
    columns: tuple[Column, ...]
    """The visible columns: of dimensions, then of arrays."""
    dimensions: tuple[ReadDimension, ...]
    """None in frames of chunks."""
    decodings: tuple[Decoding, ...]
    """The visible arrays, in the order of their columns."""
    box: Region
    tasks: tuple[ReadTask, ...]

    def labels(self, axis: int, span: Span) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """The values of a dimension's column at some positions, and where they are missing."""
        dimension = self.dimensions[axis]
        if dimension.coordinate is None:
            return np.arange(*span, dtype=np.int64), None
        stored = open_array(self.session, dimension.coordinate)[slice(*span)]
        return dimension.decoding.decode(np.asarray(stored))

    def narrowed(self, spans: Mapping[int, Span]) -> PlannedRead:
        """The same for a part of the box: positions by axis."""
        box = tuple(spans.get(axis, span) for axis, span in enumerate(self.box))
        paths = self.tasks[0].paths if self.tasks else ()
        if box == self.box or not paths:
            return self
        arrays = [open_array(self.session, path) for path in paths]
        made = _tasks(arrays, box, min(len(self.tasks), _chunk_count(arrays[0], box)), 1)
        return replace(self, box=box, tasks=tuple(made))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part to read, by name or number of dimension; `isel` and `sel` may be mixed."""

    isel: Parts
    """Positions: an index, or (start, stop)."""
    sel: Ranges
    """Values of a sorted coordinate: (first, last), inclusive."""


def plan_reading(
    session: Session,
    path: str,
    *,
    layout: FrameLayout,
    variables: Sequence[str] | None,
    selection: Selection,
    coordinates: bool,
    tasks: int | None,
    cores: int,
    decode: bool = True,
    columns: Sequence[str] | None = None,
) -> PlannedRead:
    """Plan to read the array at `path`, or arrays of the group there.

    :param columns: those to show of a long frame; by default all.
    """
    root = zarr.open_group(session.store, mode="r")
    node = root.get(path.strip("/")) if path.strip("/") else root
    if node is None:
        raise InvalidInputError(f"there is no array and no group at {path!r}")
    arrays = [node] if isinstance(node, zarr.Array) else _members(node, variables)
    home = _parent(root, arrays[0]) if isinstance(node, zarr.Array) else node
    names = dimension_names(arrays[0])
    box = _box(arrays[0], names, home, selection, decode)
    if layout == "chunks":
        if columns is not None:
            raise InvalidInputError(
                "`columns` applies to long frames: a frame of chunks has fixed columns"
            )
        work = [task for array in arrays for task in _tasks([array], box, tasks, cores)]
        return PlannedRead(session, layout, CHUNK_COLUMNS, (), (), box, tuple(work))
    decodings = tuple(_decoding(array, decode) for array in arrays)
    values = tuple(
        column_for(array.basename or "value", one.dtype)
        for array, one in zip(arrays, decodings, strict=True)
    )
    taken = {column.name for column in values}
    group = home if coordinates else None
    dimensions = tuple(_dimension(name, group, taken, decode) for name in names)
    shown = _shown((*(dimension.column for dimension in dimensions), *values), columns)
    read = [number for number, column in enumerate(values) if column in shown]
    # The chunks of an array determine where tasks begin, even if its values are not shown.
    read_arrays = [arrays[number] for number in read] or arrays[:1]
    return PlannedRead(
        session,
        layout,
        shown,
        dimensions,
        tuple(decodings[number] for number in read),
        box,
        tuple(_tasks(read_arrays, box, tasks, cores)),
    )


def _shown(columns: tuple[Column, ...], wanted: Sequence[str] | None) -> tuple[Column, ...]:
    if wanted is None:
        return columns
    unknown = [name for name in wanted if name not in {column.name for column in columns}]
    if unknown or not wanted:
        raise InvalidInputError(
            f"there is no column {unknown[0] if unknown else ''!r}: the columns are "
            f"{', '.join(column.name for column in columns)}"
        )
    return tuple(column for column in columns if column.name in wanted)


def _decoding(array: zarr.Array[Any], decode: bool) -> Decoding:
    return decoding(array.dtype, array.attrs.asdict()) if decode else Decoding(array.dtype)


def _members(group: zarr.Group, variables: Sequence[str] | None) -> list[zarr.Array[Any]]:
    """The arrays of a group to read together; they must share their dimensions."""
    found = dict(group.arrays())
    missing = sorted(set(variables or ()) - found.keys())
    if missing:
        raise InvalidInputError(f"the group {group.path!r} has no array {missing[0]!r}")
    chosen = (
        [found[name] for name in variables]
        if variables
        else [array for name, array in sorted(found.items()) if dimension_names(array) != (name,)]
    )
    if not chosen:
        raise InvalidInputError(f"the group {group.path!r} has no arrays to read")
    first = chosen[0]
    for array in chosen[1:]:
        if (array.shape, dimension_names(array)) != (first.shape, dimension_names(first)):
            raise InvalidInputError(
                f"{array.path!r} and {first.path!r} have different dimensions: choose arrays with "
                "the same dimensions with `variables`"
            )
    return chosen


def _parent(root: zarr.Group, array: zarr.Array[Any]) -> zarr.Group:
    above = array.path.rpartition("/")[0]
    node = root[above] if above else root
    assert isinstance(node, zarr.Group)
    return node


def _coordinate(group: zarr.Group, name: str) -> zarr.Array[Any] | None:
    node = group.get(name)
    fits = isinstance(node, zarr.Array) and dimension_names(node) == (name,)
    return node if isinstance(node, zarr.Array) and fits else None


def _dimension(name: str, group: zarr.Group | None, taken: set[str], decode: bool) -> ReadDimension:
    coordinate = None if group is None or name in taken else _coordinate(group, name)
    if coordinate is None:
        column, number = f"{name}_index" if name in taken else name, np.dtype(np.int64)
        return ReadDimension(name, column_for(column, number), None, Decoding(number))
    how = _decoding(coordinate, decode)
    return ReadDimension(name, column_for(name, how.dtype), coordinate.path, how)


def _box(
    array: zarr.Array[Any],
    names: Sequence[str],
    group: zarr.Group,
    selection: Selection,
    decode: bool,
) -> Region:
    where = repr(array.path)
    positions = by_axis(selection.isel, names, where)
    ranges = by_axis(selection.sel, names, where)
    both = positions.keys() & ranges.keys()
    if both:
        raise InvalidInputError(f"dimension {names[min(both)]!r} is selected in two ways")
    return tuple(
        _by_values(group, name, length, ranges[axis], decode)
        if axis in ranges
        else span_of(positions.get(axis, (0, length)), name, length)
        for axis, (name, length) in enumerate(zip(names, array.shape, strict=True))
    )


def _by_values(
    group: zarr.Group, name: str, length: int, bounds: tuple[Any, Any], decode: bool
) -> Span:
    coordinate = _coordinate(group, name)
    if coordinate is None or coordinate.shape != (length,):
        raise InvalidInputError(f"dimension {name!r} has no coordinate array: select with `isel`")
    values, absent = _decoding(coordinate, decode).decode(np.asarray(coordinate[:]))
    if absent is not None:
        raise InvalidInputError(f"the coordinate {name!r} lacks values: select with `isel`")
    return span_between(name, values, bounds)


def _tasks(
    arrays: Sequence[zarr.Array[Any]], box: Region, tasks: int | None, cores: int
) -> list[ReadTask]:
    cells = math.prod(stop - start for start, stop in box)
    size = cells * sum(array.dtype.itemsize for array in arrays)
    grid = chunk_grid(arrays[0])
    parts = tasks or plan_parts(size, cores)
    paths = tuple(array.path for array in arrays)
    return [ReadTask(paths, region) for region in plan_box(box, grid, parts)]


def _chunk_count(array: zarr.Array[Any], box: Region) -> int:
    """How many chunks a box touches."""
    sizes = zip(box, chunk_grid(array), strict=True)
    return max(1, math.prod(-(-stop // size) - start // size for (start, stop), size in sizes))
