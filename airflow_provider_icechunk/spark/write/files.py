"""Many files into one array along a dimension: HDF5 and NetCDF4 files, or Zarr arrays.

A first pass reads only headers. Tasks are then planned by chunks of the target, not by files, so
a chunk that two files share is written by one task, which opens both.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.arrays.blocks import chunk_grid, write_block
from airflow_provider_icechunk.engine.arrays.regions import (
    DimensionKey,
    Region,
    Span,
    axis_of,
    check_complete,
    dimension_names,
    extent,
    plan_box,
    slices,
)
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.ingest.hdf5 import load_h5py
from airflow_provider_icechunk.engine.pipelines.job import Prepare
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.runtime import RepositoryLike, cores, on_executors, open_array

from .job import JobResult
from .regions import LARGE_BLOCK_BYTES, plan_part, region_name
from .work import commit_work

_HEADERS = "file long, shape string"


def ingest_files(
    spark: SparkSession,
    repository: RepositoryLike,
    files: Sequence[str],
    variable: str,
    array: str,
    *,
    job: str,
    axis: DimensionKey = 0,
    start: int | None = None,
    branch: str = "main",
    prepare: Prepare | None = None,
    tasks: int | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    resume: bool = True,
) -> JobResult:
    """Copy one variable of many files into an array, one file after the other, and commit once.

    :param files: paths that driver and executors can open, in the order of the data.
    :param variable: the path of the variable inside each file.
    :param axis: the dimension along which the files follow each other: its number, or its name in
        the array.
    :param start: where the first file begins in the array; by default at its end. The array grows
        as far as necessary. Cells of the array that share a chunk with new ones are kept.
    :param prepare: creates the array (with length 0 along `axis`, to start at its end).
    """
    work = FilesWork.of(spark, files, variable, array, axis=axis, start=start, tasks=tasks)
    return commit_work(
        spark,
        repository,
        work,
        job=job,
        branch=branch,
        prepare=prepare,
        resume=resume,
        message=message or f"ingest {len(files)} files into {array}",
        metadata=metadata,
        rebase_with=rebase_with,
    )


@dataclass(frozen=True, slots=True)
class FilesWork:
    """Files to copy into an array of a session: first the array grows, then tasks write."""

    files: tuple[str, ...]
    variable: str
    array: str
    axis: DimensionKey
    start: int | None
    tasks: int | None
    shapes: tuple[tuple[int, ...], ...]
    """The shape of the variable in each file."""

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        files: Sequence[str],
        variable: str,
        array: str,
        *,
        axis: DimensionKey,
        start: int | None,
        tasks: int | None,
    ) -> FilesWork:
        """Read the headers of the files on executors."""
        shapes = _headers(spark, tuple(files), variable)
        return cls(tuple(files), variable, array, axis, start, tasks, tuple(shapes))

    def prepare(self, session: Session) -> None:
        """Extend the array to hold the files, if they match each other and the array."""
        target = open_array(session, self.array)
        axis, lengths = self._along(target)
        length = target.shape[axis]
        end = (length if self.start is None else self.start) + sum(lengths)
        if end > length:
            shape = list(target.shape)
            shape[axis] = end
            target.resize(tuple(shape))

    def writer(self, view: Session, at_once: int) -> FileSlabs:
        """The tasks, by chunks of the array as `prepare` made it."""
        target = open_array(view, self.array)
        axis, lengths = self._along(target)
        total = sum(lengths)
        first = target.shape[axis] - total if self.start is None else self.start
        borders = (first + np.cumsum([0, *lengths])).tolist()
        regions = plan_part(target, {axis: (first, first + total)}, self.tasks, at_once)
        return FileSlabs(
            self.array, self.variable, axis, self.files, tuple(borders), tuple(regions)
        )

    def _along(self, target: zarr.Array[Any]) -> tuple[int, list[int]]:
        """The axis as a number, and the length of each file along it."""
        axis = axis_of(self.axis, dimension_names(target), repr(target.path))
        lengths, cross = _measure(self.files, self.shapes, self.variable, axis)
        _check_target(target, cross, axis)
        return axis, lengths


@dataclass(frozen=True, slots=True)
class FileSlabs:
    """Writes regions of an array from the files that cover them."""

    array: str
    variable: str
    axis: int
    files: tuple[str, ...]
    borders: tuple[int, ...]
    """Where each file begins in the array, and where the last one ends."""
    regions: tuple[Region, ...]

    @property
    def names(self) -> list[str]:
        """The name of what each task writes."""
        source = json.dumps([self.variable, self.axis, self.files, self.borders])
        digest = hashlib.sha256(source.encode()).hexdigest()
        return [region_name(f"{self.array} {digest}", region) for region in self.regions]

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Write the region of a task, block by block."""
        target = open_array(fork, self.array)
        region = self.regions[number]
        parts = -(-math.prod(extent(region)) * target.dtype.itemsize // LARGE_BLOCK_BYTES)
        size = 0
        for block in plan_box(region, chunk_grid(target), max(1, parts)):
            size += write_block(fork, target, block, self._values(target, block))
        return size

    def _values(self, target: zarr.Array[Any], block: Region) -> NDArray[Any]:
        low, high = block[self.axis]
        values = np.empty(extent(block), target.dtype)
        for begin, end in ((low, self.borders[0]), (self.borders[-1], high)):
            kept = (max(low, begin), min(high, end))
            if kept[0] < kept[1]:
                values[self._part(block, kept)] = target[slices(self._cut(block, kept))]
        first, last = bisect_right(self.borders, low) - 1, bisect_left(self.borders, high)
        for number in range(max(0, first), min(last, len(self.files))):
            file, begin, end = self.files[number], self.borders[number], self.borders[number + 1]
            span = (max(low, begin), min(high, end))
            if span[0] < span[1]:
                inside = self._cut(block, (span[0] - begin, span[1] - begin))
                with _opened(file, self.variable) as source:
                    read = np.asarray(source[slices(inside)])
                values[self._part(block, span)] = _fitting(read, target, file)
        return values

    def _cut(self, block: Region, span: Span) -> Region:
        return tuple(span if axis == self.axis else s for axis, s in enumerate(block))

    def _part(self, block: Region, span: Span) -> tuple[slice, ...]:
        low = block[self.axis][0]
        return tuple(
            slice(span[0] - low, span[1] - low) if axis == self.axis else slice(None)
            for axis in range(len(block))
        )


def _fitting(values: NDArray[Any], target: zarr.Array[Any], file: str) -> NDArray[Any]:
    if not np.can_cast(values.dtype, target.dtype, "same_kind"):
        raise InvalidInputError(
            f"{file}: values of type {values.dtype} do not fit into {target.path!r}, which holds "
            f"{target.dtype}"
        )
    return values.astype(target.dtype, copy=False)


def _check_target(target: zarr.Array[Any], cross: tuple[int, ...], axis: int) -> None:
    own = tuple(length for number, length in enumerate(target.shape) if number != axis)
    if own != cross:
        raise InvalidInputError(
            f"the files have the shape {cross} beside dimension {axis}, {target.path!r} has {own}"
        )


def _headers(spark: SparkSession, files: tuple[str, ...], variable: str) -> list[tuple[int, ...]]:
    """The shape of the variable in each file."""
    if not files:
        raise InvalidInputError("there are no files to ingest")
    parts = min(len(files), 2 * cores(spark))
    read = partial(_read_headers, files, variable)
    rows = on_executors(spark.range(0, len(files), 1, parts).mapInArrow(read, _HEADERS).collect)
    check_complete(len(files), [row["file"] for row in rows])
    return [tuple(json.loads(row["shape"])) for row in sorted(rows, key=lambda row: row["file"])]


def _measure(
    files: Sequence[str], shapes: Sequence[tuple[int, ...]], variable: str, axis: int
) -> tuple[list[int], tuple[int, ...]]:
    """The length of each file along the axis, and the rest of the shape, which all must share."""
    crosses = []
    for file, shape in zip(files, shapes, strict=True):
        if axis >= len(shape):
            raise InvalidInputError(f"{file}: {variable!r} has no dimension {axis}")
        crosses.append(shape[:axis] + shape[axis + 1 :])
        if crosses[-1] != crosses[0]:
            raise InvalidInputError(
                f"{file}: beside dimension {axis} the shape is {crosses[-1]}, in {files[0]} it is "
                f"{crosses[0]}"
            )
    return [shape[axis] for shape in shapes], crosses[0]


def _read_headers(
    files: Sequence[str], variable: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with _opened(files[number], variable) as source:
                shape = json.dumps([int(length) for length in source.shape])
            columns = [pa.array([number], pa.int64()), pa.array([shape])]
            yield pa.RecordBatch.from_arrays(columns, names=["file", "shape"])


@contextmanager
def _opened(file: str, variable: str) -> Iterator[Any]:
    """A variable of a file: a dataset of HDF5, or an array of a Zarr folder."""
    if Path(file).is_dir():
        yield zarr.open_array(file, path=variable, mode="r")
        return
    h5py = load_h5py()
    try:
        opened = h5py.File(file, "r")
    except OSError as error:
        raise InvalidInputError(f"{file}: not an HDF5 or NetCDF4 file ({error})") from None
    with opened as source:
        if not isinstance(source.get(variable), h5py.Dataset):
            raise InvalidInputError(f"{file}: there is no variable {variable!r}")
        yield source[variable]
