"""Detect conflicts between two writers, and let a solver decide them. Pure.

Our change set, their transaction log and the trees on both sides go in; conflicts or a changed
change set come out. Chunk collisions are found in columns.

What is free of conflicts gives the same tree in either order. The rules and names are those of the
official library, plus the cases they miss: a node created below a group that the other side deleted
or replaced, or below what the other side made an array; a node that one side deleted and the other
replaced; and chunks written into an array that the other side shrank, or whose chunks it gave
another meaning.

Where logs record no moves, a node that the other side moved counts as deleted at its old path and
as new at the other one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import numpy as np

from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.chunk_refs import common_rows
from airflow_provider_icechunk.engine.format.ids import NodeId, format_node_id
from airflow_provider_icechunk.engine.format.model import (
    Coordinates,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.engine.format.names import is_below, parent_path
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument, parse_node
from airflow_provider_icechunk.engine.tree.changes import ChangeSet


class ConflictType(Enum):
    """How the two sides collide."""

    NewNodeConflictsWithExistingNode = 1
    NewNodeInInvalidGroup = 2
    ZarrMetadataDoubleUpdate = 3
    ZarrMetadataUpdateOfDeletedArray = 4
    ZarrMetadataUpdateOfDeletedGroup = 5
    ChunkDoubleUpdate = 6
    ChunksUpdatedInDeletedArray = 7
    ChunksUpdatedInUpdatedArray = 8
    DeleteOfUpdatedArray = 9
    DeleteOfUpdatedGroup = 10
    MoveOperationCannotBeRebased = 11

    def __str__(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    ConflictType.NewNodeConflictsWithExistingNode: "New node conflicts with existing node",
    ConflictType.NewNodeInInvalidGroup: "New node in invalid group",
    ConflictType.ZarrMetadataDoubleUpdate: "Zarr metadata double update",
    ConflictType.ZarrMetadataUpdateOfDeletedArray: "Zarr metadata update of deleted array",
    ConflictType.ZarrMetadataUpdateOfDeletedGroup: "Zarr metadata update of deleted group",
    ConflictType.ChunkDoubleUpdate: "Chunk double update",
    ConflictType.ChunksUpdatedInDeletedArray: "Chunks updated in deleted array",
    ConflictType.ChunksUpdatedInUpdatedArray: "Chunks updated in updated array",
    ConflictType.DeleteOfUpdatedArray: "Delete of updated array",
    ConflictType.DeleteOfUpdatedGroup: "Delete of updated group",
    ConflictType.MoveOperationCannotBeRebased: "Move operation cannot be rebased",
}

_SHOWN = 10
_NO_NODE = NodeId(bytes(8))
_BESIDE_CHUNKS = {"shape", "attributes", "dimension_names"}


class VersionSelection(Enum):
    """Whose chunk is kept when both sides wrote it."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Conflict(Shown):
    """One collision."""

    conflict_type: ConflictType
    path: str
    node_id: NodeId = _NO_NODE
    chunks: Coordinates | None = None
    """Coordinates both sides wrote, as columns. The third argument may also be a list of them."""
    detail: str = ""
    """What exactly conflicts, for messages; empty if the type says it all."""

    def __post_init__(self) -> None:
        third: object = self.node_id
        if isinstance(third, list):
            object.__setattr__(self, "chunks", np.asarray(third, dtype=np.uint32))
            object.__setattr__(self, "node_id", _NO_NODE)

    @property
    def conflicted_chunks(self) -> list[list[int]] | None:
        """The same coordinates as lists; `None` when the conflict is not about chunks."""
        return None if self.chunks is None else self.chunks.tolist()

    def shown_facts(self) -> Mapping[str, object]:
        """What collided and where; of many chunks, only the first."""
        facts: dict[str, object] = {"type": self.conflict_type.name, "path": self.path}
        if self.chunks is not None:
            more = "" if len(self.chunks) <= _SHOWN else f" of {len(self.chunks)}"
            facts["conflicted_chunks"] = f"{self.chunks[:_SHOWN].tolist()}{more}"
        return facts | ({"detail": self.detail} if self.detail else {})

    def in_short(self) -> str:
        """In one line, for messages."""
        facts = self.shown_facts()
        chunks = f", chunks={facts['conflicted_chunks']}" if self.chunks is not None else ""
        return f"Conflict({self.conflict_type.name}, path={self.path}{chunks})"


@dataclass(frozen=True, slots=True)
class Theirs:
    """One commit of the other side."""

    log: TransactionLog
    after: Snapshot
    """The tree at that commit."""


class ConflictSolver(Protocol):
    """Decides conflicts; receives a copy of the change set that it may edit."""

    def solve(self, conflict: Conflict, ours: ChangeSet) -> bool:
        """Resolve one conflict in `ours`, or say that it cannot be resolved."""
        ...


