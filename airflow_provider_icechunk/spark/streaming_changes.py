"""What commits changed, as rows: one for each changed node and for each changed chunk.

Which chunks a commit touched is in its transaction log; whether a chunk was written or deleted is
in the manifests of its snapshot. No data is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import Kind, NotFoundError
from airflow_provider_icechunk.format.order import common_rows
from airflow_provider_icechunk.format.snapshot import Node
from airflow_provider_icechunk.format.transactions import Coordinates
from airflow_provider_icechunk.repository.documents import array_document
from airflow_provider_icechunk.repository.history import Diff, SnapshotInfo
from airflow_provider_icechunk.repository.working_tree import WorkingTree
from airflow_provider_icechunk.spark.columns import Column, arrow_schema
from airflow_provider_icechunk.zarr_store.sessions import Repository

_TEXT = ("string", pa.string())
_NUMBERS = ("array<long>", pa.list_(pa.field("element", pa.int64())))
_ROWS = 1 << 16

CHANGE_COLUMNS = (
    Column("snapshot_id", *_TEXT),
    Column("parent_id", *_TEXT),
    Column("written_at", "timestamp", pa.timestamp("us", tz="UTC")),
    Column("message", *_TEXT),
    Column("path", *_TEXT),
    Column("change", *_TEXT),
    Column("chunk", *_NUMBERS),
    Column("start", *_NUMBERS),
    Column("shape", *_NUMBERS),
    Column("moved_from", *_TEXT),
)
"""A row for each change. `change` is `created`, `updated`, `deleted` or `moved` for a node and
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
    """What a commit changed at the node `below` and under it; nothing for the first snapshot."""
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
    """The paths of the node `below` and of all under it."""
    nodes = repository.readonly_session(snapshot_id=snapshot_id).tree.base.nodes
    return [path for path in nodes if _is_below(path, below)]


def node_changes(diff: Diff) -> list[NodeChange]:
    """The changed nodes by path; a node that was deleted and made anew has both rows. Pure."""
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
    """Refuse a commit that has nodes which neither it nor its parent made. Pure.

    An expiration makes the first snapshot the parent of the oldest one it keeps. The changes of
    those in between are lost, and leaving them out in silence would make the stream wrong.
    """
    made = diff.new_groups | diff.new_arrays | {target for _, target in diff.moved_nodes}
    unexplained = set(after) - set(before) - made
    if unexplained:
        raise NotFoundError(
            f"the history before snapshot {info.id} expired (it has {min(unexplained)!r}, which "
            "no commit that is left has made), so its changes are not known: begin with a new "
            'checkpoint and `since` "everything" or "now"',
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )


def present(tree: WorkingTree, node: Node, places: Coordinates) -> NDArray[np.bool_]:
    """Which of some chunks of an array are there; reads only manifests that could hold them."""
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
    for manifest in tree.engine.assets.manifests(wanted):
        found |= common_rows(places, manifest.of(node.id, places.shape[1]).index)
    return found & (places < np.array(array_document(node).num_chunks, np.uint64)).all(axis=1)


def _is_below(path: str, above: str) -> bool:
    home = "/" + above.strip("/")
    return home == "/" or path == home or path.startswith(f"{home}/")


def _node_rows(info: SnapshotInfo, changes: Sequence[NodeChange]) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(changes), _ROWS):
        part = changes[first : first + _ROWS]
        nothing = pa.nulls(len(part), _NUMBERS[1])
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
            [_lists(part), *_cells(node, part)],
            pa.nulls(len(part), pa.string()),
        )


def _cells(node: Node, places: NDArray[np.int64]) -> list[pa.Array]:
    """Where each chunk starts and the shape of its part inside; unknown for an uneven grid."""
    document = array_document(node)
    if document.chunk_counts is not None:
        return [pa.nulls(len(places), _NUMBERS[1])] * 2
    start = places * np.array(document.chunk_shape, np.int64)
    stop = np.minimum(start + document.chunk_shape, document.shape)
    return [_lists(start), _lists(np.maximum(stop - start, 0))]


def _lists(rows: NDArray[np.int64]) -> pa.Array:
    """Each row as a list."""
    count, width = rows.shape
    borders = pa.array(np.arange(count + 1, dtype=np.int32) * width, pa.int32())
    return pa.ListArray.from_arrays(borders, pa.array(rows.reshape(-1)), type=_NUMBERS[1])


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

    told = (info.id, info.parent_id, info.written_at, info.message)
    shared = [repeated(value, column) for value, column in zip(told, CHANGE_COLUMNS, strict=False)]
    return pa.RecordBatch.from_arrays(
        [*shared, paths, changes, *numbers, moved_from], schema=_SCHEMA
    )
