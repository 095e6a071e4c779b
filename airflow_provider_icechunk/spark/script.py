"""A user's script as a job: `with pipeline_job() as job: ...`.

Under Airflow the script works for a session that the operator opened: it leaves one fragment, and
the operator commits. Run by hand, it opens the repository, commits once and prints what it did. An
exception inside the block leaves nothing that could be committed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import Field, JsonValue, ValidationError
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.engine.arrays.regions import DimensionKey, Parts
from airflow_provider_icechunk.engine.closed import ClosedModel, describe
from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset, Placement
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.engine.pipelines.description import SessionDescription, other_release
from airflow_provider_icechunk.engine.pipelines.job import Prepare
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError
from airflow_provider_icechunk.spark.write.files import FilesWork
from airflow_provider_icechunk.spark.write.frames import Axis, Missing, run_cells
from airflow_provider_icechunk.spark.write.functions import Function, FunctionWork
from airflow_provider_icechunk.spark.write.job import SparkWriteJob, say_in_log
from airflow_provider_icechunk.spark.write.places import labels_of_run, place_of_run
from airflow_provider_icechunk.spark.write.work import Work

from .progress import print_line
from .runtime import cores, die_with_parent, one_line, opened, start

_LONGEST_ERROR = 4000


class HandedJob(ClosedModel):
    """The last argument of a script, from the task that submitted it."""

    session: SessionDescription
    writes: tuple[dict[str, JsonValue], ...] = ()
    arguments: dict[str, JsonValue] = Field(default={})


@dataclass(slots=True)
class PipelineJob:
    """The object with which a script or a decorated function writes; all of it is one commit."""

    spark: SparkSession
    writing: SparkWriteJob
    dataset: IcechunkDataset | None = None
    placement: Placement | None = None
    """The position of the run in the dataset."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The task's `arguments`, or `--argument name=value` when run by hand."""
    say: Callable[[str], None] | None = say_in_log
    appends: bool = False

    @property
    def session(self) -> Session:
        """The session so far, for reading; anything written to it is lost."""
        return self.writing.view

    @property
    def at(self) -> dict[str, list[Any]]:
        """The labels of the run, by dimension."""
        return {} if self.placement is None else dict(self.placement.labels)

    def prepare(self, change: Prepare) -> None:
        """Create, resize or describe arrays with `change(session)`, in the same commit."""
        self.writing.stage(change)

    def write_regions(
        self,
        array: str | Sequence[str],
        function: Function,
        region: Parts | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        tasks: int | None = None,
    ) -> None:
        """Fill an array, or several at once, with what `function(region, **arguments)` returns.

        :param region: the part to write, by name or number of dimension; by default the place of
            the run, or all of it.
        """
        arrays = (array,) if isinstance(array, str) else tuple(array)
        chosen = place_of_run(self.session, arrays, self.placement) if region is None else region
        self._run(FunctionWork(arrays, function, dict(arguments or {}), chosen, tasks))

    def write_dataframe(
        self,
        frame: DataFrame,
        values: Mapping[str, str],
        dimensions: Sequence[str | Axis],
        *,
        missing: Missing = "error",
        tasks: int | None = None,
    ) -> None:
        """Write a frame with a row per cell, like the function `write_dataframe`."""
        run_cells(
            self.writing, frame, values, dimensions, missing=missing, tasks=tasks, say=self.say
        )

    def ingest(
        self,
        files: Sequence[str],
        variable: str,
        array: str,
        *,
        axis: DimensionKey = 0,
        start: int | None = None,
        tasks: int | None = None,
    ) -> None:
        """Copy one variable of many files into an array, like the function `ingest_files`."""
        self.appends = self.appends or start is None
        work = FilesWork.of(self.spark, files, variable, array, axis=axis, start=start, tasks=tasks)
        self.writing.stage(work.prepare)
        self._run(work, prepared=True)

    def _run(self, work: Work, *, prepared: bool = False) -> None:
        view = self.session
        if not prepared:
            work.prepare(view)
        writer = work.writer(view, cores(self.spark))
        self.writing.run(writer.names, writer, say=self.say)


