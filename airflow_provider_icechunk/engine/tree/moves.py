"""Moves of nodes as values: the resulting tree, and their combined effect. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    Move,
    Node,
    TransactionLog,
    in_order,
    in_target_order,
)
from airflow_provider_icechunk.engine.format.names import ROOT, is_below, parent_path
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    Kind,
    NotFoundError,
)

Tree = Mapping[str, Node]
"""Nodes by path."""


def moved(nodes: Tree, source: str, target: str) -> dict[str, Node]:
    """The tree with the node at `source`, and all below it, at `target`."""
    if source == ROOT:
        raise InvalidInputError(
            f"the root group cannot be moved into itself or its own descendant, to {target}"
        )
    if source not in nodes:
        raise NotFoundError(f"node not found: there is none at {source}", kind=Kind.NODE_NOT_FOUND)
    if target == source or is_below(target, source):
        raise InvalidInputError(
            f"{source} cannot be moved into itself or its own descendant, to {target}"
        )
    if target in nodes:
        raise AlreadyExistsError(f"there is a node at {target} already", kind=Kind.NODE_EXISTS)
    parent = parent_path(target)
    above = None if parent is None else nodes.get(parent)
    if above is None or not above.is_group:
        problem = "there is no group at {0}" if above is None else "{0} is an array, not a group"
        raise NotFoundError(
            f"{target} cannot be the new place: {problem.format(parent)}", kind=Kind.NODE_NOT_FOUND
        )
    return in_order(
        replace(node, path=target + path.removeprefix(source))
        if path == source or is_below(path, source)
        else node
        for path, node in nodes.items()
    )


def net_moves(before: Tree, after: Tree) -> tuple[Move, ...]:
    """Nodes in both whose paths have changed, sorted by the segments of their new paths."""
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
    such logs detects a conflict with changes at their old paths.
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
