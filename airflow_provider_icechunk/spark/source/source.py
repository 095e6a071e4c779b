"""The data source `icechunk` of Spark: read arrays and changes, write frames of chunks.

Spark runs these methods in processes of their own and pickles what they return, so nothing may be
remembered in an object after it was made. Imports are late: Spark imports this module to look at
its name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_icechunk.format.fragments import Fragment
    from airflow_provider_icechunk.spark.reading import Reading
    from airflow_provider_icechunk.spark.source_options import SourceOptions
    from airflow_provider_icechunk.spark.streaming_sink import IcechunkStreamWriter
    from airflow_provider_icechunk.spark.streaming_source import IcechunkStreamReader

log = logging.getLogger(__name__)

_CORES = 8
"""Spark does not tell a data source how many tasks it can run at once."""


class IcechunkSource(DataSource):  # type: ignore[misc]
    """`format("icechunk")` of `spark.read`, `readStream`, `frame.write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """What users write after `format`."""
        return "icechunk"

    def __reduce__(self) -> tuple[Any, ...]:
        from airflow_provider_icechunk.spark.shipping import arrive, package_root

        return (arrive, (package_root(), self.options))

    def schema(self) -> str:
        """The columns of a read."""
        from airflow_provider_icechunk.spark.columns import spark_schema
        from airflow_provider_icechunk.spark.streaming_changes import CHANGE_COLUMNS

        if self._options().layout == "changes":
            return spark_schema(CHANGE_COLUMNS)
        return spark_schema(self._plan().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what the options name at this moment: a snapshot, or changes up to it."""
        from airflow_provider_icechunk.spark.streaming_source import IcechunkChangesReader

        del schema
        options = self._options()
        if options.layout == "changes":
            return IcechunkChangesReader(options)
        return IcechunkReader(self._plan())

    def writer(self, schema: StructType, overwrite: bool) -> IcechunkWriter:
        """A writer for frames with the columns `chunk` and `data`."""
        return IcechunkWriter.begin(self._options(), _chunk_columns(schema, overwrite))

    def streamReader(self, schema: StructType) -> IcechunkStreamReader:  # noqa: N802
        """A stream of what commits to a branch change."""
        from airflow_provider_icechunk.spark.streaming_source import IcechunkStreamReader

        del schema
        options = self._options()
        if options.layout != "changes":
            raise InvalidInputError(
                'a stream consists of changes: set the option `layout` to "changes"'
            )
        return IcechunkStreamReader(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> IcechunkStreamWriter:  # noqa: N802
        """A writer for one batch of a stream with the columns `chunk` and `data`."""
        from airflow_provider_icechunk.spark.streaming_sink import IcechunkStreamWriter

        return IcechunkStreamWriter.begin(self._options(), _chunk_columns(schema, overwrite))

    def _options(self) -> SourceOptions:
        from airflow_provider_icechunk.spark.source_options import parse_options

        return parse_options(self.options)

    def _plan(self) -> Reading:
        from airflow_provider_icechunk.spark.read import open_snapshot
        from airflow_provider_icechunk.spark.reading import Selection, plan_reading

        options = self._options()
        assert options.layout != "changes"
        session = open_snapshot(
            options.repository(), options.branch, options.tag, options.snapshot, options.asof
        )
        return plan_reading(
            session,
            options.node,
            layout=options.layout,
            variables=options.variables,
            selection=Selection(options.isel, options.sel),
            coordinates=options.coordinates,
            tasks=options.tasks,
            cores=_CORES,
        )


@dataclass
class _Part(InputPartition):  # type: ignore[misc]
    number: int


class IcechunkReader(DataSourceReader):  # type: ignore[misc]
    """Reads what was planned."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task of the plan."""
        return [_Part(number) for number in range(len(self._reading.tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; a plan without tasks has one partition without rows."""
        from airflow_provider_icechunk.spark.read import read_task

        if isinstance(partition, _Part):
            yield from read_task(self._reading, self._reading.tasks[partition.number])


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What one task wrote."""

    fragment: bytes


class IcechunkWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Tasks write chunk files; `commit` makes them one snapshot, once for each job id."""

    def __init__(
        self, options: SourceOptions, work: dict[str, Any], columns: tuple[int, int], done: bool
    ) -> None:
        self._options = options
        self._work = work
        self._columns = columns
        self._done = done

    @classmethod
    def begin(cls, options: SourceOptions, columns: tuple[int, int]) -> IcechunkWriter:
        """Begin the job, which fixes the snapshot that all tasks stand on."""
        from uuid import uuid4

        from airflow_provider_icechunk.spark.job_record import begin_job
        from airflow_provider_icechunk.spark.places import open_array

        repository = options.repository()
        job = options.job or f"spark-source/{uuid4().hex}"
        begun = begin_job(repository, job=job, branch=options.branch or "main")
        open_array(repository.fork(begun.work), options.node)
        return cls(options, begun.work.to_json(), columns, begun.committed_as is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the chunks of one partition."""
        from pyspark import TaskContext

        from airflow_provider_icechunk.format.fragments import encode_fragment
        from airflow_provider_icechunk.spark.chunk_rows import ChunkRows

        if self._done:
            return Written(b"")
        context = TaskContext.get()
        assert context is not None
        fork = self._options.repository().fork(self._work)
        batches = (batch.select(list(self._columns)) for batch in iterator)
        ChunkRows(self._options.node, self._options.encoded).write(fork, batches)
        return Written(encode_fragment(fork.fragment(f"task {context.partitionId()}")))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit once; an earlier commit of the same job is left as it is."""
        from airflow_provider_icechunk.repository.handoff import WorkUnit
        from airflow_provider_icechunk.spark.job_record import commit_fragments

        if self._done:
            log.warning("job %s is committed already", self._work["job"])
            return
        commit_fragments(
            self._options.repository(),
            WorkUnit.from_json(self._work),
            _fragments(messages),
            message=self._options.message or f"write {self._options.node}",
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the chunk files of the messages, if it is certain that nothing refers to them.

        A task without a message means that the commit was never tried. With all messages there it
        was tried and may have succeeded, whatever the caller knows: then nothing is deleted, and
        garbage collection decides.
        """
        if self._done or all(message is not None for message in messages):
            return
        from airflow_provider_icechunk.spark.job_record import delete_chunk_files

        repository = self._options.repository()
        delete_chunk_files(repository, self._work, _fragments(messages))


def _chunk_columns(schema: StructType, overwrite: bool) -> tuple[int, int]:
    """Where the columns `chunk` and `data` are; refuses what cannot be written."""
    if overwrite:
        raise InvalidInputError(
            'an array is not overwritten as a whole: use mode("append"), for a stream '
            'outputMode("append"), which replaces the chunks that the frame has'
        )
    names = schema.fieldNames()
    missing = {"chunk", "data"} - set(names)
    if missing:
        raise InvalidInputError(
            f"the frame has no column {min(missing)!r}: this source writes a chunk in each "
            "row; write cells with `write_dataframe`"
        )
    return names.index("chunk"), names.index("data")


def _fragments(messages: Sequence[WriterCommitMessage | None]) -> list[Fragment]:
    from airflow_provider_icechunk.format.fragments import decode_fragment

    return [
        decode_fragment(message.fragment, where="a message of a task")
        for message in messages
        if isinstance(message, Written)
    ]