@dataclass(frozen=True, slots=True)
class ConflictDetector:
    """Reports every conflict and solves none."""

    def solve(self, conflict: Conflict, ours: ChangeSet) -> bool:
        """Never."""
        del conflict, ours
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicConflictSolver:
    """Decides about chunks that both sides wrote and about deletes of what the other updated.

    :param on_chunk_conflict: whose chunk is kept when both sides wrote it.
    :param fail_on_delete_of_updated_array: refuse instead of deleting what the other side changed.
    :param fail_on_delete_of_updated_group: the same for groups.
    """

    on_chunk_conflict: VersionSelection = VersionSelection.UseOurs
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def solve(self, conflict: Conflict, ours: ChangeSet) -> bool:
        """Apply the policy."""
        match conflict.conflict_type:
            case ConflictType.ChunkDoubleUpdate:
                return self._solve_chunks(conflict, ours)
            case ConflictType.DeleteOfUpdatedArray:
                return not self.fail_on_delete_of_updated_array
            case ConflictType.DeleteOfUpdatedGroup:
                return not self.fail_on_delete_of_updated_group
            case _:
                return False

    def _solve_chunks(self, conflict: Conflict, ours: ChangeSet) -> bool:
        match self.on_chunk_conflict:
            case VersionSelection.UseOurs:
                return True
            case VersionSelection.UseTheirs:
                assert conflict.chunks is not None
                ours.chunks[conflict.node_id].drop(conflict.chunks)
                return True
            case VersionSelection.Fail:
                return False


@dataclass(frozen=True, slots=True)
class Clean:
    """The session can be based on their commit with these changes."""

    changes: ChangeSet


@dataclass(frozen=True, slots=True)
class Collision:
    """All conflicts of a step, at least one of which the solver may not decide."""

    conflicts: tuple[Conflict, ...]


def rebase_step(
    ours: ChangeSet, base: Snapshot, theirs: Theirs, solver: ConflictSolver
) -> Clean | Collision:
    """Rebase our changes over one commit of the other side."""
    changed = ours.copy()
    conflicts = find_conflicts(ours, base, theirs)
    solved = [solver.solve(conflict, changed) for conflict in conflicts]
    if not all(solved):
        return Collision(tuple(conflicts))
    return Clean(over_their_nodes(changed, theirs))


def over_their_nodes(changed: ChangeSet, theirs: Theirs) -> ChangeSet:
    """Changes without conflicts, which are edited, for the tree of their commit."""
    for node_id in _gone(theirs.log):
        changed.deleted.pop(node_id, None)
    for node_id, node in changed.updated.items():
        changed.updated[node_id] = _with_their_manifests(node, theirs.after)
    return changed


def _with_their_manifests(node: Node, after: Snapshot) -> Node:
    """Our document of an array, with the chunks that it has now."""
    now = after.nodes.get(node.path)
    if node.array is None or now is None or now.array is None:
        return node
    return replace(node, array=replace(node.array, manifests=now.array.manifests))


def find_conflicts(ours: ChangeSet, base: Snapshot, theirs: Theirs) -> list[Conflict]:
    """Every collision between our changes on `base` and one commit of the other side.

    A commit that moved nodes collides with everything: paths no longer mean what they did.
    """
    if theirs.log.moves:
        first = theirs.log.moves[0]
        kind = ConflictType.MoveOperationCannotBeRebased
        return [Conflict(kind, first.source, first.node_id)]
    return [
        *_new_nodes(ours, base, theirs),
        *_metadata(ours, base, theirs.log),
        *_chunks(ours, base, theirs.log),
        *_deletes(ours, theirs),
    ]


def _new_nodes(ours: ChangeSet, base: Snapshot, theirs: Theirs) -> Iterator[Conflict]:
    for path, node in ours.created.items():
        existing = theirs.after.nodes.get(path)
        if existing is not None and existing.id not in ours.deleted:
            yield Conflict(ConflictType.NewNodeConflictsWithExistingNode, path, node.id)
        above = _no_group_above(path, ours, base, theirs.after)
        if above is not None:
            yield Conflict(ConflictType.NewNodeInInvalidGroup, above, node.id)


def _no_group_above(path: str, ours: ChangeSet, base: Snapshot, after: Snapshot) -> str | None:
    """The closest ancestor that cannot hold the node after their commit."""
    above = parent_path(path)
    while above is not None:
        before, now = base.nodes.get(above), after.nodes.get(above)
        if above not in ours.created and now is not None and not now.is_group:
            return above
        kept = before is not None and before.id not in ours.deleted
        if kept and (now is None or before is None or now.id != before.id):
            return above
        above = parent_path(above)
    return None


def _metadata(ours: ChangeSet, base: Snapshot, theirs: TransactionLog) -> Iterator[Conflict]:
    for node_id, node in ours.updated.items():
        if node_id in theirs.updated_arrays or node_id in theirs.updated_groups:
            yield Conflict(ConflictType.ZarrMetadataDoubleUpdate, node.path, node_id)
        if node_id in theirs.deleted_arrays:
            yield Conflict(ConflictType.ZarrMetadataUpdateOfDeletedArray, node.path, node_id)
        if node_id in theirs.deleted_groups:
            yield Conflict(ConflictType.ZarrMetadataUpdateOfDeletedGroup, node.path, node_id)
        written = _without_ours(ours, node_id, theirs.updated_chunks.get(node_id))
        if written is not None and len(written) and _spoils(node, base, written):
            yield Conflict(ConflictType.ChunksUpdatedInUpdatedArray, node.path, node_id)


