"""Arrays as data frames: one row per cell, or one row per chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.engine.arrays.blocks import chunk_grid
from airflow_provider_icechunk.engine.arrays.regions import (
    Parts,
    Region,
    Span,
    extent,
    plan_box,
    slices,
)
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.spark.columns import (
    CHUNK_COLUMNS,
    arrow_schema,
    spark_schema,
    to_arrow,
)
from airflow_provider_icechunk.spark.runtime import RepositoryLike, cores, open_array, opened

from .plan import FrameLayout, PlannedRead, Ranges, ReadTask, Selection, plan_reading

_ROWS = 1 << 18
_CELLS = 1 << 22
"""Cells that a task decodes at once; at least one chunk."""


def read_dataframe(
    spark: SparkSession,
    repository: RepositoryLike,
    path: str = "/",
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    layout: FrameLayout = "long",
    variables: Sequence[str] | None = None,
    isel: Parts | None = None,
    sel: Ranges | None = None,
    coordinates: bool = True,
    decode: bool = True,
    columns: Sequence[str] | None = None,
    tasks: int | None = None,
) -> DataFrame:
    """Read the array at `path`, or arrays of the group there, from one snapshot as a frame.

    Long frames have a column for each dimension and each array; chunks outside the selection are
    not read. Frames of chunks contain whole chunks, as bytes in the array's type.

    :param branch: read its head, by default that of `main`; with `as_of`, its last commit by then.
    :param isel: positions by name or number of dimension: an index, or (start, stop).
    :param sel: values of a sorted coordinate by name or number of dimension: (first, last),
        inclusive; `None` leaves an end open.
    :param coordinates: show values of coordinate arrays instead of positions, where they exist.
    :param decode: show what values mean by the CF conventions: times as timestamps, scaled numbers
        as they were before scaling, missing values as NULL. Otherwise show what is stored.
    :param columns: those of a long frame to produce, by default all: a column that an aggregate
        does not need costs as much as one that it does.
    """
    session = open_snapshot(repository, branch, tag, snapshot_id, as_of)
    reading = plan_reading(
        session,
        path,
        layout=layout,
        variables=variables,
        selection=Selection(isel or {}, sel or {}),
        coordinates=coordinates,
        decode=decode,
        columns=columns,
        tasks=tasks,
        cores=cores(spark),
    )
    count = len(reading.tasks)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(partial(_read_numbers, reading), spark_schema(reading.columns))


def open_snapshot(
    repository: RepositoryLike,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
) -> Session:
    """A read-only session on the named snapshot; by default the head of `main`."""
    if branch is None and tag is None and snapshot_id is None:
        branch = "main"
    return opened(repository).readonly_session(
        branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of
    )


def read_task(reading: PlannedRead, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches."""
    arrays = [open_array(reading.session, path) for path in task.paths]
    if reading.layout == "chunks":
        yield from _chunk_rows(arrays[0], task.region)
        return
    cells = math.prod(extent(task.region))
    for block in plan_box(task.region, chunk_grid(arrays[0]), max(1, -(-cells // _CELLS))):
        yield from _long_rows(reading, arrays, block)


def _read_numbers(
    reading: PlannedRead, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read_task(reading, reading.tasks[number])


def _long_rows(
    reading: PlannedRead, arrays: Sequence[zarr.Array[Any]], block: Region
) -> Iterator[pa.RecordBatch]:
    """The cells of a block, in batches that are boxes, in C order.

    Columns of dimensions are made of their labels by broadcasting, and those of inner dimensions
    are the same in every batch.
    """
    shape = extent(block)
    shown = reading.columns[: len(reading.columns) - len(reading.decodings)]
    labels = {
        axis: _labels(reading, axis, block[axis])
        for axis, dimension in enumerate(reading.dimensions)
        if dimension.column in shown
    }
    values = [
        decoding.decode(np.asarray(array[slices(block)]).reshape(-1))
        for array, decoding in zip(arrays, reading.decodings, strict=False)
    ]
    schema = arrow_schema(reading.columns)
    kept: dict[int, tuple[Any, pa.Array]] = {}

    def column(axis: int, span: Span, box: tuple[int, ...]) -> pa.Array:
        known = kept.get(axis)
        if known is None or known[0] != (span, box):
            known = kept[axis] = (span, box), _broadcast(labels[axis], axis, span, box)
        return known[1]

    first = 0
    for piece in _pieces(shape, _cut(shape)):
        box = extent(piece)
        last = first + math.prod(box)
        columns = [column(axis, piece[axis], box) for axis in labels]
        for (cells, absent), of in zip(values, reading.columns[len(shown) :], strict=True):
            gone = None if absent is None else absent[first:last]
            columns.append(to_arrow(cells[first:last], of, gone))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        first = last


def _labels(reading: PlannedRead, axis: int, span: Span) -> pa.Array:
    values, absent = reading.labels(axis, span)
    return to_arrow(values, reading.dimensions[axis].column, absent)


def _cut(shape: Sequence[int]) -> int:
    """The outermost dimension along which a batch has more than one position."""
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        inner *= shape[axis]
        if inner > _ROWS or not axis:
            return axis
    return 0


def _pieces(shape: Sequence[int], cut: int) -> Iterator[Region]:
    """Boxes of some 10^5 cells that follow each other in C order."""
    if not shape:
        yield ()
        return
    step = max(1, _ROWS // max(1, math.prod(shape[cut + 1 :])))
    whole = tuple((0, length) for length in shape[cut + 1 :])
    for outer in np.ndindex(*shape[:cut]):
        for start in range(0, shape[cut], step):
            ahead = tuple((place, place + 1) for place in outer)
            yield (*ahead, (start, min(start + step, shape[cut])), *whole)


def _broadcast(labels: pa.Array, axis: int, span: Span, box: tuple[int, ...]) -> pa.Array:
    """The labels at some positions of a dimension, for every cell of a box."""
    places = np.arange(*span, dtype=np.int32)
    sides = tuple(-1 if number == axis else 1 for number in range(len(box)))
    return labels.take(pa.array(np.broadcast_to(places.reshape(sides), box).reshape(-1)))


def _chunk_rows(array: zarr.Array[Any], region: Region) -> Iterator[pa.RecordBatch]:
    grid = chunk_grid(array)
    schema = arrow_schema(CHUNK_COLUMNS)
    whole = tuple(
        (start // size * size, min(-(-stop // size) * size, length))
        for (start, stop), size, length in zip(region, grid, array.shape, strict=True)
    )
    count = math.prod(
        -(-stop // size) - start // size for (start, stop), size in zip(whole, grid, strict=True)
    )
    for block in plan_box(whole, grid, max(1, count)):
        data = np.ascontiguousarray(array[slices(block)]).tobytes()
        starts = [start for start, _ in block]
        row = [
            array.path,
            [start // size for start, size in zip(starts, grid, strict=True)],
            starts,
            list(extent(block)),
            data,
        ]
        columns = [pa.array([cell], c.arrow) for cell, c in zip(row, CHUNK_COLUMNS, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
