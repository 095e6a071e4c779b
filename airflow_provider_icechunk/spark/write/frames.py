"""Write frames into arrays: a row for each cell, or a chunk in each row.

Spark computes the chunk of each row and its position in it, and moves all rows of a chunk into one
task, which assembles the chunk. That costs many times as much as `write_regions` for the same
array: it is for tables, not for data that is already an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from pyspark.sql import DataFrame, functions

from airflow_provider_icechunk.engine.arrays.blocks import chunk_grid, put_values, whole_chunks
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.format.chunk_refs import Index
from airflow_provider_icechunk.engine.pipelines.job import Prepare
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.tree.boxes import Boxes, moved, of_cells
from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError, Kind
from airflow_provider_icechunk.spark.runtime import RepositoryLike, cores, open_array

from .job import JobResult, SparkWriteJob, say_in_log


def write_chunks(
    frame: DataFrame,
    repository: RepositoryLike,
    array: str,
    *,
    job: str,
    branch: str = "main",
    prepare: Prepare | None = None,
    chunk: str = "chunk",
    data: str = "data",
    encoded: bool = False,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
) -> JobResult:
    """Write a frame with a chunk in each row, in any order, and commit once.

    A chunk given twice is refused. Nothing is shuffled.

    :param chunk: the column with the number of the chunk in each dimension.
    :param data: the column with its bytes: the values in C order and the array's type, of the whole
        chunk or, at an edge, of the part inside; with `encoded`, the bytes as the codecs would
        encode them.
    """
    writing = SparkWriteJob.open(
        frame.sparkSession, repository, job=job, branch=branch, prepare=prepare
    )
    if writing.committed_as is None:
        open_array(writing.view, array)
        work = ChunkRows(array, encoded)
        rows = frame.select(frame[chunk].cast("array<bigint>"), frame[data].cast("binary"))
        writing.run_frame(rows, work)
    return writing.commit(message or f"write {array}", metadata=metadata, rebase_with=rebase_with)


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Writes rows of (chunk number, bytes) into one array."""

    array: str
    encoded: bool

    def write(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> int:
        """Write every row; returns the number of bytes."""
        array = open_array(fork, self.array)
        size = 0
        seen: set[Index] = set()

        def rows() -> Iterator[tuple[Index, bytes]]:
            nonlocal size
            for batch in batches:
                for number, data in zip(batch.column(0), batch.column(1), strict=True):
                    index = self._index(array, number.as_py(), seen)
                    raw = data.as_py()
                    size += len(raw or b"")
                    yield index, raw or b""

        if self.encoded:
            path = f"/{array.path}"
            for index, raw in rows():
                with fork.tree.recording({path: whole_chunks(array, [index])}):
                    fork.tree.put_chunk(path, index, raw)
        else:
            values = ((index, _values(array, index, raw)) for index, raw in rows())
            put_values(fork, array, values, record=True)
        return size

    def _index(self, array: zarr.Array[Any], number: Any, seen: set[Index]) -> Index:
        index = tuple(number or ())
        counts = grid_counts(array)
        if len(index) != len(counts) or not all(
            place is not None and 0 <= place < count
            for place, count in zip(index, counts, strict=True)
        ):
            raise InvalidInputError(f"{self.array!r} has {counts} chunks, but no chunk {number}")
        if index in seen:
            raise FragmentError(
                f"chunk {list(index)} of {self.array!r} occurs twice in the frame",
                kind=Kind.FRAGMENT_OVERLAP,
            )
        seen.add(index)
        return index


def grid_counts(array: zarr.Array[Any]) -> tuple[int, ...]:
    """How many chunks (with shards, shards) there are in each dimension."""
    pairs = zip(array.shape, chunk_grid(array), strict=True)
    return tuple(-(-length // chunk) for length, chunk in pairs)


def inner_shape(array: zarr.Array[Any], index: Index) -> tuple[int, ...]:
    """The shape of the part of a chunk that is inside its array."""
    return tuple(
        min(chunk, length - number * chunk)
        for number, chunk, length in zip(index, chunk_grid(array), array.shape, strict=True)
    )


def _values(array: zarr.Array[Any], index: Index, raw: bytes) -> NDArray[Any]:
    for shape in (chunk_grid(array), inner_shape(array, index)):
        if len(raw) == math.prod(shape) * array.dtype.itemsize:
            return np.frombuffer(raw, array.dtype).reshape(shape)
    raise InvalidInputError(
        f"chunk {list(index)} of {array.path!r} has {len(raw)} bytes; it needs "
        f"{math.prod(chunk_grid(array)) * array.dtype.itemsize}, or at an edge those inside alone"
    )


Missing = Literal["error", "fill", "keep"]
"""How to treat cells without a row in a chunk that has rows."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A column with evenly spaced values: position 0 is at `start`, the next at `start + step`."""

    column: str
    start: float = 0.0
    step: float = 1.0

    def position(self) -> str:
        """The position as a Spark expression; a value between two positions has none."""
        name = f"`{self.column.replace('`', '``')}`"
        exact = f"((cast({name} as double) - ({self.start!r}D)) / ({self.step!r}D))"
        if (self.start, self.step) == (0.0, 1.0):
            exact = f"cast({name} as double)"
        return f"if(abs({exact} - round({exact})) < 1e-6D, cast(round({exact}) as bigint), null)"


def write_dataframe(
    frame: DataFrame,
    repository: RepositoryLike,
    values: Mapping[str, str],
    dimensions: Sequence[str | Axis],
    *,
    job: str,
    branch: str = "main",
    prepare: Prepare | None = None,
    missing: Missing = "error",
    tasks: int | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
) -> JobResult:
    """Write a frame with a row for each cell and commit once.

    Rows outside the arrays, and two rows for one cell, are refused. A NULL is a missing cell.
    Chunks without any row stay as they are.

    :param values: columns of values, and the array each belongs to; the arrays share their shape
        and their chunks.
    :param dimensions: for each dimension the column with the position, or an `Axis`.
    :param missing: refuse chunks that lack cells, use the fill value there, or keep what is there.
    """
    writing = SparkWriteJob.open(
        frame.sparkSession, repository, job=job, branch=branch, prepare=prepare
    )
    if writing.committed_as is None:
        run_cells(writing, frame, values, dimensions, missing=missing, tasks=tasks)
    described = ", ".join(values.values())
    return writing.commit(
        message or f"write {described}", metadata=metadata, rebase_with=rebase_with
    )


def run_cells(
    writing: SparkWriteJob,
    frame: DataFrame,
    values: Mapping[str, str],
    dimensions: Sequence[str | Axis],
    *,
    missing: Missing,
    tasks: int | None,
    say: Callable[[str], None] | None = say_in_log,
) -> None:
    """Write a frame with a row for each cell as tasks of a job; the job is not committed."""
    arrays = [open_array(writing.view, path) for path in values.values()]
    _check_alike(arrays, dimensions)
    parts = tasks or min(math.prod(grid_counts(arrays[0])), 2 * cores(frame.sparkSession))
    placed = place_cells(frame, arrays[0], dimensions, list(values))
    gathered = placed.repartition(max(1, parts), "chunk").sortWithinPartitions("chunk")
    writing.run_frame(gathered, CellRows(tuple(values.values()), missing), say=say)


def place_cells(
    frame: DataFrame,
    array: zarr.Array[Any],
    dimensions: Sequence[str | Axis],
    values: Sequence[str],
) -> DataFrame:
    """The frame as (number of the chunk, position in the chunk, values); -1 for rows outside."""
    axes = [axis if isinstance(axis, Axis) else Axis(axis) for axis in dimensions]
    grid, counts = chunk_grid(array), grid_counts(array)
    chunk, place, inside = "0L", "0L", ["true"]
    for axis, length, size, count in zip(axes, array.shape, grid, counts, strict=True):
        position = axis.position()
        chunk = f"({chunk} * {count} + ({position} div {size}))"
        place = f"({place} * {size} + ({position} % {size}))"
        inside.append(f"coalesce({position} between 0 and {length - 1}, false)")
    where = " and ".join(inside)
    return frame.select(
        functions.expr(f"if({where}, {chunk}, -1L)").alias("chunk"),
        functions.expr(f"if({where}, {place}, 0L)").alias("place"),
        *(frame[name].alias(f"value_{number}") for number, name in enumerate(values)),
    )


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows of one chunk."""

    chunk: int
    place: NDArray[np.int64]
    values: tuple[NDArray[Any], ...]
    known: tuple[NDArray[np.bool_], ...]
    """For each column of values, which rows are not NULL."""


@dataclass(frozen=True, slots=True)
class CellRows:
    """Assembles chunks of some arrays from rows that are sorted by chunk."""

    arrays: tuple[str, ...]
    missing: Missing

    def write(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> int:
        """Write every chunk that has rows; returns the number of bytes."""
        arrays = [open_array(fork, path) for path in self.arrays]
        size = 0
        for cells in chunks_of(batches):
            if cells.chunk < 0:
                raise InvalidInputError(
                    f"{len(cells.place)} rows lie outside of {self.arrays[0]!r}, between two "
                    f"positions, or have no position; its shape is {arrays[0].shape}"
                )
            index = tuple(map(int, np.unravel_index(cells.chunk, grid_counts(arrays[0]))))
            for array, values, known in zip(arrays, cells.values, cells.known, strict=True):
                place = cells.place[known]
                whole = self._assemble(array, index, place, values[known])
                with fork.tree.recording({f"/{array.path}": self._written(array, index, place)}):
                    put_values(fork, array, iter([(index, whole)]))
                size += whole.nbytes
        return size

    def _written(self, array: zarr.Array[Any], index: Index, place: NDArray[np.int64]) -> Boxes:
        """The cells of a chunk that count as written: all, or with `keep` those with a row."""
        if self.missing != "keep":
            return whole_chunks(array, [index])
        grid = chunk_grid(array)
        cells = np.zeros(math.prod(grid), np.bool_)
        cells[place] = True
        starts = [number * chunk for number, chunk in zip(index, grid, strict=True)]
        return tuple(moved(box, starts) for box in of_cells(cells.reshape(grid)))

    def _assemble(
        self, array: zarr.Array[Any], index: Index, place: NDArray[np.int64], values: NDArray[Any]
    ) -> NDArray[Any]:
        grid = chunk_grid(array)
        inner = tuple(slice(length) for length in inner_shape(array, index))
        counts = np.bincount(place, minlength=math.prod(grid)).reshape(grid)[inner]
        self._check(array, index, counts)
        whole = np.full(grid, array.fill_value, dtype=array.dtype)
        if self.missing == "keep" and not counts.all():
            whole[inner] = _old(array, index)
        whole.reshape(-1)[place] = _cast(array, values)
        return whole[inner]

    def _check(self, array: zarr.Array[Any], index: Index, counts: NDArray[np.int64]) -> None:
        wrong, what = counts > 1, "cells have two rows or more"
        if not wrong.any() and self.missing == "error":
            wrong, what = counts == 0, "cells have no row (`missing` says what to do about it)"
        if wrong.any():
            first = [
                int(number * chunk + place)
                for number, chunk, place in zip(
                    index, chunk_grid(array), np.argwhere(wrong)[0], strict=True
                )
            ]
            raise InvalidInputError(
                f"in chunk {list(index)} of {array.path!r} {int(wrong.sum())} {what}; the first "
                f"is at {first}"
            )


def chunks_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Cells]:
    """Rows that are sorted by chunk, chunk by chunk, however they are cut into batches."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        numbers = batch.column(0).to_numpy()
        borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(borders):
            if start == stop:
                continue
            part = batch.slice(start, stop - start)
            if waiting and waiting[0].column(0)[0] != part.column(0)[0]:
                yield _cells(waiting)
                waiting = []
            waiting.append(part)
    if waiting:
        yield _cells(waiting)


def _cells(parts: Sequence[pa.RecordBatch]) -> Cells:
    table = pa.Table.from_batches(parts)
    columns = [table.column(number).combine_chunks() for number in range(2, table.num_columns)]
    return Cells(
        chunk=int(table.column(0)[0].as_py()),
        place=table.column(1).to_numpy(),
        values=tuple(_plain(column) for column in columns),
        known=tuple(column.is_valid().to_numpy(zero_copy_only=False) for column in columns),
    )


def _plain(column: pa.Array) -> NDArray[Any]:
    """Values without NULLs, which NumPy would convert to floats."""
    if column.null_count and not pa.types.is_string(column.type):
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _cast(array: zarr.Array[Any], values: NDArray[Any]) -> NDArray[Any]:
    try:
        return values.astype(array.dtype, casting="same_kind", copy=False)
    except TypeError:
        raise InvalidInputError(
            f"values of type {values.dtype} do not fit into {array.path!r}, which holds "
            f"{array.dtype}; cast the column first"
        ) from None


def _old(array: zarr.Array[Any], index: Index) -> NDArray[Any]:
    grid, shape = chunk_grid(array), inner_shape(array, index)
    return np.asarray(
        array[
            tuple(
                slice(number * chunk, number * chunk + length)
                for number, chunk, length in zip(index, grid, shape, strict=True)
            )
        ]
    )


def _check_alike(arrays: Sequence[zarr.Array[Any]], dimensions: Sequence[str | Axis]) -> None:
    if not arrays:
        raise InvalidInputError("no value column was given")
    first = arrays[0]
    for array in arrays:
        if (array.shape, chunk_grid(array)) != (first.shape, chunk_grid(first)):
            raise InvalidInputError(
                f"{array.path!r} and {first.path!r} differ in shape or chunks: write them one "
                "after the other"
            )
    if len(dimensions) != first.ndim:
        raise InvalidInputError(
            f"{first.path!r} has {first.ndim} dimensions, {len(dimensions)} columns were given"
        )
