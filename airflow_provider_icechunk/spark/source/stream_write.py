"""The streaming sink: each micro-batch becomes one snapshot, exactly once.

Spark hands a batch over again if it died before it noted that the batch is done, with the same
query id and the same number. Both are in the metadata of the batch's snapshot, so they become
visible together with the data, and they are looked up before a commit.

Spark makes a writer anew for the tasks of each batch and again for its end. Nothing can be
remembered in a writer: what the end has to know is in the messages of the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError
from airflow_provider_icechunk.format.fragments import Fragment, decode_fragment, encode_fragment
from airflow_provider_icechunk.repository.handoff import WorkUnit
from airflow_provider_icechunk.repository.history import SnapshotInfo
from airflow_provider_icechunk.spark.chunk_rows import ChunkRows
from airflow_provider_icechunk.spark.job_record import commit_fragments, delete_chunk_files
from airflow_provider_icechunk.spark.places import open_array

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_icechunk.spark.source_options import SourceOptions
    from airflow_provider_icechunk.zarr_store.sessions import Repository

log = logging.getLogger(__name__)

QUERY_KEY = "spark.query_id"
"""Snapshot metadata: the query that made it. Spark keeps it in the checkpoint, over restarts."""
BATCH_KEY = "spark.batch_id"
"""Snapshot metadata: the number of the batch within its query."""
ATTEMPT_KEY = "spark.attempt_id"
"""Snapshot metadata: which of the attempts at a batch made it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch."""

    query: str
    number: int

    @property
    def job(self) -> str:
        """The id under which it is committed once."""
        return f"spark-stream/{self.query}/{self.number}"


@dataclass(frozen=True, slots=True)
class Earlier:
    """A snapshot which shows that a batch was committed before."""

    snapshot_id: str
    attempt: str | None
    is_batch: bool
    """Whether it is the batch's own snapshot. Otherwise it is one of a later batch: the own one
    has expired, or the batch was empty."""


def find_batch(history: Iterable[SnapshotInfo], batch: Batch) -> Earlier | None:
    """What a history, newest first, knows of a batch. Pure.

    Spark starts a batch when the one before it is done, so the walk ends at the first snapshot of
    an earlier batch of the same query.
    """
    later: Earlier | None = None
    for info in history:
        if info.metadata.get(QUERY_KEY) != batch.query:
            continue
        number = info.metadata.get(BATCH_KEY)
        attempt = info.metadata.get(ATTEMPT_KEY)
        found = Earlier(info.id, attempt, number == batch.number)
        if found.is_batch:
            return found
        if not isinstance(number, int) or number < batch.number:
            return later
        later = later or found
    return later


@dataclass
class BatchPart(WriterCommitMessage):  # type: ignore[misc]
    """What one task wrote of a batch, and all that the end of the batch has to know."""

    fragment: bytes
    work: dict[str, str | int]
    batch: Batch
    attempt: str


class IcechunkStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Tasks write chunk files; `commit` makes them the one snapshot of their batch."""

    def __init__(self, options: SourceOptions, work: WorkUnit, columns: tuple[int, int]) -> None:
        self._options = options
        self._work = work
        self._columns = columns
        self._attempt = uuid4().hex

    @classmethod
    def begin(cls, options: SourceOptions, columns: tuple[int, int]) -> IcechunkStreamWriter:
        """A writer for one batch: all of its tasks stand on what is the head at this moment."""
        repository = options.repository()
        session = repository.writable_session(options.branch or "main")
        open_array(session, options.node)
        return cls(options, session.work_unit("spark-stream"), columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchPart:
        """Write the chunks of one partition of a batch."""
        context = TaskContext.get()
        assert context is not None
        batch = _batch_of(context)
        work = replace(self._work, job=batch.job)
        fork = self._options.repository().fork(work)
        rows = (part.select(list(self._columns)) for part in iterator)
        ChunkRows(self._options.node, self._options.encoded).write(fork, rows)
        fragment = encode_fragment(fork.fragment(f"task {context.partitionId()}"))
        return BatchPart(fragment, work.to_json(), batch, self._attempt)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless its commit is in the history already. Without chunks, nothing."""
        parts = _parts(messages)
        fragments = [_fragment(part) for part in parts]
        if not any(len(fragment) for fragment in fragments):
            return
        batch, work, attempt = parts[0].batch, WorkUnit.from_json(parts[0].work), parts[0].attempt
        if batch.number != batchId or any(part.attempt != attempt for part in parts):
            raise FragmentError(
                f"the end of batch {batchId} got what tasks wrote for {batch.job} and other work"
            )
        repository = self._options.repository()
        earlier = self._look_back(repository, work.branch, batch)
        if earlier is not None:
            _warn(batch, earlier)
            if earlier.attempt not in (None, attempt):
                delete_chunk_files(repository, work, fragments)
            return
        commit_fragments(
            repository,
            work,
            fragments,
            message=self._options.message or f"batch {batchId} of {self._options.node}",
            metadata={QUERY_KEY: batch.query, BATCH_KEY: batch.number, ATTEMPT_KEY: attempt},
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the chunk files of the messages, if it is certain that nothing refers to them.

        A task without a message means that the commit was never tried. With all messages there it
        was tried and may have succeeded, whatever the caller knows: then nothing is deleted, and
        garbage collection decides.
        """
        del batchId
        parts = _parts(messages)
        if parts and len(parts) < len(messages):
            repository = self._options.repository()
            delete_chunk_files(repository, parts[0].work, map(_fragment, parts))

    def _look_back(self, repository: Repository, branch: str, batch: Batch) -> Earlier | None:
        limit = self._options.look_back
        walked = 0

        def history() -> Iterator[SnapshotInfo]:
            nonlocal walked
            for info in islice(repository.ancestry(branch=branch), limit):
                walked += 1
                yield info

        earlier = find_batch(history(), batch)
        if earlier is None and walked == limit and batch.number:
            log.warning(
                "the newest %d snapshots of branch %s know nothing of query %s: batch %d is "
                "committed as new; `look_back` makes the search go further",
                limit, branch, batch.query, batch.number,
            )  # fmt: skip
        return earlier


def _warn(batch: Batch, earlier: Earlier) -> None:
    if earlier.is_batch:
        log.warning(
            "batch %d of query %s is committed already as %s: nothing is committed again",
            batch.number, batch.query, earlier.snapshot_id,
        )  # fmt: skip
    else:
        log.warning(
            "a batch after %d of query %s is committed already as %s: this one is left out. To "
            "write old batches again, use a new checkpoint, which makes a new query",
            batch.number, batch.query, earlier.snapshot_id,
        )  # fmt: skip


def _batch_of(context: TaskContext) -> Batch:
    query = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    if query is None or number is None:
        raise InvalidInputError(
            "Spark does not say which query and batch this is, so a batch could not be told from "
            "its repetition: write it with `foreachBatch` and `write_chunks`"
        )
    return Batch(query, int(number))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[BatchPart]:
    return [message for message in messages if isinstance(message, BatchPart)]


def _fragment(part: BatchPart) -> Fragment:
    return decode_fragment(part.fragment, where=f"a message of a task of {part.batch.job}")
