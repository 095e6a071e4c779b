"""The application for `spark-submit`: the driver that runs a job.

It never commits. The Airflow task that opened the session owns the transaction: a driver may
outlive its killed task, and then nothing it writes is ever visible.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.datasets.dataset import Placement
from airflow_provider_icechunk.engine.ingest.choice import choose
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError
from airflow_provider_icechunk.spark.write.files import FilesWork
from airflow_provider_icechunk.spark.write.functions import FunctionWork
from airflow_provider_icechunk.spark.write.generated import GeneratedRegion, GeneratedWriter
from airflow_provider_icechunk.spark.write.job import SparkWriteJob
from airflow_provider_icechunk.spark.write.places import labels_of_run, place_of_write
from airflow_provider_icechunk.spark.write.rechunk import RechunkWork
from airflow_provider_icechunk.spark.write.regions import plan_exactly
from airflow_provider_icechunk.spark.write.virtual import VirtualWork, scan_headers
from airflow_provider_icechunk.spark.write.work import TaskWriter, Work

from .progress import print_line
from .runtime import cores, die_with_parent, one_line, open_array, start
from .specification import (
    ArrayWrite,
    FilesWrite,
    FunctionWrite,
    JobSpecification,
    RechunkWrite,
    VirtualWrite,
    Write,
    parse_job,
)


@dataclass(frozen=True, slots=True)
class GeneratedWork:
    """An array, or a part of it, filled by a built-in generator."""

    write: ArrayWrite
    tasks: int | None

    def prepare(self, session: Session) -> None:
        """Refuse an array that does not exist."""
        open_array(session, self.write.array)

    def writer(self, view: Session, at_once: int) -> GeneratedWriter:
        """Tasks that share no chunk (with shards, no shard)."""
        array = open_array(view, self.write.array)
        tasks = self.tasks or 2 * at_once
        return GeneratedWriter(
            tuple(
                GeneratedRegion(self.write.array, self.write.generator, region)
                for region in plan_exactly(array, self.write.region, tasks, at_once)
            )
        )


@dataclass(frozen=True, slots=True)
class Together:
    """The tasks of several writers, numbered consecutively."""

    writers: tuple[TaskWriter, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, writers: Sequence[TaskWriter]) -> Together:
        """All tasks of the writers."""
        return cls(tuple(writers), tuple(accumulate(len(writer.names) for writer in writers)))

    @property
    def names(self) -> list[str]:
        """The name of what each task writes."""
        return [name for writer in self.writers for name in writer.names]

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Do the work of a task."""
        place = bisect_right(self.ends, number)
        return self.writers[place](fork, number - (self.ends[place - 1] if place else 0))


def work_for(
    writing: SparkWriteJob, write: Write, tasks: int | None, placement: Placement | None = None
) -> Work:
    """The work that an entry describes; for files, their headers are read on executors.

    :param placement: where functions write along dimensions that their region does not name.
    """
    match write:
        case ArrayWrite():
            return GeneratedWork(write, tasks)
        case FunctionWrite():
            region = place_of_write(writing.view, write.arrays, placement, write.region)
            return FunctionWork(write.arrays, write.function, write.arguments, region, tasks)
        case FilesWrite():
            return FilesWork.of(
                writing.spark,
                named_files(write.files),
                write.variable,
                write.array,
                axis=write.axis,
                start=write.start,
                tasks=tasks,
            )
        case VirtualWrite():
            choice = choose(
                write.variables,
                along=write.along,
                load=write.load,
                into=write.into,
                checksum=write.checksum,
                missing=write.missing,
                differing=write.differing,
            )
            fork = writing.repository.fork(writing.work)
            headers = scan_headers(writing.spark, fork, named_files(write.files), choice)
            return VirtualWork(headers, choice, write.start, tasks)
        case RechunkWrite():
            return RechunkWork(write.array, write.chunks, write.shards, write.memory)


def named_files(files: Sequence[str]) -> tuple[str, ...]:
    """The files, with patterns of paths replaced by the sorted names that match."""
    found: list[str] = []
    for file in files:
        if "*" not in file:
            found.append(file)
            continue
        if not file.startswith("/"):
            raise InvalidInputError(f"{file!r}: only absolute paths can contain a `*`")
        matching = sorted(map(str, Path("/").glob(file.lstrip("/"))))
        if not matching:
            raise InvalidInputError(f"no file matches {file!r}")
        found += matching
    return tuple(found)


_LONGEST_ERROR = 4000
RESULT_MARK = "ICECHUNK_RESULT"
"""The prefix of the output line with the report as JSON."""


def run_job(arguments: Sequence[str] | None = None) -> None:
    """Run the job that the only argument specifies: what an application file calls."""
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
    print_line(f"{RESULT_MARK} {json.dumps(result, sort_keys=True)}")


def run(spark: SparkSession, specification: JobSpecification) -> dict[str, object]:
    """Write everything specified and leave the fragment; returns a small report.

    The report, or the error, is also left as JSON next to the fragment.
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
        folder.put_result(specification.writer, {"error": one_line(error)[:_LONGEST_ERROR]})
        raise
    folder.put_result(specification.writer, report)
    return report


def _write(writing: SparkWriteJob, specification: JobSpecification) -> dict[str, object]:
    _, placement = specification.session.declared() or (None, None)
    writing.labels = labels_of_run(placement)
    works = [
        work_for(writing, write, specification.tasks, placement) for write in specification.writes
    ]

    def prepare(session: Session) -> None:
        for work in works:
            work.prepare(session)

    writing.stage(prepare)
    at_once = cores(writing.spark)
    writer = Together.of([work.writer(writing.view, at_once) for work in works])
    names = writer.names
    print_line(f"icechunk: {len(names)} tasks to run for {writing.repository.storage.location}")
    writing.run(names, writer, say=print_line)
    key, result = writing.leave(specification.writer)
    return {
        "fragment": key,
        "writer": specification.writer,
        **result.counts(),
        "appends": specification.appends,
    }
