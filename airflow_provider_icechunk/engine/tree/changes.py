"""What a session changed: nodes by path and id, chunks as columns. In memory, pure, mergeable.

Nothing here reads storage. Chunk edits are `ChunkRefs` in which `RefKind.ERASED` rows delete, so
laying them over a manifest, merging workers and listing what a commit touched are operations on
columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from airflow_provider_icechunk.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.format.references import ChunkRefs, Index, Payload
from airflow_provider_icechunk.format.snapshot import Node
from airflow_provider_icechunk.format.transactions import Coordinates, TransactionLog

_RECENT_LIMIT = 1 << 16
_edit_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Untouched:
    """The session did not edit this chunk; ask the base snapshot."""


UNTOUCHED = Untouched()


class ArrayEdits:
    """Chunks of one array that were written or erased. Later edits win.

    Single edits collect in a dictionary, which is folded into columns when it grows or when bulk
    columns arrive.
    """

    __slots__ = ("_columns", "_recent", "ndim", "revision")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self.revision = 0
        """New with every edit of any array: equal revisions mean equal content."""
        self._columns = ChunkRefs.empty(ndim)
        self._recent: dict[Index, Payload | None] = {}

    def set(self, index: Index, payload: Payload | None) -> None:
        """Write one reference, or erase the chunk with `None`."""
        self.revision = next(_edit_numbers)
        self._recent[index] = payload
        if len(self._recent) >= _RECENT_LIMIT:
            self.columns()

    def set_many(self, refs: ChunkRefs) -> None:
        """Write many references at once; `ERASED` rows erase."""
        self.revision = next(_edit_numbers)
        self._columns = self.columns().overlay(refs)

    def drop(self, index: Coordinates) -> None:
        """Take edits back: these chunks are as the base has them."""
        self.revision = next(_edit_numbers)
        self._columns = self.columns().without(index)

    def find(self, index: Index) -> Payload | Untouched | None:
        """The edit at `index`: a payload, `None` for erased, or `UNTOUCHED`."""
        if index in self._recent:
            return self._recent[index]
        row = self._columns.find_row(index)
        return UNTOUCHED if row is None else self._columns[row]

    def columns(self) -> ChunkRefs:
        """All edits as ordered columns."""
        if self._recent:
            recent = ChunkRefs.from_items(self.ndim, self._recent.items())
            self._columns = self._columns.overlay(recent)
            self._recent = {}
        return self._columns

    def __len__(self) -> int:
        return len(self.columns())

    def copy(self) -> ArrayEdits:
        """An independent copy; the columns are shared because they never change."""
        twin = ArrayEdits(self.ndim)
        twin._columns = self.columns()
        twin.revision = self.revision
        return twin


@dataclass(slots=True)
class ChangeSet:
    """The edits of one session on top of its base snapshot."""

    created: dict[str, Node] = field(default_factory=dict)
    """New nodes by path. A path deleted and created again is here and in `deleted`."""
    updated: dict[NodeId, Node] = field(default_factory=dict)
    """Nodes of the base with another `zarr.json`."""
    deleted: dict[NodeId, Node] = field(default_factory=dict)
    """Nodes of the base that are gone, as they were in the base."""
    chunks: dict[NodeId, ArrayEdits] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not (
            self.created
            or self.updated
            or self.deleted
            or any(len(edits) for edits in self.chunks.values())
        )

    def create(self, node: Node) -> None:
        """Add a node at a free path."""
        self.created[node.path] = node

    def update(self, node: Node) -> None:
        """Replace the `zarr.json` (and with it the shape) of a node that exists."""
        if node.path in self.created and self.created[node.path].id == node.id:
            self.created[node.path] = node
        else:
            self.updated[node.id] = node
        edits = self.chunks.get(node.id)
        if edits is not None and (node.array is None or edits.ndim != len(node.array.shape)):
            del self.chunks[node.id]

    def delete(self, node: Node) -> None:
        """Remove one node; its descendants are the caller's matter."""
        self.chunks.pop(node.id, None)
        ours = self.created.get(node.path)
        if ours is not None and ours.id == node.id:
            del self.created[node.path]
            return
        self.updated.pop(node.id, None)
        self.deleted[node.id] = node

    def edits(self, node: Node) -> ArrayEdits:
        """The chunk edits of an array, made when first needed."""
        assert node.array is not None
        found = self.chunks.get(node.id)
        if found is None:
            found = self.chunks[node.id] = ArrayEdits(len(node.array.shape))
        return found

    def edited(self) -> Iterator[tuple[NodeId, ChunkRefs]]:
        """Arrays with chunk edits, in the order of their ids."""
        for node_id in sorted(self.chunks):
            columns = self.chunks[node_id].columns()
            if len(columns):
                yield node_id, columns

    def log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """What a commit of these changes touches."""
        created, updated = self.created.values(), self.updated.values()
        deleted = self.deleted.values()
        return TransactionLog(
            id=snapshot_id,
            new_groups=_ids(created, groups=True),
            new_arrays=_ids(created, groups=False),
            deleted_groups=_ids(deleted, groups=True),
            deleted_arrays=_ids(deleted, groups=False),
            updated_groups=_ids(updated, groups=True),
            updated_arrays=_ids(updated, groups=False),
            updated_chunks={node_id: refs.index for node_id, refs in self.edited()},
        )

    def is_same_as(self, other: ChangeSet) -> bool:
        """Whether `other`, an earlier copy of this change set, is still equal to it."""
        return (
            self.created == other.created
            and self.updated == other.updated
            and self.deleted.keys() == other.deleted.keys()
            and _revisions(self) == _revisions(other)
        )

    def copy(self) -> ChangeSet:
        """An independent copy."""
        return ChangeSet(
            dict(self.created),
            dict(self.updated),
            dict(self.deleted),
            {node_id: edits.copy() for node_id, edits in self.chunks.items()},
        )


def _revisions(changes: ChangeSet) -> dict[NodeId, int]:
    return {node_id: edits.revision for node_id, edits in changes.chunks.items()}


def _ids(nodes: Iterable[Node], *, groups: bool) -> frozenset[NodeId]:
    return frozenset(node.id for node in nodes if node.is_group is groups)
