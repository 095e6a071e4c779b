"""A snapshot as JSON, for people who want to look inside."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from airflow_provider_icechunk.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.format.snapshot import Node, Snapshot
from airflow_provider_icechunk.repository.world import from_micros


def snapshot_json(
    snapshot: Snapshot,
    parent: SnapshotId | None,
    *,
    pretty: bool,
    show: Callable[[bytes], str] = encode_base32,
) -> str:
    """Identity, manifests and nodes of a snapshot; `show` makes texts of ids."""
    flushed_at = from_micros(snapshot.flushed_at).isoformat().replace("+00:00", "Z")
    value = {
        "id": show(snapshot.id),
        "parent_id": None if parent is None else show(parent),
        "flushed_at": flushed_at,
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [
            {
                "id": show(file.id),
                "size_bytes": file.size_bytes,
                "num_chunk_refs": file.num_chunk_refs,
            }
            for file in snapshot.manifest_files.values()
        ],
        "nodes": [_node(node, show) for node in snapshot.nodes.values()],
    }
    if pretty:
        return json.dumps(value, indent=2, ensure_ascii=False)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _node(node: Node, show: Callable[[bytes], str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": encode_base32(node.id), "path": node.path}
    if node.array is None:
        return facts | {"node_type": "group"}
    refs = [
        {"id": show(ref.id), "extents": ref.extents and [list(box) for box in ref.extents]}
        for ref in node.array.manifests
    ]
    return facts | {"node_type": "array", "manifest_refs": refs}
