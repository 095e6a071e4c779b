"""Official releases read what this codec writes, and this codec reads what they put on top."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import actors

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Index,
    Inline,
    LastModified,
    Native,
    Payload,
    Virtual,
)
from airflow_provider_icechunk.engine.format.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    SnapshotId,
    decode_base32,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.model import (
    FIRST_MESSAGE,
    ArrayData,
    Dimension,
    Manifest,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
    in_order,
)
from airflow_provider_icechunk.engine.format.v1 import codec
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec

READER = Path(__file__).parents[2] / "support" / "official_reader.py"
INTERPRETERS = {"1.1": sys.executable, "2": actors.PYTHON}
CODEC = V1Codec()
LAYOUT = codec.V1Layout()
SECOND = SnapshotId(b"second-snaps")
CHUNK = ChunkId(b"chunk-file-1")
PACKED = ChunkId(b"packed-file!")

NATIVE = np.arange(12, dtype="<i4").reshape(4, 3)
ARRAYS: dict[str, tuple[list[int], list[int], dict[Index, Payload]]] = {
    "/native": ([4, 3], [2, 3], {(0, 0): Native(CHUNK, 0, 24), (1, 0): Native(PACKED, 8, 24)}),
    "/packed": ([4], [2], {(0,): Native(PACKED, 0, 8), (1,): Native(PACKED, 32, 8)}),
    "/inline": ([3], [1], {(0,): Inline(b"\7\0\0\0"), (2,): Inline(b"\x09\0\0\0")}),
    "/a-b/scalar": ([], [], {(): Inline(b"\x2a\0\0\0")}),
    "/virtual": (
        [4],
        [1],
        {
            (0,): Virtual("s3://bucket/one", 0, 4, ETag("tag")),
            (1,): Virtual("s3://bucket/one", 4, 4, LastModified(1_700_000_000)),
            (3,): Virtual("s3://bucket/two", 8, 4),
        },
    ),
}


def document(shape: list[int], chunks: list[int]) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "int32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": -1,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
        }
    ).encode()


def build(root: Path) -> None:
    """A repository of two snapshots, put together by hand from this codec's bytes."""
    first = Snapshot(INITIAL_SNAPSHOT_ID, None, 10**15, FIRST_MESSAGE, {"__root": True}, {})
    put(root, LAYOUT.snapshot(first.id), CODEC.encode_snapshot(first))
    put(root, LAYOUT.chunk(CHUNK), NATIVE[:2].tobytes())
    packed = np.concatenate([np.array([5, 6]), NATIVE[2:].ravel(), np.array([7, 8])])
    put(root, LAYOUT.chunk(PACKED), packed.astype("<i4").tobytes())
    nodes = [group(0, "/", {"title": "tëst"}), group(1, "/a-b", {}), group(2, "/a", {})]
    listed = {}
    for number, (path, (shape, chunks, items)) in enumerate(ARRAYS.items(), start=3):
        node_id, manifest_id = NodeId(bytes([number] * 8)), ManifestId(bytes([number] * 12))
        refs = ChunkRefs.from_items(len(shape), items.items())
        data = CODEC.encode_manifest(Manifest(manifest_id, {node_id: (refs,)}))
        put(root, LAYOUT.manifest(manifest_id), data)
        listed[manifest_id] = ManifestFile(manifest_id, len(data), len(refs))
        sides = tuple(Dimension(*side) for side in zip(shape, chunks, strict=True))
        array = ArrayData(sides, None, (ManifestRef(manifest_id, refs.extents()),))
        nodes.append(Node(node_id, path, document(shape, chunks), array))
    second = Snapshot(
        SECOND,
        first.id,
        10**15 + 1,
        "by händ",
        {"k": [1.5, None]},
        in_order(nodes),
        listed,
    )
    put(root, LAYOUT.snapshot(SECOND), CODEC.encode_snapshot(second))
    put(root, LAYOUT.transaction(SECOND), CODEC.encode_log(log_of(nodes)))
    put(root, codec.branch_key("main"), codec.encode_ref(SECOND))
    put(root, codec.tag_key("v1"), codec.encode_ref(SECOND))
    put(root, codec.tag_key("gone"), codec.encode_ref(SECOND))
    put(root, codec.tombstone_key("gone"), b"")


def group(number: int, path: str, attributes: dict[str, str]) -> Node:
    text = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes})
    return Node(NodeId(bytes([number] * 8)), path, text.encode())


def log_of(nodes: list[Node]) -> TransactionLog:
    chunks = {}
    for node in nodes:
        if node.array is not None:
            rows = sorted(ARRAYS[node.path][2])
            chunks[node.id] = np.array(rows, np.uint32).reshape(len(rows), -1)
    return TransactionLog(
        SECOND,
        new_groups=frozenset(node.id for node in nodes if node.is_group),
        new_arrays=frozenset(node.id for node in nodes if not node.is_group),
        updated_chunks=chunks,
    )


def put(root: Path, key: str, data: bytes) -> None:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def seen_by(interpreter: str, root: Path) -> dict[str, Any]:
    done = subprocess.run(
        [interpreter, str(READER), str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("release", ["1.1", pytest.param("2", marks=actors.needs_icechunk2)])
def test_official_readers_see_what_was_written(release: str, tmp_path: Path) -> None:
    interpreter = INTERPRETERS[release]
    assert interpreter is not None
    build(tmp_path)
    seen = seen_by(interpreter, tmp_path)
    assert seen["version"].startswith(release)
    assert seen["history"] == [
        [encode_base32(SECOND), "by händ", {"k": [1.5, None]}],
        ["1CECHNKREP0F1RSTCMT0", FIRST_MESSAGE, {"__root": True}],
    ]
    assert seen["arrays"] == {
        "native": NATIVE.tolist(),
        "packed": [5, 6, 7, 8],
        "inline": [7, -1, 9],
        "a-b/scalar": 42,
    }
    assert seen["members"] == ["a", "a-b", "a-b/scalar", "inline", "native", "packed", "virtual"]
    assert seen["attributes"] == {"title": "tëst"}
    assert set(seen["locations"]) == {"s3://bucket/one", "s3://bucket/two"}
    assert seen["tags"] == ["v1"]
    assert seen["new"] == ["/", "/a", *sorted(["/a-b", *ARRAYS])]
    assert seen["chunks"] == {
        path: sorted(map(list, items)) for path, (_, _, items) in ARRAYS.items()
    }
    check_commit_on_top(tmp_path, seen["commit"])


def check_commit_on_top(root: Path, commit: str) -> None:
    where = f"snapshots/{commit}"
    identity = SnapshotId(decode_base32(commit))
    snapshot = CODEC.decode_snapshot((root / where).read_bytes(), identity, where=where)
    assert snapshot.parent_id == SECOND
    assert codec.decode_ref((root / codec.branch_key("main")).read_bytes(), where="x") == identity
    node = snapshot.nodes["/inline"]
    assert node.array is not None
    (ref,) = node.array.manifests
    key = LAYOUT.manifest(ref.id)
    manifest = CODEC.decode_manifest((root / key).read_bytes(), ref.id, where=key)
    assert manifest.of(node.id, 1).find((0,)) == Inline(b"\x63\0\0\0")
    assert manifest.of(node.id, 1).find((2,)) == Inline(b"\x09\0\0\0")
    log = CODEC.decode_log(
        (root / LAYOUT.transaction(identity)).read_bytes(), identity, where="transactions"
    )
    assert log.updated_chunks[node.id].tolist() == [[0]]
