"""The streaming sink: each micro-batch becomes one snapshot, exactly once.

If Spark dies before it has recorded that a batch is done, it repeats the batch with the same query
id and batch number. Both are in the metadata of the batch's snapshot, so they become visible
together with the data, and are looked up before a commit.

Spark creates a new writer for the tasks of each batch and another one for its end, so a writer
cannot keep state: the messages of the tasks carry what the end needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
from airflow_provider_icechunk.engine.pipelines.job import commit_fragments, delete_chunk_files
from airflow_provider_icechunk.engine.workers.codec import (
    Fragment,
    decode_fragment,
    encode_fragment,
)
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError
from airflow_provider_icechunk.spark.releases import missing, task_context
from airflow_provider_icechunk.spark.runtime import open_array
from airflow_provider_icechunk.spark.write.frames import ChunkRows

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError as error:
    raise ImportError(
        str(missing("a stream into a repository", "4.1", "use `foreachBatch` and `write_chunks`"))
    ) from error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from airflow_provider_icechunk.engine.repository import Repository

    from .options import SourceOptions

log = logging.getLogger(__name__)

QUERY_KEY = "spark.query_id"
"""Snapshot metadata: the query id, which Spark keeps in the checkpoint across restarts."""
BATCH_KEY = "spark.batch_id"
"""Snapshot metadata: the number of the batch in its query."""
ATTEMPT_KEY = "spark.attempt_id"
"""Snapshot metadata: the attempt at the batch that made it."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch."""

    query: str
    number: int

    @property
    def job(self) -> str:
        """The id under which it is committed once."""
        return f"spark-stream/{self.query}/{self.number}"


@dataclass(frozen=True, slots=True)
class EarlierBatch:
    """A snapshot that shows that a batch was already committed."""

    snapshot_id: str
    attempt: str | None
    is_batch: bool
    """Whether it is the batch's own snapshot. Otherwise it is that of a later batch: the batch's
    own snapshot has expired, or the batch was empty."""


def find_batch(history: Iterable[SnapshotInfo], batch: MicroBatch) -> EarlierBatch | None:
    """Find a batch in a history, newest first. Pure.

    Spark starts a batch when the previous one is done, so the search ends at the first snapshot of
    an earlier batch of the same query.
    """
    later: EarlierBatch | None = None
    for info in history:
        if info.metadata.get(QUERY_KEY) != batch.query:
            continue
        number = info.metadata.get(BATCH_KEY)
        attempt = info.metadata.get(ATTEMPT_KEY)
        found = EarlierBatch(info.id, attempt, number == batch.number)
        if found.is_batch:
            return found
        if not isinstance(number, int) or number < batch.number:
            return later
        later = later or found
    return later


@dataclass
class BatchPart(WriterCommitMessage):  # type: ignore[misc]
    """What one task wrote for a batch, and everything that the end of the batch needs."""

    fragment: bytes
    work: dict[str, str | int]
    batch: MicroBatch
    attempt: str


class IcechunkStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Tasks write chunk files; `commit` makes them the snapshot of their batch."""

    def __init__(self, options: SourceOptions, work: WorkUnit, columns: tuple[int, int]) -> None:
        self._options = options
        self._work = work
        self._columns = columns
        self._attempt = uuid4().hex

    @classmethod
    def begin(cls, options: SourceOptions, columns: tuple[int, int]) -> IcechunkStreamWriter:
        """A writer for one batch, with the current head as the base of all tasks."""
        repository = options.repository()
        session = repository.writable_session(options.branch or "main")
        open_array(session, options.node)
        return cls(options, session.work_unit("spark-stream"), columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchPart:
        """Write the chunks of one partition of a batch."""
        context = task_context()
        batch = _batch_of(context)
        work = replace(self._work, job=batch.job)
        fork = self._options.repository().fork(work)
        rows = (part.select(list(self._columns)) for part in iterator)
        ChunkRows(self._options.node, self._options.encoded).write(fork, rows)
        fragment = encode_fragment(fork.fragment(f"task {context.partitionId()}"))
        return BatchPart(fragment, work.to_json(), batch, self._attempt)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, unless it has no chunks or is already in the history."""
        parts = _parts(messages)
        fragments = [_fragment(part) for part in parts]
        if not any(len(fragment) for fragment in fragments):
            return
        batch, work, attempt = parts[0].batch, WorkUnit.from_json(parts[0].work), parts[0].attempt
        if batch.number != batchId or any(part.attempt != attempt for part in parts):
            raise FragmentError(
                f"the end of batch {batchId} has the results of tasks for {batch.job} and "
                "other work"
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
        """Delete the chunk files of the messages, if nothing can refer to them.

        If a task has no message, the commit was never attempted. If all have one, it was and may
        have succeeded, so the files are left to garbage collection.
        """
        del batchId
        parts = _parts(messages)
        if parts and len(parts) < len(messages):
            repository = self._options.repository()
            delete_chunk_files(repository, parts[0].work, map(_fragment, parts))

    def _look_back(
        self, repository: Repository, branch: str, batch: MicroBatch
    ) -> EarlierBatch | None:
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
                "the newest %d snapshots of branch %s have none of query %s: batch %d is committed "
                "as new; raise `look_back` to search further",
                limit, branch, batch.query, batch.number,
            )  # fmt: skip
        return earlier


def _warn(batch: MicroBatch, earlier: EarlierBatch) -> None:
    if earlier.is_batch:
        log.warning(
            "batch %d of query %s is already committed as %s: nothing to do",
            batch.number, batch.query, earlier.snapshot_id,
        )  # fmt: skip
    else:
        log.warning(
            "a batch after %d of query %s is already committed as %s: this one is skipped. To "
            "write old batches again, use a new checkpoint, which starts a new query",
            batch.number, batch.query, earlier.snapshot_id,
        )  # fmt: skip


def _batch_of(context: TaskContext) -> MicroBatch:
    query = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    if query is None or number is None:
        raise InvalidInputError(
            "Spark does not say which query and batch this is, so a repeated batch could not be "
            "recognised: write it with `foreachBatch` and `write_chunks`"
        )
    return MicroBatch(query, int(number))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[BatchPart]:
    return [message for message in messages if isinstance(message, BatchPart)]


def _fragment(part: BatchPart) -> Fragment:
    return decode_fragment(part.fragment, where=f"a message of a task of {part.batch.job}")
