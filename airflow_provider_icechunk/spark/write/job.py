"""A write job on Spark: many tasks write chunks, the driver merges them into one commit or one
fragment.

A job has a name that is the same on every attempt. The first attempt records its base snapshot, so
every later attempt has the same base: it finds the commit of an earlier attempt, and can use what
earlier attempts have written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.engine.arrays.regions import check_complete
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.pipelines.job import (
    REUSABLE_FOR,
    Prepare,
    begin_job,
    commit_fragments,
)
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.workers.codec import (
    Fragment,
    decode_fragment,
    encode_fragment,
)
from airflow_provider_icechunk.engine.workers.jobs import JobFolder, is_writer_name
from airflow_provider_icechunk.engine.workers.merge import OnOverlap, boxes_of, merge_fragments
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError, Kind, TaskError
from airflow_provider_icechunk.spark.progress import Meter, progress
from airflow_provider_icechunk.spark.releases import task_context
from airflow_provider_icechunk.spark.runtime import (
    RepositoryLike,
    on_executors,
    one_line,
    opened,
    parent,
    refuse_orphan,
)

log = logging.getLogger(__name__)

SCHEMA = "task long, name string, size long, fragment binary"
"""Columns of what a task returns, for Spark."""
_ARROW = pa.schema(
    [("task", pa.int64()), ("name", pa.string()), ("size", pa.int64()), ("fragment", pa.binary())]
)
LARGEST_MESSAGE = 8 << 20
"""Fragments above this size reach the driver through the storage, not through Spark."""

TaskWriter = Callable[[ForkSession, int], int]
"""Writes the task with a given number through the session; returns how many bytes it wrote."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A writer that reports its bytes to the driver when a task is finished."""

    write: TaskWriter
    meter: Meter

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Write the task with a given number."""
        size = self.write(fork, number)
        self.meter.add(size)
        return size


def kept_folder(storage: Storage, job: str) -> JobFolder:
    """Where finished tasks keep their fragments, apart from those left for the commit."""
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
            try:
                size = write(fork, number)
            except IcechunkError:
                raise
            except Exception as error:  # what a user runs may raise anything
                where = f"task {number + 1} of {len(names)} ({names[number]!r})"
                raise TaskError(f"{where} raised {one_line(error)}") from error
            yield answer(fork, number, size, name=names[number] if keep else None)


class FrameWork(Protocol):
    """The work on the rows of a frame."""

    def write(self, fork: ForkSession, batches: Iterator[pa.RecordBatch]) -> int:
        """Write every row; returns the number of bytes."""


def write_partition(
    fork: ForkSession, work: FrameWork, meter: Meter | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition of a frame, which is one task."""
    context = task_context()
    fork.discard_changes()
    size = work.write(fork, batches)
    if meter is not None:
        meter.add(size)
    yield answer(fork, context.partitionId(), size, name=None)


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
    folder = kept_folder(fork.tree.core.storage, fragment.job)
    folder.put_fragment(name, replace(fragment, job=folder.job))


