"""Moves of nodes, rebased over commits of others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.model import Move, Node, in_order
from airflow_provider_icechunk.engine.format.names import parent_path
from airflow_provider_icechunk.engine.tree.moves import Tree, net_moves

from .conflicts import Collision, Conflict, ConflictType


@dataclass(frozen=True, slots=True)
class Rearranged:
    """The tree of the other side with our moves."""

    nodes: dict[str, Node]


def rebase_moves(
    before: Tree, ours: Tree, their_moves: Sequence[Move], theirs: Tree
) -> Rearranged | Collision:
    """Our moves from `before` to `ours` on top of a commit that made `theirs` of `before`.

    What the other side wrote to nodes stays in them wherever they move. Paths are a conflict if
    the outcome would depend on who came first: a node that we moved and they deleted, two nodes at
    one path, and a node that would end up below another group than its own side put it. No solver
    resolves these.
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

    Groups in between may be missing, so a moved group can end up above a node that was left behind,
    and still not be where that node was put.
    """
    path = parent_path(node.path)
    while path is not None and path not in nodes:
        path = parent_path(path)
    return None if path is None else (path, nodes[path].id, nodes[path].is_group)
