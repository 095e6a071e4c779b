"""What a read covers: which arrays, which part, in which columns and tasks. Decided once, up front.

The snapshot is fixed when a read is planned, so all tasks of it see the same data, however long
they take and whatever is committed meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import zarr

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.columns import (
    CHUNK_COLUMNS,
    Column,
    column_for,
)
from airflow_provider_icechunk.spark.dimensions import (
    DimensionKey,
    Parts,
    by_axis,
    dimension_names,
    span_of,
)
from airflow_provider_icechunk.spark.encode import chunk_grid
from airflow_provider_icechunk.spark.labels import span_between
from airflow_provider_icechunk.spark.plan import Region, Span, plan_box, plan_parts
from airflow_provider_icechunk.zarr_store.sessions import Session

FrameLayout = Literal["long", "chunks"]
"""A row for each cell, or a row for each chunk."""
Range = tuple[Any, Any]
Ranges = Mapping[str, Range] | Mapping[int, Range] | Mapping[DimensionKey, Range]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of what is read."""

    name: str
    column: Column
    coordinate: str | None
    """The path of the array whose values stand in the column; without one, positions do."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A part of the arrays at some paths."""

    paths: tuple[str, ...]
    region: Region


@dataclass(frozen=True, slots=True)
class Reading:
    """A planned read. Travels to executors; opens its snapshot there."""

    session: Session
    layout: FrameLayout
    columns: tuple[Column, ...]
    dimensions: tuple[Dimension, ...]
    tasks: tuple[ReadTask, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part to read, by name or number of dimension; both ways may be mixed."""

    isel: Parts
    """Positions: one, or from the first up to, not including, the second."""
    sel: Ranges
    """Values of a sorted coordinate: from the first up to and including the second."""


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
) -> Reading:
    """Plan to read the array at `path`, or arrays of the group there."""
    root = zarr.open_group(session.store, mode="r")
    node = root.get(path.strip("/")) if path.strip("/") else root
    if node is None:
        raise InvalidInputError(f"there is no array and no group at {path!r}")
    arrays = [node] if isinstance(node, zarr.Array) else _members(node, variables)
    home = _parent(root, arrays[0]) if isinstance(node, zarr.Array) else node
    names = dimension_names(arrays[0])
    box = _box(arrays[0], names, home, selection)
    if layout == "chunks":
        work = [task for array in arrays for task in _tasks([array], box, tasks, cores)]
        return Reading(session, layout, CHUNK_COLUMNS, (), tuple(work))
    values = tuple(column_for(array.basename or "value", array.dtype) for array in arrays)
    taken = {column.name for column in values}
    dimensions = tuple(_dimension(name, home if coordinates else None, taken) for name in names)
    return Reading(
        session,
        layout,
        (*(dimension.column for dimension in dimensions), *values),
        dimensions,
        tuple(_tasks(arrays, box, tasks, cores)),
    )


def _members(group: zarr.Group, variables: Sequence[str] | None) -> list[zarr.Array[Any]]:
    """The arrays of a group that are read together; they have to share their dimensions."""
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
                f"{array.path!r} and {first.path!r} have different dimensions: choose arrays that "
                "belong together with `variables`"
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


def _dimension(name: str, group: zarr.Group | None, taken: set[str]) -> Dimension:
    coordinate = None if group is None or name in taken else _coordinate(group, name)
    if coordinate is None:
        column = f"{name}_index" if name in taken else name
        return Dimension(name, column_for(column, np.dtype(np.int64)), None)
    return Dimension(name, column_for(name, coordinate.dtype), coordinate.path)


def _box(
    array: zarr.Array[Any], names: Sequence[str], group: zarr.Group, selection: Selection
) -> Region:
    where = repr(array.path)
    positions = by_axis(selection.isel, names, where)
    ranges = by_axis(selection.sel, names, where)
    both = positions.keys() & ranges.keys()
    if both:
        raise InvalidInputError(f"dimension {names[min(both)]!r} is selected in two ways")
    return tuple(
        _by_values(group, name, length, ranges[axis])
        if axis in ranges
        else span_of(positions.get(axis, (0, length)), name, length)
        for axis, (name, length) in enumerate(zip(names, array.shape, strict=True))
    )


def _by_values(group: zarr.Group, name: str, length: int, bounds: tuple[Any, Any]) -> Span:
    coordinate = _coordinate(group, name)
    if coordinate is None or coordinate.shape != (length,):
        raise InvalidInputError(f"dimension {name!r} has no coordinate array: select with `isel`")
    return span_between(name, np.asarray(coordinate[:]), bounds)


def _tasks(
    arrays: Sequence[zarr.Array[Any]], box: Region, tasks: int | None, cores: int
) -> list[ReadTask]:
    cells = math.prod(stop - start for start, stop in box)
    size = cells * sum(array.dtype.itemsize for array in arrays)
    grid = chunk_grid(arrays[0])
    parts = tasks or plan_parts(size, cores)
    paths = tuple(array.path for array in arrays)
    return [ReadTask(paths, region) for region in plan_box(box, grid, parts)]
