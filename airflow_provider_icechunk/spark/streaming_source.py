"""The streaming source: what each commit to a branch changed, from one snapshot to the next.

An offset names a snapshot: everything up to and including it was emitted. An offset without a name
stands before all that there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, TypedDict

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError
from airflow_provider_icechunk.spark.source_options import EVERYTHING, NOW, SourceOptions
from airflow_provider_icechunk.spark.streaming_changes import (
    paths_below,
    rows_of_commit,
    rows_of_state,
)
from airflow_provider_icechunk.zarr_store.sessions import Repository

if TYPE_CHECKING:
    import pyarrow as pa

_TASKS = 8


class Offset(TypedDict):
    """Where a stream stands, as Spark keeps it in the checkpoint."""

    snapshot: str


NOTHING = ""
"""The name in an offset that stands before everything."""


@dataclass
class Commits(InputPartition):  # type: ignore[misc]
    """Commits whose changes one task lists."""

    snapshots: tuple[str, ...]


@dataclass
class State(InputPartition):  # type: ignore[misc]
    """Nodes that one task lists with all that is in them."""

    snapshot: str
    paths: tuple[str, ...]


class Changes:
    """The changes of one branch as offsets and partitions."""

    def __init__(self, options: SourceOptions) -> None:
        if options.tag or options.snapshot or options.asof:
            raise InvalidInputError(
                "changes are read from a branch: leave out `tag`, `snapshot` and `asof`"
            )
        self._options = options
        self._repository: Repository | None = None
        self._branch = options.branch or "main"

    def __reduce__(self) -> tuple[type[Changes], tuple[SourceOptions]]:
        return (Changes, (self._options,))

    @property
    def repository(self) -> Repository:
        """The repository, opened once in each process."""
        if self._repository is None:
            self._repository = self._options.repository()
        return self._repository

    def first(self) -> str:
        """Where a new stream begins."""
        since = self._options.since
        if since == EVERYTHING:
            return NOTHING
        if since == NOW:
            return self.head()
        since = self.repository.read_snapshot_id(since)
        self.between(since, self.head())
        return since

    def head(self) -> str:
        """The newest snapshot."""
        return str(self.repository.lookup_branch(self._branch))

    def between(self, start: str, end: str) -> list[str]:
        """The snapshots after `start` up to `end`, oldest first."""
        if start == end:
            return []
        history = self.repository.ancestry(snapshot_id=end)
        ids = [info.id for info in takewhile(lambda info: info.id != start, history)]
        last = self.repository.lookup_snapshot(ids[-1])
        if last.parent_id != start:
            raise NotFoundError(
                f"branch {self._branch!r} of {self.repository.storage.location} no longer has "
                f"snapshot {start}, up to which changes are known: the branch was reset, or its "
                "history expired. What changed since cannot be told: begin with a new checkpoint "
                f'and `since` "{EVERYTHING}", "{NOW}" or a snapshot of the branch',
                kind=Kind.SNAPSHOT_NOT_FOUND,
            )
        return ids[::-1]

    def partitions(self, start: str, end: str) -> list[InputPartition]:
        """Who lists what, for everything after `start` up to `end`."""
        count = self._options.tasks or _TASKS
        if start == NOTHING:
            paths = paths_below(self.repository, end, self._options.node)
            return [State(end, tuple(paths[n::count])) for n in range(min(count, len(paths)))]
        ids = self.between(start, end)
        size = -(-len(ids) // count) or 1
        return [Commits(tuple(ids[n : n + size])) for n in range(0, len(ids), size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; without any, Spark asks for one that is none."""
        if isinstance(partition, State):
            yield from rows_of_state(self.repository, partition.snapshot, partition.paths)
        elif isinstance(partition, Commits):
            for identity in partition.snapshots:
                yield from rows_of_commit(self.repository, identity, self._options.node)


class IcechunkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Emits the commits of a branch, each once, in order of the batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._changes = Changes(options)
        self._limit = options.commits_per_batch
        self._last: str | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a query without a checkpoint begins."""
        return {"snapshot": self._changes.first()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch holds; Spark has no limit by commits, so files stand for them."""
        return ReadAllAvailable() if self._limit is None else ReadMaxFiles(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the last snapshot that a run emits which ends by itself."""
        self._last = self._changes.head()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch reaches."""
        head = self._last or self._changes.head()
        if start["snapshot"] in (NOTHING, head):
            return {"snapshot": head}
        commits = self._changes.between(start["snapshot"], head)
        if isinstance(limit, ReadMaxFiles):
            commits = commits[: limit.max_files]
        return {"snapshot": commits[-1]}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """The head of the branch, for progress reports."""
        return {"snapshot": self._changes.head()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return self._changes.partitions(start["snapshot"], end["snapshot"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._changes.read(partition)


class IcechunkChangesReader(DataSourceReader):  # type: ignore[misc]
    """The changes up to the head of a branch as a frame."""

    def __init__(self, options: SourceOptions) -> None:
        if options.since == NOW:
            raise InvalidInputError(
                f'a frame of changes needs `since`: a snapshot, or "{EVERYTHING}"'
            )
        self._changes = Changes(options)
        self._parts = self._changes.partitions(self._changes.first(), self._changes.head())

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task."""
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._changes.read(partition)