def say_in_log(line: str) -> None:
    """Log a line about progress, in an Airflow task to the task's log."""
    log.info("%s", line)


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job."""

    job: str
    snapshot_id: str | None
    """The commit; `None` if the result was left for another process to commit."""
    replayed: bool
    """Whether an earlier attempt made the commit and this one wrote nothing."""
    tasks: int
    resumed: int
    """Tasks that an earlier attempt had finished."""
    chunks: int
    size: int
    """Bytes of values that this attempt wrote."""
    seconds: float

    def counts(self) -> dict[str, object]:
        """How much was done, for the report that a driver leaves."""
        return {
            "tasks": self.tasks,
            "resumed": self.resumed,
            "chunks": self.chunks,
            "size": self.size,
            "seconds": self.seconds,
        }


class SparkWriteJob:
    """One transaction filled by Spark tasks.

    Created by `open`, which owns its transaction, or by `adopt`, which works for another one.
    Nothing is visible to readers before `commit`.
    """

    def __init__(
        self, spark: SparkSession, repository: Repository, work: WorkUnit, *, done: str | None
    ) -> None:
        self.spark = spark
        self.repository = repository
        self.work = work
        self.committed_as = done
        """The snapshot that an earlier attempt committed, if there is one."""
        self.labels: Mapping[str, tuple[str, ...]] = {}
        """Labels of growing dimensions that the job writes, for the record of the commit."""
        self._parent = parent()
        self._began = time.monotonic()
        self._fragments: list[Fragment] = []
        self._names: set[str] = set()
        self._tasks = self._resumed = self._size = 0

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        repository: RepositoryLike,
        *,
        job: str,
        branch: str = "main",
        prepare: Prepare | None = None,
    ) -> SparkWriteJob:
        """Start the job `job` on a branch, or resume it where an attempt left it.

        `prepare` must make the same changes on every attempt; otherwise the work of earlier
        attempts is not used. Use another job id for other work: the same id means the same data.
        """
        repo = opened(repository)
        begun = begin_job(repo, job=job, branch=branch, prepare=prepare)
        return cls(spark, repo, begun.work, done=begun.committed_as)

    @classmethod
    def adopt(
        cls, spark: SparkSession, repository: RepositoryLike, work: WorkUnit | Mapping[str, Any]
    ) -> SparkWriteJob:
        """Work for a session that another process opened and will commit."""
        unit = work if isinstance(work, WorkUnit) else WorkUnit.from_json(work)
        return cls(spark, opened(repository), unit, done=None)

    @property
    def view(self) -> Session:
        """A session with the changes of `prepare`, for reading."""
        return self.repository.resume(self.work)

    def stage(self, prepare: Prepare) -> None:
        """Change the arrays of an adopted session before tasks run.

        The changes travel with the fragment: the commit includes both. Only one of the jobs that
        write to a session may do so.
        """
        session = self.view
        prepare(session)
        self.work = session.work_unit(self.work.job)
        # Chunks already written belong to the same arrays, whatever else was created since.
        self._fragments = [replace(one, base=self.work.staged) for one in self._fragments]

    def run(
        self,
        names: Sequence[str],
        write: TaskWriter,
        *,
        resume: bool = True,
        say: Callable[[str], None] | None = say_in_log,
    ) -> None:
        """Run one task for each name; `write(session, number)` returns how many bytes it wrote.

        A name identifies what the task writes and is unique. With `resume`, finished tasks of these
        names from an earlier attempt are reused. May be called again for other tasks; all of them
        together are one commit.

        :param say: receives lines about tasks, bytes, rate and time left, from time to time; by
            default they are logged.
        """
        self._check_names(names)
        kept = self._kept(names) if resume else {}
        todo = [number for number, name in enumerate(names) if name not in kept]
        found = [replace(kept[n], worker=f"task {i}") for i, n in enumerate(names) if n in kept]
        if todo:
            with progress(self.spark, len(todo), say) if say else nullcontext() as meter:
                counted = write if meter is None else Counted(write, meter)
                fork = self.repository.fork(self.work)
                work = partial(run_tasks, fork, counted, tuple(names), tuple(todo), resume)
                frame = self.spark.range(0, len(todo), 1, len(todo)).mapInArrow(work, SCHEMA)
                found = [*found, *self._collect(frame)]
        self._resumed += len(names) - len(todo)
        check_complete(len(names), [_number(fragment) for fragment in found])
        self._take(found, len(names))

    def run_frame(
        self,
        rows: DataFrame,
        work: FrameWork,
        *,
        say: Callable[[str], None] | None = say_in_log,
    ) -> None:
        """Run tasks that are the partitions of a frame."""
        with progress(self.spark, None, say) if say else nullcontext() as meter:
            fork = self.repository.fork(self.work)
            write = partial(write_partition, fork, work, meter)
            found = self._collect(rows.mapInArrow(write, SCHEMA))
        numbers = [_number(fragment) for fragment in found]
        check_complete(len(numbers), [sorted(set(numbers)).index(number) for number in numbers])
        self._take(found, max(numbers, default=-1) + 1)

    def _take(self, fragments: Sequence[Fragment], tasks: int) -> None:
        """Count the tasks of a run after those of the runs before."""
        first = self._tasks
        self._fragments += [
            replace(one, worker=f"task {first + _number(one)}", labels=self.labels)
            for one in fragments
        ]
        self._tasks += tasks

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse, before any task runs, names under which results cannot be stored."""
        wrong = next((name for name in names if not is_writer_name(name)), None)
        if wrong is not None:
            raise InvalidInputError(
                f"{wrong!r} cannot name a task: use letters, digits, '-' and '_', at most 100",
                kind=Kind.INVALID_NAME,
            )
        if len(set(names)) != len(names) or not self._names.isdisjoint(names):
            raise InvalidInputError("two tasks have the same name, so they write the same chunks")
        self._names.update(names)

    def merged(self, writer: str) -> Fragment:
        """One fragment of everything; refuses chunks that two tasks wrote."""
        staged = self.repository.fork(self.work).tree.base
        arrays = merge_fragments(
            self._fragments,
            staged=staged,
            job=self.work.job,
            generation=self.repository.core.generation,
        )
        times = [one.since for one in self._fragments if one.has_files]
        since = min((time for time in times if time is not None), default=None)
        if None in times:
            since = None
        said = {node_id: boxes_of(self._fragments, node_id) for node_id in arrays}
        boxes = {node_id: found for node_id, found in said.items() if found}
        return Fragment(self.work.staged, self.work.job, writer, arrays, since, boxes, self.labels)

    def leave(self, writer: str) -> tuple[str, JobResult]:
        """Put the merged fragment into the job's folder; returns its key and a report."""
        fragment = self.merged(writer)
        key = JobFolder(self.repository.storage, self.work.job).put_fragment(writer, fragment)
        return key, self._result(None, len(fragment))

    def commit(
        self,
        message: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        on_overlap: OnOverlap = "error",
        rebase_with: ConflictSolver | None = None,
    ) -> JobResult:
        """Commit metadata and chunks as one snapshot, once for all attempts of the job.

        Refused if this is the driver of a `spark-submit` or an Airflow task that has ended.
        """
        if self.committed_as is not None:
            log.warning("job %s is already committed as %s", self.work.job, self.committed_as)
            return self._result(self.committed_as, 0, replayed=True)
        refuse_orphan(self._parent)
        identity, chunks = commit_fragments(
            self.repository,
            self.work,
            self._fragments,
            message=message,
            metadata=metadata,
            on_overlap=on_overlap,
            rebase_with=rebase_with,
        )
        return self._result(identity, chunks)

    def _collect(self, frame: DataFrame) -> list[Fragment]:
        # One action: the tasks are lazy, and a second action would write everything again.
        rows = on_executors(frame.collect)
        found = []
        folder = kept_folder(self.repository.storage, self.work.job)
        for row in sorted(rows, key=lambda row: int(row["task"])):
            self._size += int(row["size"])
            if row["fragment"] is None:
                (fragment,) = folder.fragments([row["name"]])
                fragment = replace(fragment, job=self.work.job)
            else:
                where = f"the fragment of task {row['task']}"
                fragment = decode_fragment(bytes(row["fragment"]), where=where)
            found.append(fragment)
        return found

    def _kept(self, names: Sequence[str]) -> dict[str, Fragment]:
        """The results of these tasks from earlier attempts, by name."""
        storage = self.repository.storage
        folder = kept_folder(storage, self.work.job)
        oldest = storage.now() - REUSABLE_FOR
        young = {
            listed.key.removeprefix(folder.prefix).removesuffix(".fragment")
            for listed in storage.scan(folder.prefix)
            if listed.created_at > oldest
        }
        usable = [name for name in names if name in young]
        found = zip(usable, folder.fragments(usable), strict=True) if usable else ()
        return {
            name: replace(fragment, job=self.work.job)
            for name, fragment in found
            if fragment.base == self.work.staged
        }

    def _result(self, identity: str | None, chunks: int, *, replayed: bool = False) -> JobResult:
        return JobResult(
            job=self.work.job,
            snapshot_id=identity,
            replayed=replayed,
            tasks=self._tasks,
            resumed=self._resumed,
            chunks=chunks,
            size=self._size,
            seconds=round(time.monotonic() - self._began, 3),
        )


def _number(fragment: Fragment) -> int:
    return int(fragment.worker.removeprefix("task "))
