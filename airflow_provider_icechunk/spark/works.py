"""What a job from a specification does, whatever its kind: change arrays first, then run tasks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.files import FilesWork
from airflow_provider_icechunk.spark.places import open_array
from airflow_provider_icechunk.spark.regions import plan_part
from airflow_provider_icechunk.spark.specification import (
    ArrayWrite,
    FilesWrite,
    VirtualWrite,
    Write,
)
from airflow_provider_icechunk.spark.tasks import GeneratedRegion, GeneratedWriter
from airflow_provider_icechunk.spark.virtual import VirtualWork, choose, scan_headers
from airflow_provider_icechunk.spark.work import Work, Writer
from airflow_provider_icechunk.spark.write_job import SparkWriteJob
from airflow_provider_icechunk.zarr_store.sessions import ForkSession, Session


@dataclass(frozen=True, slots=True)
class GeneratedWork:
    """An array, or a part of it, filled by a built-in generator."""

    write: ArrayWrite
    tasks: int | None

    def prepare(self, session: Session) -> None:
        """Refuse an array that is not there."""
        open_array(session, self.write.array)

    def writer(self, view: Session, at_once: int) -> GeneratedWriter:
        """Tasks of whole chunks (with shards, whole shards)."""
        array = open_array(view, self.write.array)
        tasks = self.tasks or 2 * at_once
        return GeneratedWriter(
            tuple(
                GeneratedRegion(self.write.array, self.write.generator, region)
                for region in plan_part(array, self.write.region, tasks, at_once)
            )
        )


@dataclass(frozen=True, slots=True)
class Together:
    """The tasks of several writers, numbered one after the other."""

    writers: tuple[Writer, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, writers: Sequence[Writer]) -> Together:
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


def work_for(writing: SparkWriteJob, write: Write, tasks: int | None) -> Work:
    """The work that an entry describes; for files, their headers are read on executors."""
    match write:
        case ArrayWrite():
            return GeneratedWork(write, tasks)
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
