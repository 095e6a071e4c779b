"""A snapshot with a session's edits laid over it: the tree as the session sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_icechunk.format.names import ROOT, is_below, parent_path
from airflow_provider_icechunk.format.snapshot import Node, Snapshot
from airflow_provider_icechunk.repository.changes import ChangeSet


def node_at(base: Snapshot, changes: ChangeSet, path: str) -> Node | None:
    """The node at `path` now."""
    created = changes.created.get(path)
    if created is not None:
        return created
    node = base.nodes.get(path)
    return (
        None if node is None or node.id in changes.deleted else changes.updated.get(node.id, node)
    )


def nodes_below(base: Snapshot, changes: ChangeSet, path: str) -> Iterator[Node]:
    """The node at `path` and all its descendants, in the order of their paths' raw bytes."""
    paths = list(base.nodes)
    if changes.created:
        paths = sorted({*paths, *changes.created}, key=str.encode)
    for candidate in paths:
        if path != ROOT and candidate != path and not is_below(candidate, path):
            continue
        node = node_at(base, changes, candidate)
        if node is not None:
            yield node


def nearest_ancestor(base: Snapshot, changes: ChangeSet, path: str) -> Node | None:
    """The closest existing node strictly above `path`."""
    above = parent_path(path)
    while above is not None:
        node = node_at(base, changes, above)
        if node is not None:
            return node
        above = parent_path(above)
    return None
