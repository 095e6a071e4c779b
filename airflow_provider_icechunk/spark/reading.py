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
from airflow_provider_icechunk.spark.encode import chunk_grid
from airflow_provider_icechunk.spark.plan import Region, Span, plan_box, plan_parts
from airflow_provider_icechunk.zarr_store.sessions import Session

FrameLayout = Literal["long", "chunks"]
"""A row for each cell, or a row for each chunk."""
Positions = Mapping[str, int | tuple[int, int]]
Ranges = Mapping[str, tuple[Any, Any]]


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
    """Which part to read, by dimension; both ways may be mixed."""

    isel: Positions
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
    _check_names(selection, names)
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


def dimension_names(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of the dimensions; `dim_0`, `dim_1`... where the array gives none."""
    given = getattr(array.metadata, "dimension_names", None) or (None,) * array.ndim
    return tuple(name or f"dim_{axis}" for axis, name in enumerate(given))


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


def _check_names(selection: Selection, names: Sequence[str]) -> None:
    for name in (*selection.isel, *selection.sel):
        if name not in names:
            raise InvalidInputError(
                f"there is no dimension {name!r}; there are: {', '.join(names) or 'none'}"
            )
    both = selection.isel.keys() & selection.sel.keys()
    if both:
        raise InvalidInputError(f"dimension {min(both)!r} is selected in two ways")


def _box(
    array: zarr.Array[Any], names: Sequence[str], group: zarr.Group, selection: Selection
) -> Region:
    box: list[Span] = []
    for name, length in zip(names, array.shape, strict=True):
        if name in selection.sel:
            box.append(_by_values(group, name, length, selection.sel[name]))
            continue
        chosen = selection.isel.get(name, (0, length))
        start, stop = (chosen, chosen + 1) if isinstance(chosen, int) else chosen
        if not 0 <= start <= stop <= length:
            raise InvalidInputError(
                f"positions {start} to {stop} do not lie in dimension {name!r} of {length}"
            )
        box.append((start, stop))
    return tuple(box)


def _by_values(group: zarr.Group, name: str, length: int, bounds: tuple[Any, Any]) -> Span:
    coordinate = _coordinate(group, name)
    if coordinate is None or coordinate.shape != (length,):
        raise InvalidInputError(f"dimension {name!r} has no coordinate array: select with `isel`")
    values = np.asarray(coordinate[:])
    falling = len(values) > 1 and bool(values[0] > values[-1])
    rising = values[::-1] if falling else values
    if not bool(np.all(rising[:-1] <= rising[1:])):
        raise InvalidInputError(f"the coordinate {name!r} is not sorted: select with `isel`")
    low, high = (np.asarray(bound).astype(values.dtype) for bound in bounds)
    start = int(np.searchsorted(rising, low, side="left"))
    stop = max(start, int(np.searchsorted(rising, high, side="right")))
    return (length - stop, length - start) if falling else (start, stop)


def _tasks(
    arrays: Sequence[zarr.Array[Any]], box: Region, tasks: int | None, cores: int
) -> list[ReadTask]:
    cells = math.prod(stop - start for start, stop in box)
    size = cells * sum(array.dtype.itemsize for array in arrays)
    grid = chunk_grid(arrays[0])
    parts = tasks or plan_parts(size, cores)
    paths = tuple(array.path for array in arrays)
    return [ReadTask(paths, region) for region in plan_box(box, grid, parts)]
