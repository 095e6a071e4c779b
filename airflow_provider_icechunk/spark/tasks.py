"""What runs on an executor: write regions of arrays and hand back fragments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import zarr

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.fragments import Fragment, encode_fragment
from airflow_provider_icechunk.spark.generators import generate
from airflow_provider_icechunk.spark.plan import Region
from airflow_provider_icechunk.spark.specification import SessionDescription
from airflow_provider_icechunk.zarr_store.sessions import ForkSession, Repository

SCHEMA = "task long, fragment binary"
"""Columns of what a task returns, for Spark."""


@dataclass(frozen=True, slots=True)
class RegionTask:
    """One region of one array."""

    array: str
    generator: str
    region: Region


@dataclass(frozen=True, slots=True)
class Work:
    """All tasks of a job and the session they write for; travels to executors as JSON."""

    session: SessionDescription
    tasks: tuple[RegionTask, ...]

    def to_json(self) -> str:
        """The work as text."""
        tasks = [asdict(task) for task in self.tasks]
        return json.dumps({"session": self.session.model_dump(), "tasks": tasks})

    @classmethod
    def from_json(cls, text: str) -> Work:
        """The work in a text that `to_json` made."""
        value = json.loads(text)
        return cls(
            session=SessionDescription.model_validate(value["session"]),
            tasks=tuple(
                RegionTask(
                    array=task["array"],
                    generator=task["generator"],
                    region=tuple((start, stop) for start, stop in task["region"]),
                )
                for task in value["tasks"]
            ),
        )


def run_partition(work: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are in a partition; one row for each."""
    plan = Work.from_json(work)
    repository = Repository.open(plan.session.place.storage())
    for batch in batches:
        for number in batch.column(0).to_pylist():
            fork = repository.fork(plan.session.work_unit)
            fragment = write_regions(fork, [plan.tasks[number]], worker=str(number))
            columns = [pa.array([number], pa.int64()), pa.array([encode_fragment(fragment)])]
            yield pa.RecordBatch.from_arrays(columns, names=["task", "fragment"])


def write_regions(fork: ForkSession, tasks: Sequence[RegionTask], *, worker: str) -> Fragment:
    """Write regions through a forked session and return what was written."""
    for task in tasks:
        array = open_array(fork, task.array)
        values = generate(task.generator, task.region, array.shape)
        array[tuple(slice(start, stop) for start, stop in task.region)] = values
    return fork.fragment(worker)


def open_array(fork: ForkSession, path: str) -> zarr.Array[Any]:
    """An array of the session; a missing one is refused, because workers cannot create it."""
    node = zarr.open_group(fork.store, mode="r+").get(path.strip("/"))
    if not isinstance(node, zarr.Array):
        raise InvalidInputError(
            f"the session has no array {path!r}: create it when the session is opened "
            "(`arrays=` of IcechunkOpenSessionOperator)"
        )
    return node
