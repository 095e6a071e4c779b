"""What every task of a write job does around the writing: a fork of its own, a fragment back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_provider_icechunk.format.fragments import Fragment, encode_fragment
from airflow_provider_icechunk.repository.jobs import JobFolder
from airflow_provider_icechunk.spark.progress import Meter
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.zarr_store.sessions import ForkSession

SCHEMA = "task long, name string, size long, fragment binary"
"""Columns of what a task returns, for Spark."""
_ARROW = pa.schema(
    [("task", pa.int64()), ("name", pa.string()), ("size", pa.int64()), ("fragment", pa.binary())]
)
LARGEST_MESSAGE = 8 << 20
"""Fragments above this size reach the driver through the storage, not through Spark."""

TaskWriter = Callable[[ForkSession, int], int]
"""Writes what the task of a number has to, through the session; returns how many bytes."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A writer whose bytes the driver sees when a task is finished."""

    write: TaskWriter
    meter: Meter

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Write what the task of a number has to."""
        size = self.write(fork, number)
        self.meter.add(size)
        return size


def kept_folder(storage: Storage, job: str) -> JobFolder:
    """Where finished tasks keep their fragments; apart from what is left for the commit."""
    return JobFolder(storage, f"{job}#tasks")


def run_tasks(
    fork: ForkSession,
    write: TaskWriter,
    names: Sequence[str],
    todo: Sequence[int],
    keep: bool,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run the tasks at the positions in a partition; one row for each."""
    for batch in batches:
        for position in batch.column(0).to_pylist():
            number = todo[position]
            fork.discard_changes()
            size = write(fork, number)
            yield answer(fork, number, size, name=names[number] if keep else None)


def answer(fork: ForkSession, number: int, size: int, *, name: str | None) -> pa.RecordBatch:
    """The row of a finished task; with a name, its fragment is kept for later attempts."""
    fragment = fork.fragment(f"task {number}")
    message: bytes | None = encode_fragment(fragment)
    if name is not None:
        _keep(fork, name, fragment)
        if message is not None and len(message) > LARGEST_MESSAGE:
            message = None
    return pa.RecordBatch.from_arrays(
        [
            pa.array([number], pa.int64()),
            pa.array([name], pa.string()),
            pa.array([size], pa.int64()),
            pa.array([message], pa.binary()),
        ],
        schema=_ARROW,
    )


def _keep(fork: ForkSession, name: str, fragment: Fragment) -> None:
    folder = kept_folder(fork.tree.engine.storage, fragment.job)
    folder.put_fragment(name, replace(fragment, job=folder.job))
