"""Write arrays from a function of the region: the data never enters the Java side."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.arrays.blocks import chunk_grid, is_remote, write_block
from airflow_provider_icechunk.engine.arrays.regions import (
    Parts,
    Region,
    by_axis,
    dimension_names,
    extent,
    plan_box,
    plan_parts,
    show,
    slices,
    span_of,
)
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.pipelines.job import Prepare
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.exceptions import InvalidInputError, TaskError
from airflow_provider_icechunk.spark.runtime import RepositoryLike, cores, one_line, open_array

from .job import JobResult, SparkWriteJob

RegionFunction = Callable[[tuple[slice, ...]], NDArray[Any]]
"""From the slices of a region to its values. Spark pickles it and calls it on executors."""

BLOCK_BYTES, LARGE_BLOCK_BYTES = 8 << 20, 64 << 20
"""Values that a task holds at once: it calls the function for blocks of about this size.

Small blocks stay in the processor's caches from the function to the file; large ones are stored
several chunks at once if storing mostly waits.
"""


@dataclass(frozen=True, slots=True)
class RegionWriter:
    """Writes planned regions of one array."""

    array: str
    regions: tuple[Region, ...]
    function: RegionFunction

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Write the region of a task, block by block."""
        array = open_array(fork, self.array)
        region = self.regions[number]
        block_bytes = LARGE_BLOCK_BYTES if is_remote(fork) else BLOCK_BYTES
        parts = -(-math.prod(extent(region)) * array.dtype.itemsize // block_bytes)
        size = 0
        for block in plan_box(region, chunk_grid(array), max(1, parts)):
            size += self._write(fork, array, block, number)
        return size

    def _write(self, fork: ForkSession, array: zarr.Array[Any], block: Region, number: int) -> int:
        where = f"task {number + 1} of {len(self.regions)}, {show(block)} of {self.array!r}"
        try:
            values = np.asarray(self.function(slices(block)))
        except Exception as error:  # the user's own code may raise anything
            raise TaskError(f"{where}: the function raised {one_line(error)}") from error
        try:
            return write_block(fork, array, block, values)
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: {error}") from None

    @property
    def names(self) -> list[str]:
        """The name of what each task writes."""
        return [region_name(self.array, region) for region in self.regions]


def write_regions(
    spark: SparkSession,
    repository: RepositoryLike,
    array: str,
    fn: RegionFunction,
    *,
    job: str,
    branch: str = "main",
    prepare: Prepare | None = None,
    region: Parts | None = None,
    tasks: int | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    resume: bool = True,
) -> JobResult:
    """Fill an array, or a part of it, with `fn(slices) -> values` and commit once.

    :param job: an id that is the same on every attempt; submitted twice, it commits once.
    :param prepare: creates or resizes arrays; part of the same commit.
    :param region: the part to write, by name or number of dimension. The rest of a chunk is read
        and kept.
    :param tasks: how many; the default depends on the size of the data and the cores of Spark.
    """
    writing = SparkWriteJob.open(spark, repository, job=job, branch=branch, prepare=prepare)
    if writing.committed_as is None:
        opened = open_array(writing.view, array)
        regions = plan_exactly(opened, {} if region is None else region, tasks, cores(spark))
        work = RegionWriter(array, tuple(regions), fn)
        writing.run(work.names, work, resume=resume)
    return writing.commit(message or f"write {array}", metadata=metadata, rebase_with=rebase_with)


def region_name(array: str, region: Region) -> str:
    """A stable, unique name for a region of an array."""
    text = f"{array.strip('/')} {region}"
    return f"region-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def plan_exactly(
    array: zarr.Array[Any], chosen: Parts, tasks: int | None, at_once: int
) -> list[Region]:
    """Regions that share no chunk (with shards, no shard) and cover an array, or a part of it.

    A key that names no dimension, or a range beyond the array, is refused: ignoring it would write
    all of the array, or nothing.
    """
    names = dimension_names(array)
    parts = by_axis(chosen, names, repr(array.path))
    box = tuple(
        span_of(parts.get(axis, (0, length)), names[axis], length)
        for axis, length in enumerate(array.shape)
    )
    return _planned(array, box, tasks, at_once)


def plan_part(
    array: zarr.Array[Any], chosen: Parts, tasks: int | None, at_once: int
) -> list[Region]:
    """Like `plan_exactly`, but the part is widened to whole chunks."""
    names = dimension_names(array)
    parts = by_axis(chosen, names, repr(array.path))
    box = []
    for axis, (length, chunk) in enumerate(zip(array.shape, chunk_grid(array), strict=True)):
        start, stop = span_of(parts.get(axis, (0, length)), names[axis], length)
        whole = (start // chunk * chunk, min(length, -(-stop // chunk) * chunk))
        box.append(whole if start < stop else (start, stop))
    return _planned(array, tuple(box), tasks, at_once)


def _planned(array: zarr.Array[Any], box: Region, tasks: int | None, at_once: int) -> list[Region]:
    size = math.prod(extent(box)) * array.dtype.itemsize
    return plan_box(box, chunk_grid(array), tasks or plan_parts(size, at_once))
