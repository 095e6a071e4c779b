"""Apply changes on top of an earlier commit of the same work, which they supersede. Pure.

Both have the same base, so nearly everything that one did the other did too. That is not a
conflict here: where both did the same, nothing is left to do, and where they differ, the later one
wins. What only the earlier one wrote stays.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.model import Node, Snapshot
from airflow_provider_icechunk.engine.tree.changes import ChangeSet

from .conflicts import have_same_chunks


def lay_over(ours: ChangeSet, after: Snapshot) -> ChangeSet | None:
    """Our changes for the tree of the earlier commit; `None` if they do not fit onto it.

    They do not if it has something else at a path that we create, or lacks what we change.
    """
    there = {node.id: node for node in after.nodes.values()}
    laid = ChangeSet(labels=dict(ours.labels), appends=dict(ours.appends))
    names: dict[NodeId, NodeId] = {}
    for path, node in ours.created.items():
        present = after.nodes.get(path)
        if present is None:
            laid.create(node)
            continue
        if not _are_alike(present, node):
            return None
        names[node.id] = present.id
        if present.user_data != node.user_data:
            laid.update(_in_place_of(present, node))
    for node_id, node in ours.updated.items():
        if node_id not in there:
            return None
        if there[node_id].user_data != node.user_data:
            laid.update(_in_place_of(there[node_id], node))
    for node_id in ours.deleted.keys() & there.keys():
        laid.delete(there[node_id])
    kept = there.keys() - laid.deleted.keys() | {node.id for node in laid.created.values()}
    for node_id, edits in ours.chunks.items():
        name = names.get(node_id, node_id)
        if name not in kept:
            return None
        laid.chunks[name] = edits.copy()
    return laid


def _are_alike(one: Node, other: Node) -> bool:
    """Whether both are groups, or arrays whose chunks mean the same."""
    if one.is_group or other.is_group:
        return one.is_group and other.is_group
    return have_same_chunks(one, other)


def _in_place_of(present: Node, node: Node) -> Node:
    """Our document, with the path and the chunks of the existing node."""
    if node.array is None or present.array is None:
        return replace(node, id=present.id, path=present.path)
    array = replace(node.array, manifests=present.array.manifests)
    return replace(node, id=present.id, path=present.path, array=array)
