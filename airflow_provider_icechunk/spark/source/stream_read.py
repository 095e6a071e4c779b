"""The streaming source: what each commit to a branch changed, as rows.

An offset names a snapshot: everything up to and including it was emitted. An offset without a name
comes before everything.

The transaction log of a commit has the chunks it touched; the manifests of its snapshot show
whether a chunk was written or deleted. No data is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from airflow_provider_icechunk.engine.format.coordinates import common_rows
from airflow_provider_icechunk.engine.format.model import Coordinates, Node
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
from airflow_provider_icechunk.engine.history.diff import Diff
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError
from airflow_provider_icechunk.spark.columns import NUMBERS, TEXT, TIME, Column, arrow_schema, lists
from airflow_provider_icechunk.spark.releases import missing

from .limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
    can_limit,
)
from .options import EVERYTHING, NOW, SourceOptions

_ROWS = 1 << 16

CHANGE_COLUMNS = (
    Column("snapshot_id", *TEXT),
    Column("parent_id", *TEXT),
    Column("written_at", *TIME),
    Column("message", *TEXT),
    Column("path", *TEXT),
    Column("change", *TEXT),
    Column("chunk", *NUMBERS),
    Column("start", *NUMBERS),
    Column("shape", *NUMBERS),
    Column("moved_from", *TEXT),
)
"""One row per change. `change` is `created`, `updated`, `deleted` or `moved` for a node and
`written` or `erased` for a chunk; only chunks have `chunk` (its number), `start` and `shape`."""
_SCHEMA = arrow_schema(CHANGE_COLUMNS)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A group or an array that a commit changed."""

    path: str
    change: str
    moved_from: str | None = None


def rows_of_commit(
    repository: Repository, snapshot_id: str, below: str
) -> Iterator[pa.RecordBatch]:
    """What a commit changed at or under the node `below`; nothing for the first snapshot."""
    info = repository.lookup_snapshot(snapshot_id)
    if info.parent_id is None:
        return
    diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=snapshot_id)
    tree = repository.readonly_session(snapshot_id=snapshot_id).tree
    parent = repository.readonly_session(snapshot_id=info.parent_id).tree
    check_gapless(diff, info, before=parent.base.nodes.keys(), after=tree.base.nodes.keys())
    yield from _node_rows(info, [one for one in node_changes(diff) if _is_below(one.path, below)])
    for path, places in diff.chunk_columns.items():
        node = tree.base.nodes.get(path)
        if node is not None and not node.is_group and _is_below(path, below):
            yield from _chunk_rows(info, node, places, present(tree, node, places))


