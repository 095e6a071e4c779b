"""Values of generation `alpha` that several tests start from."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import AlphaCodec
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    in_order,
)

CODEC = AlphaCodec()
WHERE = "some/file"
SNAPSHOT = SnapshotId(b"snapshot-id!")
PARENT = SnapshotId(b"parent-id-12")
MANIFEST = ManifestId(b"manifest-id!")
NODE = NodeId(b"node-id8")


def array_node(**changes: Any) -> Node:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "attributes": {"units": "K", "levels": [1, 2.5, None]},
        "shape": [10, 7],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5, 5]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "storage_transformers": [],
        "dimension_names": ["y", None],
    } | changes
    data = ArrayData(
        (Dimension(10, 5), Dimension(7, 5)),
        ("y", None),
        (ManifestRef(MANIFEST, ((0, 2), (1, 2))),),
    )
    return Node(NODE, "/group/array", json.dumps(document).encode(), data)


def group_node(path: str, attributes: dict[str, Any] | None = None) -> Node:
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
    if attributes is not None:
        document["attributes"] = attributes
    return Node(NodeId(path.encode().ljust(8)[:8]), path, json.dumps(document).encode())


def snapshot_of(*nodes: Node, parent: SnapshotId | None = PARENT) -> Snapshot:
    return Snapshot(
        id=SNAPSHOT,
        parent_id=parent,
        flushed_at=1_738_187_927_685_320,
        message="a message",
        metadata={"author": "someone", "nested": {"list": [1, None, "x"]}},
        nodes=in_order(nodes),
        manifest_files={MANIFEST: ManifestFile(MANIFEST, 1234, 5)},
    )