@contextmanager
def pipeline_job(
    arguments: Sequence[str] | None = None,
    *,
    dataset: IcechunkDataset | None = None,
    spark: SparkSession | None = None,
) -> Iterator[PipelineJob]:
    """A job to write with: for the Airflow task that submitted this script, or by hand.

    :param arguments: by default those of the command line.
    :param dataset: ensures that the arrays exist and finds the position of `--at` when the
        script is run by hand; a task passes its own.
    :param spark: a session to use; by default one is started, and stopped at the end.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    handed = _handed(given)
    try:
        if handed is None:
            with _by_hand(given, dataset, spark) as job:
                yield job
        else:
            die_with_parent()
            name = f"icechunk {handed.session.repository}"
            writer = _writer([Path(sys.argv[0]).name, *given[:-1]], handed)
            with (
                _spark(spark, name) as running,
                adopted_job(
                    running, handed.session, writer, arguments=handed.arguments, say=print_line
                ) as job,
            ):
                yield job
    except IcechunkError as error:
        raise SystemExit(f"icechunk: {error}") from error


@contextmanager
def adopted_job(
    spark: SparkSession,
    described: SessionDescription,
    writer: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = say_in_log,
) -> Iterator[PipelineJob]:
    """A job for a session opened elsewhere; at the end it leaves one fragment.

    :param writer: a name for what is written: the same on a retry, another for other work.
    """
    repository = Repository.open(described.place.storage())
    writing = SparkWriteJob.adopt(spark, repository, described.work_unit)
    dataset, placement = described.declared() or (None, None)
    writing.labels = labels_of_run(placement)
    folder = JobFolder(repository.storage, writing.work.job)
    job = PipelineJob(spark, writing, dataset, placement, dict(arguments or {}), say)
    try:
        yield job
        key, result = writing.leave(writer)
    except Exception as error:
        folder.put_result(writer, {"error": one_line(error)[:_LONGEST_ERROR]})
        raise
    folder.put_result(writer, {**result.counts(), "fragment": key, "appends": job.appends})
    if say is not None:
        say(f"icechunk: {result.tasks} tasks left {result.chunks} chunks for the commit")


@contextmanager
def _by_hand(
    given: Sequence[str], dataset: IcechunkDataset | None, spark: SparkSession | None
) -> Iterator[PipelineJob]:
    chosen = _parser(dataset).parse_args(given)
    if chosen.repository is None:
        raise InvalidInputError("pass --repository with the folder or s3:// address to write to")
    repository = opened(chosen.repository)
    branch = chosen.branch or (dataset.branch if dataset else "main")
    session = repository.writable_session(branch)
    placement = None
    if dataset is not None:
        placement = ensure(session, dataset, dataset.place(dict(chosen.at)))
    elif chosen.at:
        raise InvalidInputError("--at needs a dataset: pipeline_job(dataset=...)")
    work = session.work_unit(f"by-hand/{uuid4().hex}")
    with _spark(spark, Path(sys.argv[0]).name) as running:
        writing = SparkWriteJob(running, repository, work, done=None)
        writing.labels = labels_of_run(placement)
        job = PipelineJob(running, writing, dataset, placement, dict(chosen.argument), print_line)
        yield job
        result = writing.commit(chosen.message or f"{Path(sys.argv[0]).name} by hand")
    print_line(
        f"icechunk: committed {result.snapshot_id} to {branch} of {repository.storage.location}: "
        f"{result.tasks} tasks, {result.chunks} chunks"
    )


def _parser(dataset: IcechunkDataset | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Writes into an Icechunk repository and commits once. Under Airflow the last "
        "argument is the session as JSON, and the task commits."
    )
    parser.add_argument("--repository", help="a folder or s3://bucket/prefix")
    parser.add_argument("--branch", help="by default that of the dataset, or main")
    parser.add_argument("--message", help="of the commit")
    parser.add_argument(
        "--at",
        action="append",
        type=_pair,
        default=[],
        metavar="DIM=LABEL",
        help="where the run belongs: "
        + (", ".join(dataset.growing) if dataset and dataset.growing else "needs a dataset"),
    )
    parser.add_argument(
        "--argument", action="append", type=_json_pair, default=[], metavar="NAME=VALUE"
    )
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _json_pair(text: str) -> tuple[str, Any]:
    name, value = _pair(text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _handed(given: Sequence[str]) -> HandedJob | None:
    """The job in the last argument, as JSON or in the file that `@path` names."""
    last = given[-1] if given else ""
    if not last.startswith(("{", "@")):
        return None
    text = Path(last[1:]).read_text() if last.startswith("@") else last
    try:
        return HandedJob.model_validate_json(text)
    except ValidationError as error:
        raise SystemExit(
            f"icechunk: the last argument is not the job of an Airflow task: {describe(error)}"
            f"{other_release(text)}"
        ) from None


def _writer(own: Sequence[str], handed: HandedJob) -> str:
    """A name for what the script writes: the same again on a retry, another for other work."""
    text = json.dumps(
        [list(own), handed.writes, handed.arguments, handed.session.placement], sort_keys=True
    )
    return f"script-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@contextmanager
def _spark(given: SparkSession | None, name: str) -> Iterator[SparkSession]:
    if given is not None:
        yield given
        return
    spark = start(name)
    try:
        yield spark
    finally:
        spark.stop()
