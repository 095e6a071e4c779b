"""Checks of large arrays in Spark tasks: executors examine blocks, the driver combines the results.

They are combined in the order of the blocks, as in one process, so the report has the same values
to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.arrays.regions import extent, plan_parts
from airflow_provider_icechunk.engine.checks.checks import Check, Verdict
from airflow_provider_icechunk.engine.checks.run import ArrayPart
from airflow_provider_icechunk.engine.checks.run import run_checks as run_with
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session

from .runtime import cores, on_executors

_SCHEMA = "task long, answer string"
_ARROW = pa.schema([("task", pa.int64()), ("answer", pa.string())])
_MOST_BLOCKS = 10_000
"""The most blocks of one task, whose results are returned as a single text."""


def run_checks(
    spark: SparkSession, repository: Repository, session: Session, wanted: Sequence[Check]
) -> tuple[list[Verdict], dict[str, Any]]:
    """All verdicts on the snapshot of a session, and the report on them."""
    return run_with(repository, session, wanted, spread=SparkSpread(spark))


@dataclass(frozen=True, slots=True)
class SparkSpread:
    """Runs the work on blocks of an array as Spark tasks."""

    spark: SparkSession

    def __call__(
        self, part: ArrayPart, name: str, arguments: Sequence[Any], blocks: int
    ) -> Iterator[str]:
        """What was found in the blocks, in order."""
        size = math.prod(extent(part.box)) * part.array.dtype.itemsize
        tasks = min(blocks, max(plan_parts(size, cores(self.spark)), -(-blocks // _MOST_BLOCKS)))
        ends = [blocks * number // tasks for number in range(tasks + 1)]
        work = partial(_run, part.session, part.path, part.box, name, tuple(arguments), ends)
        frame = self.spark.range(0, tasks, 1, tasks).mapInArrow(work, _SCHEMA)
        rows = sorted(on_executors(frame.collect), key=lambda row: int(row["task"]))
        yield from (str(row["answer"]) for row in rows)


def _run(
    session: Session,
    path: str,
    box: tuple[tuple[int, int], ...],
    name: str,
    arguments: tuple[Any, ...],
    ends: Sequence[int],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Examine the blocks of the tasks in a partition; one row per task."""
    array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    part = ArrayPart(session, array, path, box)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            answer = part.run(name, arguments, ends[number], ends[number + 1])
            columns = [pa.array([number], pa.int64()), pa.array([answer], pa.string())]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)
