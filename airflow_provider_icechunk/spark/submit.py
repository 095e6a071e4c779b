"""The application for `spark-submit`: what a job is given, and the driver that runs it.

It never commits. The Airflow task that opened the session owns the transaction: a driver whose task
was killed may live on, and then nothing it writes is ever seen.

Everything arrives as JSON and is closed: an unknown key is refused. A write may name a function
that the driver can import; who submits a job could submit any application as well.
"""

from __future__ import annotations

import hashlib
import json
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.arrays.rechunk import MEMORY
from airflow_provider_icechunk.engine.datasets.dataset import Placement
from airflow_provider_icechunk.engine.ingest.plan import choose
from airflow_provider_icechunk.engine.pipelines.description import (
    ClosedModel,
    SessionDescription,
    describe,
    other_release,
)
from airflow_provider_icechunk.engine.pipelines.reruns import appends
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

from .runtime import cores, die_with_parent, one_line, open_array, start


def _keys_as_text(value: object) -> object:
    """Keys as JSON has them, also of a job that was never JSON."""
    if not isinstance(value, dict):
        return value
    spoken = {str(key): part for key, part in value.items()}
    if len(spoken) < len(value):
        raise ValueError("a dimension is named by its number twice: once as a number, once as text")
    return spoken


Region = Annotated[dict[str, tuple[NonNegativeInt, NonNegativeInt]], BeforeValidator(_keys_as_text)]
"""The part to write, first and end by name or number of dimension; by default all of it. What it
leaves of a chunk is kept as it is."""


class ArrayWrite(ClosedModel):
    """One array to fill, or a part of it, by one of the built-in generators."""

    kind: Literal["generator"] = "generator"
    array: str
    generator: str
    region: Region = Field(default={})


class FunctionWrite(ClosedModel):
    """Arrays to fill, or a part of them, by a function of the user's that executors call."""

    kind: Literal["function"] = "function"
    function: str = Field(pattern=r"^[\w.]+:[\w.]+$")
    """`package.module:name`; called as `name(region, **arguments)`."""
    array: str | None = None
    variables: tuple[str, ...] = ()
    """Several arrays at once: the function returns a `Dataset` or a mapping."""
    arguments: dict[str, JsonValue] = Field(default={})
    region: Region = Field(default={})

    @property
    def arrays(self) -> tuple[str, ...]:
        """Everything to fill."""
        return self.variables if self.array is None else (self.array,)

    @model_validator(mode="after")
    def _one_of_both(self) -> FunctionWrite:
        if (self.array is None) == (not self.variables):
            raise ValueError("give either `array` or `variables`")
        return self


FileNames = Annotated[tuple[str, ...], Field(min_length=1)]
"""Absolute paths or URLs in the order of the data; `*` in a path stands for sorted names."""


class FilesWrite(ClosedModel):
    """Many files whose values are copied into one array, as `ingest_files` does."""

    kind: Literal["files"]
    files: FileNames
    variable: str
    array: str
    axis: NonNegativeInt | str = 0
    """The dimension of the array along which the files follow each other: its number or name."""
    start: NonNegativeInt | None = None


class VirtualWrite(ClosedModel):
    """Many files whose chunks are referred to, as `ingest_virtual` does."""

    kind: Literal["virtual"]
    files: FileNames
    variables: dict[str, str] | tuple[str, ...] | None = None
    along: str | NonNegativeInt = "time"
    load: tuple[str, ...] | None = None
    into: str = ""
    start: NonNegativeInt | None = None
    checksum: Literal["auto", "etag", "modified"] = "auto"
    authorize: Annotated[tuple[str, ...], Field(min_length=1)]
    """URL prefixes that the job may read, with the credentials of its own environment; the
    repository has to declare them as virtual chunk containers."""


class RechunkWrite(ClosedModel):
    """An array that gets other chunks, as `rechunk` does."""

    kind: Literal["rechunk"]
    array: str
    chunks: tuple[PositiveInt, ...]
    shards: tuple[PositiveInt, ...] | None = None
    memory: PositiveInt = MEMORY
    """Bytes of values that a task holds at once."""


def _kind(value: object) -> str:
    given = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if given is None and isinstance(value, dict) and "function" in value:
        return "function"
    return "generator" if given is None else str(given)


Write = Annotated[
    Annotated[ArrayWrite, Tag("generator")]
    | Annotated[FunctionWrite, Tag("function")]
    | Annotated[FilesWrite, Tag("files")]
    | Annotated[VirtualWrite, Tag("virtual")]
    | Annotated[RechunkWrite, Tag("rechunk")],
    Discriminator(_kind),
]
"""What a job can write; without `kind`, arrays by a function or a generator."""


class JobSpecification(ClosedModel):
    """A whole job."""

    session: SessionDescription
    writes: tuple[Write, ...] = Field(min_length=1)
    tasks: int | None = Field(default=None, ge=1, le=100_000)
    """Tasks for each write; by default two for each core that Spark has."""

    @property
    def appends(self) -> bool:
        """Whether anything is written at the end of arrays, wherever that is by then."""
        return any(appends(write.model_dump()) for write in self.writes)

    @property
    def writer(self) -> str:
        """A name for what this job writes: the same again on a retry, another for another job."""
        writes = sorted(write.model_dump_json(exclude_defaults=True) for write in self.writes)
        return f"spark-{hashlib.sha256(json.dumps(writes).encode()).hexdigest()[:16]}"


def parse_job(argument: str) -> JobSpecification:
    """The job in JSON text, or in the file that `@path` names."""
    text = Path(argument[1:]).read_text() if argument.startswith("@") else argument
    try:
        return JobSpecification.model_validate_json(text)
    except ValidationError as error:
        raise InvalidInputError(
            f"the job specification is wrong: {describe(error)}{other_release(text)}"
        ) from None


@dataclass(frozen=True, slots=True)
class GeneratedWork:
    """An array, or a part of it, filled by a built-in generator."""

    write: ArrayWrite
    tasks: int | None

    def prepare(self, session: Session) -> None:
        """Refuse an array that is not there."""
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
    """The tasks of several writers, numbered one after the other."""

    writers: tuple[TaskWriter, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, writers: Sequence[TaskWriter]) -> Together:
        """All tasks of the writers."""
        return cls(tuple(writers), tuple(accumulate(len(writer.names) for writer in writers)))

    @property
    def names(self) -> list[str]:
        """What each task writes, as a name."""
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
            raise InvalidInputError(f"{file!r}: only absolute paths can have a `*`")
        matching = sorted(map(str, Path("/").glob(file.lstrip("/"))))
        if not matching:
            raise InvalidInputError(f"no file matches {file!r}")
        found += matching
    return tuple(found)


_LONGEST_ERROR = 4000
RESULT_MARK = "ICECHUNK_RESULT"
"""Starts the line of the output that holds the report as JSON."""


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
