"""A write job on Spark: many tasks write chunks, one place merges, one commit or one fragment.

A job has a name that is the same on every attempt. The first attempt records on which snapshot it
stands, so that every later attempt stands on the same one: it finds the commit of an earlier
attempt, and it can use what earlier attempts have written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.fragments import Fragment, decode_fragment
from airflow_provider_icechunk.repository.conflicts import ConflictSolver
from airflow_provider_icechunk.repository.handoff import OnOverlap, WorkUnit, merge_fragments
from airflow_provider_icechunk.repository.jobs import JobFolder
from airflow_provider_icechunk.spark.environment import parent, refuse_orphan
from airflow_provider_icechunk.spark.job_record import (
    REUSABLE_FOR,
    Prepare,
    begin_job,
    commit_fragments,
)
from airflow_provider_icechunk.spark.places import RepositoryLike, opened
from airflow_provider_icechunk.spark.plan import check_complete
from airflow_provider_icechunk.spark.progress import progress
from airflow_provider_icechunk.spark.run_tasks import (
    SCHEMA,
    Counted,
    TaskWriter,
    kept_folder,
    run_tasks,
)
from airflow_provider_icechunk.zarr_store.sessions import Repository, Session

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job did."""

    job: str
    snapshot_id: str | None
    """The commit; `None` if the result was left for somebody else to commit."""
    replayed: bool
    """Whether an earlier attempt had made the commit and nothing was written now."""
    tasks: int
    resumed: int
    """Tasks that an earlier attempt had finished."""
    chunks: int
    size: int
    """Bytes of values that this attempt wrote."""
    seconds: float


class SparkWriteJob:
    """One transaction filled by Spark tasks.

    Made by `open`, which owns its transaction, or by `adopt`, which works for somebody else's.
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
        self._parent = parent()
        self._began = time.monotonic()
        self._fragments: list[Fragment] = []
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
        """Start the job `job` on a branch, or take it up again where an attempt left it.

        `prepare` has to make the same changes on every attempt; if it does not, the work of earlier
        attempts is not used. Give other work another job id: the same id means the same data.
        """
        repo = opened(repository)
        begun = begin_job(repo, job=job, branch=branch, prepare=prepare)
        return cls(spark, repo, begun.work, done=begun.committed_as)

    @classmethod
    def adopt(
        cls, spark: SparkSession, repository: RepositoryLike, work: WorkUnit | Mapping[str, Any]
    ) -> SparkWriteJob:
        """Work for a session that somebody else opened and will commit."""
        unit = work if isinstance(work, WorkUnit) else WorkUnit.from_json(work)
        return cls(spark, opened(repository), unit, done=None)

    @property
    def view(self) -> Session:
        """A session with the changes of `prepare`, to look at what there is to write."""
        return self.repository.resume(self.work)

    def stage(self, prepare: Prepare) -> None:
        """Change the arrays of an adopted session before tasks run.

        The changes travel with the fragment: whoever commits it takes over both. Of all jobs that
        write into one session only one may do so.
        """
        session = self.view
        prepare(session)
        self.work = session.work_unit(self.work.job)

    def run(
        self,
        names: Sequence[str],
        write: TaskWriter,
        *,
        resume: bool = True,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Run one task for each name; `write(session, number)` returns how many bytes it wrote.

        A name says what the task writes, and nothing else has it. With `resume`, what tasks of
        these names have finished in an earlier attempt is taken over.

        :param say: gets lines about tasks, bytes, rate and time left, now and then.
        """
        if len(set(names)) != len(names):
            raise InvalidInputError("two tasks have the same name, so they write the same chunks")
        kept = self._kept(names) if resume else {}
        todo = [number for number, name in enumerate(names) if name not in kept]
        found = [replace(kept[n], worker=f"task {i}") for i, n in enumerate(names) if n in kept]
        self._resumed += len(found)
        self._tasks += len(names)
        self._fragments += found
        if todo:
            with progress(self.spark, len(todo), say) if say else nullcontext() as meter:
                counted = write if meter is None else Counted(write, meter)
                fork = self.repository.fork(self.work)
                work = partial(run_tasks, fork, counted, tuple(names), tuple(todo), resume)
                self._collect(self.spark.range(0, len(todo), 1, len(todo)).mapInArrow(work, SCHEMA))
        check_complete(len(names), [_number(fragment) for fragment in self._fragments])

    def run_frame(self, frame: DataFrame) -> None:
        """Run tasks that are the partitions of a frame whose columns are those of `SCHEMA`."""
        self._tasks += self._collect(frame)
        numbers = [_number(fragment) for fragment in self._fragments]
        check_complete(len(numbers), [sorted(set(numbers)).index(number) for number in numbers])

    def merged(self, writer: str, *, on_overlap: OnOverlap = "error") -> Fragment:
        """One fragment of everything; refuses chunks that two tasks wrote."""
        staged = self.repository.fork(self.work).tree.base
        arrays = merge_fragments(
            self._fragments,
            staged=staged,
            job=self.work.job,
            on_overlap=on_overlap,
            show=self.repository.engine.show,
        )
        times = [one.since for one in self._fragments if one.has_files]
        since = min((time for time in times if time is not None), default=None)
        if None in times:
            since = None
        return Fragment(self.work.staged, self.work.job, writer, arrays, since)

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
            log.warning("job %s is committed already as %s", self.work.job, self.committed_as)
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

    def _collect(self, frame: DataFrame) -> int:
        # One action: the tasks are lazy, and a second action would write everything again.
        rows = frame.collect()
        folder = kept_folder(self.repository.storage, self.work.job)
        for row in sorted(rows, key=lambda row: int(row["task"])):
            self._size += int(row["size"])
            if row["fragment"] is None:
                (fragment,) = folder.fragments([row["name"]])
                fragment = replace(fragment, job=self.work.job)
            else:
                where = f"the fragment of task {row['task']}"
                fragment = decode_fragment(bytes(row["fragment"]), where=where)
            self._fragments.append(fragment)
        return len(rows)

    def _kept(self, names: Sequence[str]) -> dict[str, Fragment]:
        """What earlier attempts have finished of these tasks, by name."""
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
