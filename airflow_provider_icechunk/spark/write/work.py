"""Work for a job: first the arrays are adjusted, then tasks write; and a job for one such work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.pipelines.job import Prepare
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.spark.runtime import RepositoryLike, cores

from .job import JobResult, SparkWriteJob


class TaskWriter(Protocol):
    """Tasks with names; travels to executors."""

    @property
    def names(self) -> list[str]:
        """The name of what each task writes."""
        ...

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Do the work of a task; returns how many bytes it wrote."""
        ...


class Work(Protocol):
    """One entry of a job's list."""

    def prepare(self, session: Session) -> None:
        """Adjust the arrays if necessary."""
        ...

    def writer(self, view: Session, at_once: int) -> TaskWriter:
        """The tasks, planned on the session as all of the job's entries have prepared it."""
        ...


def commit_work(
    spark: SparkSession,
    repository: RepositoryLike,
    work: Work,
    *,
    job: str,
    branch: str,
    prepare: Prepare | None,
    resume: bool,
    message: str,
    metadata: Mapping[str, Any] | None,
    rebase_with: ConflictSolver | None,
) -> JobResult:
    """Do one work as a job of its own: after `prepare`, and in one commit."""

    def make(session: Session) -> None:
        if prepare is not None:
            prepare(session)
        work.prepare(session)

    writing = SparkWriteJob.open(spark, repository, job=job, branch=branch, prepare=make)
    if writing.committed_as is None:
        writer = work.writer(writing.view, cores(spark))
        writing.run(writer.names, writer, resume=resume)
    return writing.commit(message, metadata=metadata, rebase_with=rebase_with)
