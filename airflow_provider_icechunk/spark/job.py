"""The driver of an array job: plan the work, run it as tasks, leave one fragment for the commit.

It never commits. The Airflow task that opened the session owns the transaction: a driver whose task
was killed may live on, and then nothing it writes is ever seen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.repository.jobs import JobFolder
from airflow_provider_icechunk.spark.environment import die_with_parent, start
from airflow_provider_icechunk.spark.places import cores
from airflow_provider_icechunk.spark.specification import (
    JobSpecification,
    VirtualWrite,
    parse_job,
)
from airflow_provider_icechunk.spark.works import Together, work_for
from airflow_provider_icechunk.spark.write_job import SparkWriteJob
from airflow_provider_icechunk.zarr_store.sessions import Repository, Session

_LONGEST_ERROR = 4000
RESULT_MARK = "ICECHUNK_RESULT"
"""Starts the line of the output that holds the report as JSON."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job that the only argument specifies; the entry point for `spark-submit`."""
    die_with_parent()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        raise SystemExit("usage: main.py '<job specification as JSON>' | @<file>")
    try:
        specification = parse_job(given[0])
        spark = start(f"icechunk {specification.session.repository}")
        try:
            result = run(spark, specification)
        finally:
            spark.stop()
    except IcechunkError as error:
        raise SystemExit(f"icechunk: {error}") from error
    _say(f"{RESULT_MARK} {json.dumps(result, sort_keys=True)}")


def run(spark: SparkSession, specification: JobSpecification) -> dict[str, object]:
    """Write everything that is specified and leave the fragment; returns a small report.

    The report, or what went wrong, is also left as JSON beside the fragment.
    """
    session = specification.session
    granted = {
        prefix: None
        for write in specification.writes
        if isinstance(write, VirtualWrite)
        for prefix in write.authorize
    }
    repository = Repository.open(
        session.place.storage(), authorize_virtual_chunk_access=granted or None
    )
    writing = SparkWriteJob.adopt(spark, repository, session.work_unit)
    folder = JobFolder(writing.repository.storage, writing.work.job)
    try:
        report = _write(writing, specification)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        folder.put_result(specification.writer, {"error": text[:_LONGEST_ERROR]})
        raise
    folder.put_result(specification.writer, report)
    return report


def _write(writing: SparkWriteJob, specification: JobSpecification) -> dict[str, object]:
    works = [work_for(writing, write, specification.tasks) for write in specification.writes]

    def prepare(session: Session) -> None:
        for work in works:
            work.prepare(session)

    writing.stage(prepare)
    at_once = cores(writing.spark)
    writer = Together.of([work.writer(writing.view, at_once) for work in works])
    names = writer.names
    _say(f"icechunk: {len(names)} tasks to run for {writing.repository.storage.location}")
    writing.run(names, writer, say=_say)
    key, result = writing.leave(specification.writer)
    return {
        "fragment": key,
        "writer": specification.writer,
        "tasks": result.tasks,
        "resumed": result.resumed,
        "chunks": result.chunks,
        "size": result.size,
        "seconds": result.seconds,
        "appends": specification.appends,
    }


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
