"""The Spark data source `icechunk`: read arrays and changes, write frames of chunks.

Spark runs these methods in separate processes and pickles what they return, so objects must not
change after construction. Imports are late because Spark imports this module just for its name.
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
from airflow_provider_icechunk.spark.releases import task_context

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from airflow_provider_icechunk.engine.workers.codec import Fragment
    from airflow_provider_icechunk.spark.columns import Column
    from airflow_provider_icechunk.spark.read.metadata import MetadataRead
    from airflow_provider_icechunk.spark.read.plan import PlannedRead
    from airflow_provider_icechunk.spark.read.prune import ColumnFilter, Operator

    from .options import SourceOptions
    from .stream_read import IcechunkStreamReader
    from .stream_write import IcechunkStreamWriter

log = logging.getLogger(__name__)

_OPERATORS: dict[str, Operator] = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
    "IsNotNull": "is not null",
}
_CORES = 8
"""Assumed, because Spark does not let a data source know how many tasks it can run at once."""


class IcechunkSource(DataSource):  # type: ignore[misc]
    """`format("icechunk")` of `spark.read`, `readStream`, `frame.write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """The name to pass to `format`."""
        return "icechunk"

    def __reduce__(self) -> tuple[Any, ...]:
        from airflow_provider_icechunk.spark.runtime import arrive, package_root

        return (arrive, (package_root(), self.options))

    def schema(self) -> str:
        """The columns of a read."""
        from airflow_provider_icechunk.spark.columns import spark_schema

        from .stream_read import CHANGE_COLUMNS

        options = self._options()
        columns: tuple[Column, ...] = CHANGE_COLUMNS
        if options.layout != "changes":
            columns = (self._metadata(options) or self._plan(options)).columns
        return spark_schema(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the snapshot that the options name now, or of changes up to it."""
        from .stream_read import IcechunkChangesReader

        del schema
        options = self._options()
        if options.layout == "changes":
            return IcechunkChangesReader(options)
        metadata = self._metadata(options)
        if metadata is not None:
            return MetadataReader(metadata)
        return IcechunkReader(self._plan(options))

    def writer(self, schema: StructType, overwrite: bool) -> IcechunkWriter:
        """A writer for frames with the columns `chunk` and `data`."""
        return IcechunkWriter.begin(self._options(), _chunk_columns(schema, overwrite))

    def streamReader(self, schema: StructType) -> IcechunkStreamReader:  # noqa: N802
        """A stream of the changes committed to a branch."""
        from .stream_read import IcechunkStreamReader

        del schema
        options = self._options()
        if options.layout != "changes":
            raise InvalidInputError(
                'only changes can be streamed: set the option `layout` to "changes"'
            )
        return IcechunkStreamReader(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> IcechunkStreamWriter:  # noqa: N802
        """A writer for one batch of a stream with the columns `chunk` and `data`."""
        from .stream_write import IcechunkStreamWriter

        return IcechunkStreamWriter.begin(self._options(), _chunk_columns(schema, overwrite))

    def _options(self) -> SourceOptions:
        from .options import parse_options

        return parse_options(self.options)

    def _metadata(self, options: SourceOptions) -> MetadataRead | None:
        from airflow_provider_icechunk.spark.read.frames import open_snapshot
        from airflow_provider_icechunk.spark.read.metadata import plan_metadata

        if options.metadata is None:
            return None
        repository = options.repository()
        session = open_snapshot(
            repository, options.branch, options.tag, options.snapshot, options.asof
        )
        return plan_metadata(
            repository, options.metadata, options.node, session.snapshot_id, options.dim
        )

    def _plan(self, options: SourceOptions) -> PlannedRead:
        from airflow_provider_icechunk.spark.read.frames import open_snapshot
        from airflow_provider_icechunk.spark.read.plan import Selection, plan_reading

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
            decode=options.decode,
            columns=options.columns,
            tasks=options.tasks,
            cores=_CORES,
        )


class _Pushing:
    """Stands for the method of a reader that takes filters.

    Spark refuses to plan a read by a reader that has such a method while
    `spark.sql.python.filterPushdown.enabled` is off, which it is by default. It looks at the
    function behind the method, so this one looks like the inherited method; without the setting,
    Spark does not call it, and filters itself.
    """

    def __init__(self, reader: IcechunkReader) -> None:
        self._reader = reader
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: Sequence[Filter]) -> Iterator[Filter]:
        return self._reader.push(filters)


def comparison(one: Filter) -> ColumnFilter | None:
    """A Spark filter in terms that do not need Spark; `None` if it is of another kind."""
    from airflow_provider_icechunk.spark.read.prune import ColumnFilter

    name = type(one).__name__
    column: tuple[str, ...] = getattr(one, "attribute", ())
    if name not in _OPERATORS or len(column) != 1:
        return None
    return ColumnFilter(column[0], _OPERATORS[name], getattr(one, "value", None))


@dataclass
class _ReadPart(InputPartition):  # type: ignore[misc]
    number: int


class IcechunkReader(DataSourceReader):  # type: ignore[misc]
    """Reads the partitions of a plan."""

    def __init__(self, reading: PlannedRead) -> None:
        self._reading = reading

    @property
    def pushFilters(self) -> _Pushing:  # noqa: N802
        """Takes filters on dimensions: chunks that they exclude are not read."""
        return _Pushing(self)

    def push(self, filters: Sequence[Filter]) -> Iterator[Filter]:
        """Narrow the plan; returns the filters that Spark still has to apply."""
        from airflow_provider_icechunk.spark.read.prune import prune

        self._reading, left = prune(self._reading, [comparison(one) for one in filters])
        return (filters[number] for number in left)

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task of the plan."""
        return [_ReadPart(number) for number in range(len(self._reading.tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; a plan without tasks has one partition without rows."""
        from airflow_provider_icechunk.spark.read.frames import read_task

        if isinstance(partition, _ReadPart):
            yield from read_task(self._reading, self._reading.tasks[partition.number])


class MetadataReader(DataSourceReader):  # type: ignore[misc]
    """Reads a table of metadata."""

    def __init__(self, reading: MetadataRead) -> None:
        self._reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task of the plan."""
        return [_ReadPart(number) for number in range(len(self._reading.tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; a plan without tasks has one partition without rows."""
        if isinstance(partition, _ReadPart):
            yield from self._reading.read(self._reading.tasks[partition.number])


@dataclass
class TaskMessage(WriterCommitMessage):  # type: ignore[misc]
    """What one task wrote."""

    fragment: bytes


class IcechunkWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Tasks write chunk files; `commit` makes them one snapshot, once per job id."""

    def __init__(
        self, options: SourceOptions, work: dict[str, Any], columns: tuple[int, int], done: bool
    ) -> None:
        self._options = options
        self._work = work
        self._columns = columns
        self._done = done

    @classmethod
    def begin(cls, options: SourceOptions, columns: tuple[int, int]) -> IcechunkWriter:
        """Start the job, which fixes the base snapshot of all tasks."""
        from uuid import uuid4

        from airflow_provider_icechunk.engine.pipelines.job import begin_job
        from airflow_provider_icechunk.spark.runtime import open_array

        repository = options.repository()
        job = options.job or f"spark-source/{uuid4().hex}"
        begun = begin_job(repository, job=job, branch=options.branch or "main")
        open_array(repository.fork(begun.work), options.node)
        return cls(options, begun.work.to_json(), columns, begun.committed_as is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the chunks of one partition."""
        from airflow_provider_icechunk.engine.workers.codec import encode_fragment
        from airflow_provider_icechunk.spark.write.frames import ChunkRows

        if self._done:
            return TaskMessage(b"")
        context = task_context()
        fork = self._options.repository().fork(self._work)
        batches = (batch.select(list(self._columns)) for batch in iterator)
        ChunkRows(self._options.node, self._options.encoded).write(fork, batches)
        return TaskMessage(encode_fragment(fork.fragment(f"task {context.partitionId()}")))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit, unless the same job already did."""
        from airflow_provider_icechunk.engine.pipelines.job import commit_fragments
        from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit

        if self._done:
            log.warning("job %s is already committed", self._work["job"])
            return
        commit_fragments(
            self._options.repository(),
            WorkUnit.from_json(self._work),
            _fragments(messages),
            message=self._options.message or f"write {self._options.node}",
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the chunk files of the messages, if nothing can refer to them.

        If a task has no message, the commit was never attempted. If all have one, it was and may
        have succeeded, so the files are left to garbage collection.
        """
        if self._done or all(message is not None for message in messages):
            return
        from airflow_provider_icechunk.engine.pipelines.job import delete_chunk_files

        repository = self._options.repository()
        delete_chunk_files(repository, self._work, _fragments(messages))


def _chunk_columns(schema: StructType, overwrite: bool) -> tuple[int, int]:
    """The positions of the columns `chunk` and `data`; raises if the frame cannot be written."""
    if overwrite:
        raise InvalidInputError(
            'an array cannot be overwritten as a whole: use mode("append"), for a stream '
            'outputMode("append"), which replaces the chunks that the frame contains'
        )
    names = schema.fieldNames()
    missing = {"chunk", "data"} - set(names)
    if missing:
        raise InvalidInputError(
            f"the frame has no column {min(missing)!r}: this source writes one chunk per row; "
            "write cells with `write_dataframe`"
        )
    return names.index("chunk"), names.index("data")


def _fragments(messages: Sequence[WriterCommitMessage | None]) -> list[Fragment]:
    from airflow_provider_icechunk.engine.workers.codec import decode_fragment

    return [
        decode_fragment(message.fragment, where="a message of a task")
        for message in messages
        if isinstance(message, TaskMessage)
    ]