def rows_of_state(
    repository: Repository, snapshot_id: str, paths: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The nodes at some paths with all their chunks, as if the snapshot had created them."""
    info = repository.lookup_snapshot(snapshot_id)
    tree = repository.readonly_session(snapshot_id=snapshot_id).tree
    yield from _node_rows(info, [NodeChange(path, "created") for path in paths])
    for path in paths:
        node = tree.base.nodes[path]
        if not node.is_group:
            places = tree.references(node).index
            yield from _chunk_rows(info, node, places, np.ones(len(places), np.bool_))


def paths_below(repository: Repository, snapshot_id: str, below: str) -> list[str]:
    """The paths of the node `below` and of all nodes under it."""
    nodes = repository.readonly_session(snapshot_id=snapshot_id).tree.base.nodes
    return [path for path in nodes if _is_below(path, below)]


def node_changes(diff: Diff) -> list[NodeChange]:
    """The changed nodes by path; a node that was deleted and recreated has both rows. Pure."""
    kinds: Mapping[str, set[str]] = {
        "deleted": diff.deleted_groups | diff.deleted_arrays,
        "created": diff.new_groups | diff.new_arrays,
        "updated": diff.updated_groups | diff.updated_arrays,
    }
    found = [NodeChange(path, change) for change, paths in kinds.items() for path in sorted(paths)]
    moved = [NodeChange(target, "moved", source) for source, target in diff.moved_nodes]
    return [*found, *moved]


def check_gapless(
    diff: Diff, info: SnapshotInfo, *, before: Collection[str], after: Collection[str]
) -> None:
    """Refuse a commit with nodes that neither it nor its parent created. Pure.

    Expiration makes the first snapshot the parent of the oldest one it keeps. If the changes in
    between are unknown, silently skipping them would make the stream wrong.
    """
    made = diff.new_groups | diff.new_arrays | {target for _, target in diff.moved_nodes}
    unexplained = set(after) - set(before) - made
    if unexplained:
        raise NotFoundError(
            f"the history before snapshot {info.id} expired (no remaining commit created "
            f"{min(unexplained)!r}), so its changes are unknown: start with a new checkpoint and "
            '`since` "everything" or "now"',
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )


def present(tree: WorkingTree, node: Node, places: Coordinates) -> NDArray[np.bool_]:
    """Which of some chunks of an array exist; reads only manifests that could contain them."""
    assert node.array is not None
    found = np.zeros(len(places), np.bool_)
    if not len(places):
        return found
    box = list(zip(places.min(axis=0).tolist(), places.max(axis=0).tolist(), strict=True))
    wanted = [
        ref.id
        for ref in node.array.manifests
        if ref.extents is None
        or all(
            low <= last and first < high
            for (first, last), (low, high) in zip(box, ref.extents, strict=True)
        )
    ]
    for manifest in tree.core.objects.manifests(wanted):
        found |= common_rows(places, manifest.of(node.id, places.shape[1]).index)
    return found & (places < np.array(array_document(node).num_chunks, np.uint64)).all(axis=1)


def _is_below(path: str, above: str) -> bool:
    home = "/" + above.strip("/")
    return home == "/" or path == home or path.startswith(f"{home}/")


def _node_rows(info: SnapshotInfo, changes: Sequence[NodeChange]) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(changes), _ROWS):
        part = changes[first : first + _ROWS]
        nothing = pa.nulls(len(part), NUMBERS[1])
        yield _batch(
            info,
            pa.array([one.path for one in part], pa.string()),
            pa.array([one.change for one in part], pa.string()),
            [nothing, nothing, nothing],
            pa.array([one.moved_from for one in part], pa.string()),
        )


def _chunk_rows(
    info: SnapshotInfo, node: Node, places: Coordinates, there: NDArray[np.bool_]
) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(places), _ROWS):
        part = places[first : first + _ROWS].astype(np.int64)
        words = np.where(there[first : first + _ROWS], "written", "erased")
        yield _batch(
            info,
            pa.array([node.path], pa.string()).take(pa.array(np.zeros(len(part), np.int64))),
            pa.array(words, pa.string()),
            [lists(part), *_cells(node, part)],
            pa.nulls(len(part), pa.string()),
        )


def _cells(node: Node, places: NDArray[np.int64]) -> list[pa.Array]:
    """The start of each chunk and its shape inside the array; unknown for an irregular grid."""
    document = array_document(node)
    if document.chunk_counts is not None:
        return [pa.nulls(len(places), NUMBERS[1])] * 2
    start = places * np.array(document.chunk_shape, np.int64)
    stop = np.minimum(start + document.chunk_shape, document.shape)
    return [lists(start), lists(np.maximum(stop - start, 0))]


def _batch(
    info: SnapshotInfo,
    paths: pa.Array,
    changes: pa.Array,
    numbers: Sequence[pa.Array],
    moved_from: pa.Array,
) -> pa.RecordBatch:
    same = pa.array(np.zeros(len(paths), np.int64))

    def repeated(value: object, column: Column) -> pa.Array:
        return pa.array([value], column.arrow).take(same)

    facts = (info.id, info.parent_id, info.written_at, info.message)
    shared = [repeated(value, column) for value, column in zip(facts, CHANGE_COLUMNS, strict=False)]
    return pa.RecordBatch.from_arrays(
        [*shared, paths, changes, *numbers, moved_from], schema=_SCHEMA
    )


_TASKS = 8


class Offset(TypedDict):
    """The position of a stream, as Spark stores it in the checkpoint."""

    snapshot: str


NOTHING = ""
"""The name in an offset that comes before everything."""


@dataclass
class Commits(InputPartition):  # type: ignore[misc]
    """Commits whose changes one task lists."""

    snapshots: tuple[str, ...]


@dataclass
class StreamState(InputPartition):  # type: ignore[misc]
    """Nodes that one task lists with all their chunks."""

    snapshot: str
    paths: tuple[str, ...]


class Changes:
    """The changes of one branch as offsets and partitions."""

    def __init__(self, options: SourceOptions) -> None:
        if options.tag or options.snapshot or options.asof:
            raise InvalidInputError(
                "changes are read from a branch: remove `tag`, `snapshot` and `asof`"
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
        """The position of a new stream."""
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
                f"snapshot {start}, where this stream stopped: the branch was reset, or its "
                "history expired, so the changes since are unknown: start with a new checkpoint "
                f'and `since` "{EVERYTHING}", "{NOW}" or a snapshot of the branch',
                kind=Kind.SNAPSHOT_NOT_FOUND,
            )
        return ids[::-1]

    def partitions(self, start: str, end: str) -> list[InputPartition]:
        """The tasks that list everything after `start` up to `end`."""
        count = self._options.tasks or _TASKS
        if start == NOTHING:
            paths = paths_below(self.repository, end, self._options.node)
            return [StreamState(end, tuple(paths[n::count])) for n in range(min(count, len(paths)))]
        ids = self.between(start, end)
        size = -(-len(ids) // count) or 1
        return [Commits(tuple(ids[n : n + size])) for n in range(0, len(ids), size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; if there are none, Spark passes an empty one."""
        if isinstance(partition, StreamState):
            yield from rows_of_state(self.repository, partition.snapshot, partition.paths)
        elif isinstance(partition, Commits):
            for identity in partition.snapshots:
                yield from rows_of_commit(self.repository, identity, self._options.node)


class IcechunkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Emits the commits of a branch, each once, in order of the batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._changes = Changes(options)
        self._limit = options.commits_per_batch
        if self._limit is not None and not can_limit():
            raise missing("a limit of commits in a batch", "4.2", "leave `commits_per_batch` out")
        self._last: str | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """The position of a query without a checkpoint."""
        return {"snapshot": self._changes.first()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The size limit of a batch; Spark cannot count commits, so they count as files."""
        return ReadAllAvailable() if self._limit is None else ReadMaxFiles(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the last snapshot that an available-now run emits."""
        self._last = self._changes.head()

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """The end of the next batch; Spark before 4.2 gives neither its start nor a limit."""
        head = self._last or self._changes.head()
        if start is None or start["snapshot"] in (NOTHING, head):
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
                f'a batch read of changes needs `since`: a snapshot id, or "{EVERYTHING}"'
            )
        self._changes = Changes(options)
        self._parts = self._changes.partitions(self._changes.first(), self._changes.head())

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for each task."""
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return self._changes.read(partition)
