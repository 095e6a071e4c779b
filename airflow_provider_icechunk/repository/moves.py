"""Moves of nodes as values: the tree after them, what they come to, and their rebase. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    Kind,
    NotFoundError,
)
from airflow_provider_icechunk.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.format.names import ROOT, is_below, parent_path
from airflow_provider_icechunk.format.snapshot import Node, in_order
from airflow_provider_icechunk.format.transactions import Move, TransactionLog, in_target_order
from airflow_provider_icechunk.repository.conflicts import Collision, Conflict, ConflictType

Tree = Mapping[str, Node]
"""Nodes by path."""


def moved(nodes: Tree, source: str, target: str) -> dict[str, Node]:
    """The tree with the node at `source`, and all below it, at `target`."""
    if source == ROOT:
        raise InvalidInputError("the root group cannot be moved")
    if source not in nodes:
        raise NotFoundError(f"there is no node at {source}", kind=Kind.NODE_NOT_FOUND)
    if target == source or is_below(target, source):
        raise InvalidInputError(f"{source} cannot be moved into itself, to {target}")
    if target in nodes:
        raise AlreadyExistsError(f"there is a node at {target} already", kind=Kind.NODE_EXISTS)
    parent = parent_path(target)
    above = None if parent is None else nodes.get(parent)
    if above is None or not above.is_group:
        raise NotFoundError(
            f"{target} cannot be the new place: there is no group at {parent}",
            kind=Kind.NODE_NOT_FOUND,
        )
    return in_order(
        replace(node, path=target + path.removeprefix(source))
        if path == source or is_below(path, source)
        else node
        for path, node in nodes.items()
    )


def net_moves(before: Tree, after: Tree) -> tuple[Move, ...]:
    """Nodes of both that have another path than before, by the segments of their new paths."""
    paths = {node.id: path for path, node in before.items()}
    return in_target_order(
        Move(node.id, not node.is_group, paths[node.id], path)
        for path, node in after.items()
        if paths.get(node.id, path) != path
    )


def log_of_moves(
    identity: SnapshotId, moves: Sequence[Move], *, logs_moves: bool
) -> TransactionLog:
    """The log of a commit that does nothing but move nodes.

    Without `logs_moves` they are deleted and created, under their own ids, so that every reader of
    such logs finds a conflict with what somebody did to them at their old paths.
    """
    if logs_moves:
        return TransactionLog(identity, moves=tuple(moves))
    groups = frozenset(move.node_id for move in moves if not move.is_array)
    arrays = frozenset(move.node_id for move in moves if move.is_array)
    return TransactionLog(
        identity,
        new_groups=groups,
        new_arrays=arrays,
        deleted_groups=groups,
        deleted_arrays=arrays,
    )


@dataclass(frozen=True, slots=True)
class Rearranged:
    """The tree of the other side with our moves."""

    nodes: dict[str, Node]


def rebase_moves(
    before: Tree, ours: Tree, their_moves: Sequence[Move], theirs: Tree
) -> Rearranged | Collision:
    """Our moves from `before` to `ours` on top of a commit that made `theirs` of `before`.

    What the other side wrote into nodes stays in them wherever they are. Where nodes are is a
    conflict if the outcome depended on who came first: a node that we moved and they deleted, two
    nodes at one path, and a node that would end up below another group than its own side put it.
    No solver decides these.
    """
    if their_moves:
        return _refused([Conflict(_CANNOT, their_moves[0].source, their_moves[0].node_id)])
    moves = net_moves(before, ours)
    left = {node.id for node in theirs.values()}
    deleted = [move for move in moves if move.node_id not in left]
    if deleted:
        return _refused([Conflict(_CANNOT, move.source, move.node_id) for move in deleted])
    targets = {move.node_id: move.target for move in moves}
    nodes = [
        replace(node, path=targets[node.id]) if node.id in targets else node
        for node in theirs.values()
    ]
    placed = {node.path: node for node in nodes}
    if len(placed) < len(nodes):
        twice = [node for node in nodes if placed[node.path] is not node]
        kind = ConflictType.NewNodeConflictsWithExistingNode
        return _refused([Conflict(kind, node.path, node.id) for node in twice])
    placed_by_us = targets.keys() | {
        node.id for node in ours.values() if _above(ours, node) != _above(before, node)
    }
    strays = [
        Conflict(ConflictType.NewNodeInInvalidGroup, node.path, node.id)
        for node in nodes
        if _above(placed, node) != _above(ours if node.id in placed_by_us else theirs, node)
    ]
    return _refused(strays) if strays else Rearranged(in_order(nodes))


_CANNOT = ConflictType.MoveOperationCannotBeRebased


def _refused(conflicts: list[Conflict]) -> Collision:
    return Collision(tuple(conflicts))


def _above(nodes: Tree, node: Node) -> tuple[str, NodeId, bool] | None:
    """The closest node above, where it is, and whether it is a group.

    Groups in between may be missing, so a moved group can come to stand above a node that was
    left behind, and still not be where that node was put.
    """
    path = parent_path(node.path)
    while path is not None and path not in nodes:
        path = parent_path(path)
    return None if path is None else (path, nodes[path].id, nodes[path].is_group)
