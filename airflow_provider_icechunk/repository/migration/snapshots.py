"""Snapshots and transaction logs as generation `1` has them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_icechunk.exceptions import IcechunkError, UnsupportedError
from airflow_provider_icechunk.format.ids import ManifestId, SnapshotId
from airflow_provider_icechunk.format.references import Extents
from airflow_provider_icechunk.format.snapshot import (
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.format.transactions import TransactionLog
from airflow_provider_icechunk.repository.documents import node_from_document
from airflow_provider_icechunk.repository.migration.manifests import Converted, Ranks, uses

Lookup = Callable[[ManifestId, Ranks], Converted]


def convert_snapshot(
    snapshot: Snapshot, identity: SnapshotId, parent: SnapshotId | None, find: Lookup
) -> Snapshot:
    """A snapshot with the manifests that its own became, and with its true boxes."""
    ranks = uses(snapshot)
    files: dict[ManifestId, ManifestFile] = {}
    nodes = []
    for node in snapshot.nodes.values():
        refs = []
        for ref in node.array.manifests if node.array is not None else ():
            became = find(ref.id, ranks[ref.id])
            box = became.boxes.get(node.id)
            if box is not None and len(box) == ranks[ref.id][node.id]:
                refs.append(ManifestRef(became.file.id, box))
                files[became.file.id] = became.file
        _check_apart(node, [ref.extents for ref in refs if ref.extents is not None])
        nodes.append(_convert_node(node, tuple(refs)))
    return replace(
        snapshot,
        id=identity,
        parent_id=parent,
        nodes=in_order(nodes),
        manifest_files=dict(sorted(files.items())),
        attribute_files=frozenset(),
    )


def convert_log(log: TransactionLog, snapshot: Snapshot) -> TransactionLog:
    """A log under the new id of its snapshot, with groups and arrays told apart.

    `alpha` does not say of which kind a node with new attributes is.
    """
    groups = frozenset(node.id for node in snapshot.nodes.values() if node.is_group)
    arrays = frozenset(node.id for node in snapshot.nodes.values() if not node.is_group)
    return replace(
        log,
        id=snapshot.id,
        updated_groups=log.updated_groups & groups,
        updated_arrays=log.updated_arrays & arrays,
    )


def _convert_node(node: Node, refs: tuple[ManifestRef, ...]) -> Node:
    try:
        return node_from_document(node.id, node.path, node.user_data, refs)
    except IcechunkError as error:
        raise UnsupportedError(
            f"{node.path} cannot be brought to a newer generation: {error.message}"
        ) from error


def _check_apart(node: Node, boxes: list[Extents]) -> None:
    """Refuse manifests of one array that lie over each other: readers look into the first one."""
    stored = node.array.manifests if node.array is not None else ()
    if len(boxes) < 2 or all(ref.extents is not None for ref in stored):
        return
    for number, one in enumerate(boxes):
        for other in boxes[:number]:
            if all(a[0] < b[1] and b[0] < a[1] for a, b in zip(one, other, strict=True)):
                raise UnsupportedError(
                    f"{node.path} has two manifests with chunks in the same region, which newer "
                    "generations cannot hold; copy its data into a new repository instead"
                )
