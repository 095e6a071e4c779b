"""Write frames that hold a chunk in each row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame

from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError, Kind
from airflow_provider_icechunk.repository.conflicts import ConflictSolver
from airflow_provider_icechunk.spark.encode import Index, chunk_grid, put_values
from airflow_provider_icechunk.spark.job_record import Prepare
from airflow_provider_icechunk.spark.places import RepositoryLike, open_array
from airflow_provider_icechunk.spark.run_tasks import SCHEMA, answer
from airflow_provider_icechunk.spark.write_job import JobResult, SparkWriteJob
from airflow_provider_icechunk.zarr_store.sessions import ForkSession


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

    A chunk that occurs twice is refused. Nothing is shuffled.

    :param chunk: the column with the number of the chunk in each dimension.
    :param data: the column with its bytes: the values in C order and the array's type, of the whole
        chunk or, at an edge, of the part inside; with `encoded`, what the codecs would have made.
    """
    writing = SparkWriteJob.open(
        frame.sparkSession, repository, job=job, branch=branch, prepare=prepare
    )
    if writing.committed_as is None:
        open_array(writing.view, array)
        work = ChunkRows(array, encoded)
        fork = writing.repository.fork(writing.work)
        rows = frame.select(frame[chunk].cast("array<bigint>"), frame[data].cast("binary"))
        writing.run_frame(rows.mapInArrow(partial(_write_partition, fork, work), SCHEMA))
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
            for index, raw in rows():
                fork.tree.put_chunk(f"/{array.path}", index, raw)
        else:
            put_values(fork, array, ((index, _values(array, index, raw)) for index, raw in rows()))
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
    """The shape of the part of a chunk that lies inside of its array."""
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


def _write_partition(
    fork: ForkSession, work: ChunkRows, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    fork.discard_changes()
    size = work.write(fork, batches)
    yield answer(fork, context.partitionId(), size, name=None)
