"""The changes of a session, and the ids it gives to new nodes.

Nothing here reads storage. Chunk edits are `ChunkRefs` in which `RefKind.ERASED` rows delete, so
laying them over a manifest, merging workers and listing what a commit touched are operations on
columns.

Where nodes have numbers for ids, these are few, and two sessions may choose the same one. Each
session avoids those of its own tree; when changes move onto another tree, `renumber` gives new
numbers to those that are taken there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Index, Payload
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import NODE_ID_SIZE, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    Coordinates,
    Node,
    Snapshot,
    TransactionLog,
    log_of_nodes,
)
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from .boxes import Boxes, joined

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

    __slots__ = ("_columns", "_recent", "boxes", "ndim", "revision")

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim
        self.revision = 0
        """New with every edit of any array: equal revisions mean equal content."""
        self.boxes: Boxes | None = ()
        """Cells outside of which nothing was written; `None` if one edit did not say."""
        self._columns = ChunkRefs.empty(ndim)
        self._recent: dict[Index, Payload | None] = {}

    def set(self, index: Index, payload: Payload | None, boxes: Boxes | None = None) -> None:
        """Write one reference, or erase the chunk with `None`.

        :param boxes: the cells that may have changed.
        """
        self.revision = next(_edit_numbers)
        self._record(boxes)
        self._recent[index] = payload
        if len(self._recent) >= _RECENT_LIMIT:
            self.columns()

    def set_many(self, refs: ChunkRefs, boxes: Boxes | None = None) -> None:
        """Write many references at once; `ERASED` rows erase."""
        self.revision = next(_edit_numbers)
        self._record(boxes)
        self._columns = self.columns().overlay(refs)

    def drop(self, index: Coordinates) -> None:
        """Take edits back: these chunks become what they are in the base."""
        self.revision = next(_edit_numbers)
        self._columns = self.columns().without(index)

    def _record(self, boxes: Boxes | None) -> None:
        if boxes is None or self.boxes is None:
            self.boxes = None
        elif self.boxes is not boxes:
            self.boxes = joined(self.boxes, boxes) if self.boxes else boxes

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
        twin.boxes = self.boxes
        return twin


@dataclass(slots=True)
class ChangeSet:
    """The edits of one session on top of its base snapshot."""

    created: dict[str, Node] = field(default_factory=dict)
    """New nodes by path. A path deleted and created again is here and in `deleted`."""
    updated: dict[NodeId, Node] = field(default_factory=dict)
    """Nodes of the base with another `zarr.json`."""
    deleted: dict[NodeId, Node] = field(default_factory=dict)
    """Deleted nodes of the base, as they were in the base."""
    chunks: dict[NodeId, ArrayEdits] = field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The written labels of growing dimensions, as far as they were declared."""
    appends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Growing dimensions that were appended to, by the path of their coordinate: their length in
    the base, and the new end. The part in between may be moved.
    """

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
        """Remove one node; its descendants are up to the caller."""
        self.chunks.pop(node.id, None)
        ours = self.created.get(node.path)
        if ours is not None and ours.id == node.id:
            del self.created[node.path]
            return
        self.updated.pop(node.id, None)
        self.deleted[node.id] = node

    def edits(self, node: Node) -> ArrayEdits:
        """The chunk edits of an array, created when first needed."""
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
        return log_of_nodes(
            snapshot_id,
            self.created.values(),
            self.deleted.values(),
            self.updated.values(),
            {node_id: refs.index for node_id, refs in self.edited()},
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
            dict(self.labels),
            dict(self.appends),
        )

    def add_labels(self, labels: Mapping[str, Iterable[str]]) -> None:
        """Add written labels; each once, in the order of arrival."""
        for dimension, more in labels.items():
            self.labels[dimension] = tuple(dict.fromkeys((*self.labels.get(dimension, ()), *more)))

    def add_appends(self, appends: Mapping[str, tuple[int, int]]) -> None:
        """Add appends; those to one dimension follow each other."""
        for axis, (start, stop) in appends.items():
            first, last = self.appends.get(axis, (start, stop))
            self.appends[axis] = (min(first, start), max(last, stop))


def _revisions(changes: ChangeSet) -> dict[NodeId, int]:
    return {node_id: edits.revision for node_id, edits in changes.chunks.items()}


_DRAWS = 64


class NodeIds:
    """Gives out ids that no node of a session's tree has or had."""

    def __init__(self, generation: Generation, entropy: Callable[[int], bytes]) -> None:
        self._numbers = generation.node_numbers
        self._entropy = entropy
        self._seen: tuple[Snapshot, ChangeSet] | None = None
        self._taken: set[NodeId] = set()

    def new(self, base: Snapshot, changes: ChangeSet) -> NodeId:
        """An id for one more node on `base` with `changes`."""
        if self._numbers is None:
            return NodeId(self._entropy(NODE_ID_SIZE))
        if self._seen is None or self._seen[0] is not base or self._seen[1] is not changes:
            self._seen = base, changes
            self._taken = ids_of(base.nodes.values()) | ids_of(changes.created.values())
        identity = self._free(self._taken)
        self._taken.add(identity)
        return identity

    def renumber(self, changes: ChangeSet, taken: set[NodeId]) -> ChangeSet:
        """The same changes with another id for each created node whose id is in `taken`."""
        clashes = {path: node for path, node in changes.created.items() if node.id in taken}
        if self._numbers is None or not clashes:
            return changes
        renumbered = changes.copy()
        used = taken | ids_of(changes.created.values())
        for path, node in clashes.items():
            identity = self._free(used)
            used.add(identity)
            renumbered.created[path] = replace(node, id=identity)
            if node.id in renumbered.chunks:
                renumbered.chunks[identity] = renumbered.chunks.pop(node.id)
        return renumbered

    def _free(self, taken: Container[NodeId]) -> NodeId:
        assert self._numbers is not None
        for _ in range(_DRAWS):
            number = int.from_bytes(self._entropy(NODE_ID_SIZE), "big") % self._numbers
            if (identity := number_id(number)) not in taken:
                return identity
        for number in range(self._numbers):
            if (identity := number_id(number)) not in taken:
                return identity
        raise InvalidInputError(
            f"this format generation holds {self._numbers} nodes at most; use a newer one",
            kind=Kind.INVALID_METADATA,
        )


def number_id(number: int) -> NodeId:
    """The model's id of a node that is stored as a number."""
    return NodeId(number.to_bytes(NODE_ID_SIZE, "big"))


def ids_of(nodes: Iterable[Node]) -> set[NodeId]:
    """Ids of nodes."""
    return {node.id for node in nodes}