def _without_ours(
    ours: ChangeSet, node_id: NodeId, written: Coordinates | None
) -> Coordinates | None:
    """Their chunks that we did not edit; those that both edited are a conflict of their own."""
    edits = ours.chunks.get(node_id)
    if written is None or edits is None or edits.ndim != written.shape[1]:
        return written
    return written[~common_rows(written, edits.columns().index)]


def _spoils(node: Node, base: Snapshot, written: Coordinates) -> bool:
    """Whether our document has no room for their chunks, or gives them other values."""
    document = parse_node(node.user_data, rectilinear=True)
    if not isinstance(document, ArrayDocument) or len(document.shape) != written.shape[1]:
        return True
    if (written >= document.num_chunks).any():
        return True
    before = base.nodes.get(node.path)
    return before is None or not have_same_chunks(before, node)


def have_same_chunks(one: Node, other: Node) -> bool:
    """Whether the bytes of a chunk mean the same in both arrays."""
    return one.user_data == other.user_data or _chunk_meaning(one) == _chunk_meaning(other)


def _chunk_meaning(node: Node) -> dict[str, object]:
    """Everything that determines the meaning of the bytes of a chunk."""
    parse_node(node.user_data, rectilinear=True)
    document = json.loads(node.user_data)
    # `draft` has no place for an empty list of transformers: it is as if there were none.
    return {
        key: value
        for key, value in document.items()
        if key not in _BESIDE_CHUNKS and not (key == "storage_transformers" and not value)
    }


def _chunks(ours: ChangeSet, base: Snapshot, theirs: TransactionLog) -> Iterator[Conflict]:
    for node_id, refs in ours.edited():
        found: list[tuple[ConflictType, Coordinates | None]] = []
        if node_id in theirs.deleted_arrays:
            found.append((ConflictType.ChunksUpdatedInDeletedArray, None))
        if node_id in theirs.updated_arrays:
            found.append((ConflictType.ChunksUpdatedInUpdatedArray, None))
        written = theirs.updated_chunks.get(node_id)
        if written is not None and written.shape[1] == refs.ndim:
            both = refs.index[common_rows(refs.index, written)]
            if len(both):
                found.append((ConflictType.ChunkDoubleUpdate, both))
        if found:
            # Trees of commits that only wrote chunks are never decoded, except to find a name.
            path = _paths(ours, base).get(node_id, format_node_id(node_id))
            yield from (Conflict(kind, path, node_id, chunks) for kind, chunks in found)


def _deletes(ours: ChangeSet, theirs: Theirs) -> Iterator[Conflict]:
    log = theirs.log
    gone, renamed = _gone(log), log.renamed
    for node_id, node in ours.deleted.items():
        if node_id in renamed:
            # It has moved, not been deleted: neither side's change holds if the other comes first.
            yield Conflict(ConflictType.MoveOperationCannotBeRebased, node.path, node_id)
            continue
        replaced = node_id in gone and (
            node.path in ours.created or node.path in theirs.after.nodes
        )
        if node_id in log.updated_arrays or node_id in log.updated_chunks:
            yield Conflict(ConflictType.DeleteOfUpdatedArray, node.path, node_id)
        if node_id in log.updated_groups:
            yield Conflict(ConflictType.DeleteOfUpdatedGroup, node.path, node_id)
        if replaced:
            kind = (
                ConflictType.DeleteOfUpdatedGroup
                if node.is_group
                else ConflictType.DeleteOfUpdatedArray
            )
            yield Conflict(kind, node.path, node_id)
    closed = [node.path for node in ours.deleted.values() if node.is_group]
    closed += [path for path, node in ours.created.items() if not node.is_group]
    for path, node in _created_below(closed, theirs):
        yield Conflict(ConflictType.NewNodeInInvalidGroup, path, node.id)


def _created_below(closed: Sequence[str], theirs: Theirs) -> Iterator[tuple[str, Node]]:
    """Nodes they created where our changes leave no group, and the path without one."""
    created = theirs.log.new_arrays | theirs.log.new_groups
    if not closed or not created:
        return
    for node in theirs.after.nodes.values():
        if node.id in created:
            above = [path for path in closed if is_below(node.path, path)]
            if above:
                yield max(above, key=len), node


def _gone(log: TransactionLog) -> frozenset[NodeId]:
    return log.deleted_arrays | log.deleted_groups


def _paths(ours: ChangeSet, base: Snapshot) -> dict[NodeId, str]:
    wanted = ours.chunks.keys()
    known = {node.id: path for path, node in base.nodes.items() if node.id in wanted}
    return known | {node.id: path for path, node in ours.created.items()}
