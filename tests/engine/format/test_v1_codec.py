from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.fixtures import expected, files, names, needs_fixtures
from support.model import (
    logs,
    manifests,
    plain_log,
    plain_manifest,
    plain_references,
    snapshots,
)

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Inline,
    Native,
    Virtual,
)
from airflow_provider_icechunk.engine.format.codec import Codec, FileType, Layout, Limits
from airflow_provider_icechunk.engine.format.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    SnapshotId,
    decode_base32,
)
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    Manifest,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.engine.format.v1 import logs as log_files
from airflow_provider_icechunk.engine.format.v1.codec import (
    V1Codec,
    V1Layout,
    branch_key,
    decode_ref,
    encode_ref,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

CODEC: Codec = V1Codec()
LAYOUT: Layout = V1Layout()
NODE = NodeId(b"nodenode")
MANIFEST = ManifestId(b"m" * 12)
SNAPSHOT = SnapshotId(b"s" * 12)


def payload_of(data: bytes, file_type: FileType) -> bytes:
    return envelope.unpack(data, where="x", expected=file_type, limit=1 << 30).payload


@given(snapshots())
def test_snapshots_come_back(snapshot: Snapshot) -> None:
    data = CODEC.encode_snapshot(snapshot, level=3)
    found = CODEC.decode_snapshot(data, snapshot.id, where="x")
    assert found == snapshot
    assert list(found.nodes) == list(snapshot.nodes)
    assert payload_of(data, FileType.SNAPSHOT)[4:8] == b"Ichk"


@given(snapshots())
def test_a_glance_shows_the_same_snapshot(snapshot: Snapshot) -> None:
    data = CODEC.encode_snapshot(snapshot, level=3)
    found = CODEC.glance_at_snapshot(data, snapshot.id, where="x")
    assert len(found.nodes) == len(snapshot.nodes)
    assert len(found.manifest_files) == len(snapshot.manifest_files)
    assert dataclasses.replace(found, nodes=dict(found.nodes)) == snapshot
    assert list(found.nodes) == list(snapshot.nodes)
    assert pickle.loads(pickle.dumps(found.nodes)) == snapshot.nodes


def test_damage_in_a_tree_shows_when_a_glance_becomes_a_look() -> None:
    node = Node(NODE, "/group", b"{}")
    snapshot = Snapshot(SNAPSHOT, None, 1, "m", {}, {node.path: node})
    payload = payload_of(CODEC.encode_snapshot(snapshot, level=3), FileType.SNAPSHOT)
    damaged = payload.replace(b"/group", b"group/")
    data = envelope.pack(FileType.SNAPSHOT, damaged, spec_version=1, level=1, writer="w")
    found = CODEC.glance_at_snapshot(data, SNAPSHOT, where="snapshots/x")
    assert found.message == "m"
    for _ in range(2):
        with pytest.raises(FormatError, match="snapshots/x"):
            found.nodes.get("/group")
    with pytest.raises(FormatError, match="snapshots/x"):
        CODEC.decode_snapshot(data, SNAPSHOT, where="snapshots/x")


@given(manifests())
def test_manifests_come_back(manifest: Manifest) -> None:
    data = CODEC.encode_manifest(manifest, level=3)
    found = CODEC.decode_manifest(data, manifest.id, where="x")
    assert plain_manifest(found) == plain_manifest(manifest)
    assert len(found) == len(manifest)
    assert payload_of(data, FileType.MANIFEST)[4:8] == b"Ichk"


@given(logs())
def test_logs_come_back(log: TransactionLog) -> None:
    data = CODEC.encode_log(log, level=3)
    assert plain_log(CODEC.decode_log(data, log.id, where="x")) == plain_log(log)
    assert payload_of(data, FileType.TRANSACTION_LOG)[4:8] == b"Ichk"


def test_every_kind_of_reference_in_a_large_manifest_comes_back() -> None:
    def payload(n: int) -> Inline | Native | Virtual:
        match n % 3:
            case 0:
                return Inline(bytes([n % 256]) * (n % 700 if n % 97 else 5000 + n % 7))
            case 1:
                return Native(ChunkId(n.to_bytes(12, "big")), n * 10, 10)
            case _:
                return Virtual(f"s3://b/ü{n % 50}", n, 7, ETag(f"e{n % 20}") if n % 2 else None)

    items = {(n // 100, n % 100): payload(n) for n in range(10_000)}
    manifest = Manifest(MANIFEST, {NODE: (ChunkRefs.from_items(2, items.items()),)})
    found = CODEC.decode_manifest(CODEC.encode_manifest(manifest, level=1), MANIFEST, where="x")
    assert plain_references(found.of(NODE, 2)) == items


def test_equal_locations_are_stored_once() -> None:
    items = {(n,): Virtual("s3://bucket/one/file", n, 1) for n in range(500)}
    manifest = Manifest(MANIFEST, {NODE: (ChunkRefs.from_items(1, items.items()),)})
    payload = payload_of(CODEC.encode_manifest(manifest, level=1), FileType.MANIFEST)
    assert payload.count(b"s3://bucket/one/file") == 1


def test_nodes_are_written_in_the_order_of_raw_bytes() -> None:
    nodes = [
        Node(NodeId(bytes([n] * 8)), path, b"") for n, path in enumerate(("/a/b", "/a", "/a-b"))
    ]
    snapshot = Snapshot(SNAPSHOT, None, 0, "m", {}, {node.path: node for node in nodes})
    data = CODEC.encode_snapshot(snapshot, level=1)
    payload = payload_of(data, FileType.SNAPSHOT)
    places = [payload.index(path + b"\0") for path in (b"\0/a", b"/a-b", b"/a/b")]
    assert places == sorted(places)
    assert list(CODEC.decode_snapshot(data, SNAPSHOT, where="x").nodes) == ["/a", "/a-b", "/a/b"]


def test_unsorted_coordinates_of_a_log_are_written_sorted_and_once() -> None:
    rows = np.array([[2, 0], [0, 1], [2, 0]], np.uint32)
    data = CODEC.encode_log(TransactionLog(SNAPSHOT, updated_chunks={NODE: rows}), level=1)
    found = CODEC.decode_log(data, SNAPSHOT, where="x")
    assert found.updated_chunks[NODE].tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize("arrays", [2, 60])
def test_what_another_writer_left_unsorted_in_a_log_is_read_sorted_and_once(
    arrays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all arrays together, of which each keeps its own."""
    chunks = {
        NodeId(bytes([n]) * 8): np.array([[n, 2], [n, 0], [n, 2], [0, 1]], np.uint32)[: n % 4 + 1]
        for n in range(1, arrays + 1)
    }
    monkeypatch.setattr(log_files, "in_order", lambda index: index)
    data = CODEC.encode_log(TransactionLog(SNAPSHOT, updated_chunks=chunks), level=1)
    monkeypatch.undo()
    found = CODEC.decode_log(data, SNAPSHOT, where="x").updated_chunks
    wanted = {node: sorted({*map(tuple, rows.tolist())}) for node, rows in chunks.items()}
    assert {node: [tuple(row) for row in rows.tolist()] for node, rows in found.items()} == wanted


@pytest.mark.parametrize("file", ["snapshot", "manifest", "log"])
def test_a_file_under_another_name_is_refused(file: str) -> None:
    data = {
        "snapshot": CODEC.encode_snapshot(Snapshot(SNAPSHOT, None, 0, "", {}, {}), level=1),
        "manifest": CODEC.encode_manifest(Manifest(ManifestId(SNAPSHOT), {}), level=1),
        "log": CODEC.encode_log(TransactionLog(SNAPSHOT), level=1),
    }[file]
    decode = getattr(CODEC, f"decode_{file}")
    assert decode(data, SNAPSHOT, where="x").id == SNAPSHOT
    with pytest.raises(FormatError, match="moved or replaced"):
        decode(data, b"o" * 12, where="x")


def test_files_of_generation_2_are_named_as_such() -> None:
    data = bytearray(CODEC.encode_log(TransactionLog(SNAPSHOT), level=1))
    data[36] = 2
    with pytest.raises(UnsupportedError, match="generation `2`"):
        CODEC.decode_log(bytes(data), SNAPSHOT, where="x")


def test_limits_are_kept_per_kind_of_file() -> None:
    items = {(n,): Inline(bytes(100)) for n in range(100)}
    manifest = Manifest(MANIFEST, {NODE: (ChunkRefs.from_items(1, items.items()),)})
    data = CODEC.encode_manifest(manifest, level=1)
    small = V1Codec(Limits(manifest_bytes=1000, other_bytes=1 << 20))
    with pytest.raises(FormatError, match="more than 1000 bytes"):
        small.decode_manifest(data, MANIFEST, where="x")


def test_erased_or_unsorted_references_are_never_written() -> None:
    erased = ChunkRefs.from_items(1, [((0,), None)])
    rows = ChunkRefs.from_items(1, [((0,), Inline(b"a")), ((1,), Inline(b"b"))])
    for refs, problem in ((erased, "erased"), (rows.take(np.array([1, 0])), "in order")):
        with pytest.raises(InvalidInputError, match=problem):
            CODEC.encode_manifest(Manifest(MANIFEST, {NODE: (refs,)}), level=1)


def test_a_manifest_without_extents_is_never_written() -> None:
    array = ArrayData((Dimension(1, 1),), None, (ManifestRef(MANIFEST, None),))
    node = Node(NODE, "/a", b"", array)
    with pytest.raises(InvalidInputError, match="extents"):
        CODEC.encode_snapshot(Snapshot(SNAPSHOT, None, 0, "", {}, {"/a": node}), level=1)


@pytest.mark.parametrize("value", [{1: 2}, b"bytes", {1, 2}, 2**70, [[object()]]])
def test_metadata_that_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match="metadata value 'k'"):
        CODEC.encode_snapshot(Snapshot(SNAPSHOT, None, 0, "", {"k": value}, {}), level=1)


def test_metadata_too_deep_is_refused() -> None:
    value: object = 1
    for _ in range(100):
        value = [value]
    with pytest.raises(InvalidInputError):
        CODEC.encode_snapshot(Snapshot(SNAPSHOT, None, 0, "", {"k": value}, {}), level=1)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="Unicode"):
        CODEC.encode_snapshot(Snapshot(SNAPSHOT, None, 0, "\ud800", {}, {}), level=1)


def test_keys_and_reference_documents() -> None:
    name = "1CECHNKREP0F1RSTCMT0"
    assert LAYOUT.snapshot(INITIAL_SNAPSHOT_ID) == f"snapshots/{name}"
    assert LAYOUT.transaction(INITIAL_SNAPSHOT_ID) == f"transactions/{name}"
    assert LAYOUT.manifest(ManifestId(INITIAL_SNAPSHOT_ID)) == f"manifests/{name}"
    assert LAYOUT.chunk(ChunkId(INITIAL_SNAPSHOT_ID)) == f"chunks/{name}"
    assert branch_key("main") == "refs/branch.main/ref.json"
    assert tag_key("it works!") == "refs/tag.it works!/ref.json"
    assert tombstone_key("v1") == "refs/tag.v1/ref.json.deleted"
    assert encode_ref(INITIAL_SNAPSHOT_ID) == b'{"snapshot":"%s"}' % name.encode()
    assert decode_ref(encode_ref(INITIAL_SNAPSHOT_ID), where="x") == INITIAL_SNAPSHOT_ID
    extra = json.dumps({"snapshot": name, "later": [1]}).encode()
    assert decode_ref(extra, where="x") == INITIAL_SNAPSHOT_ID


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b"])
def test_names_cannot_leave_their_folder(name: str) -> None:
    for key in (branch_key, tag_key, tombstone_key):
        with pytest.raises(InvalidInputError):
            key(name)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"snapshot":1}',
        b'{"snapshot":"x"}',
        b"\xff",
        b"[" * 60_000,
        b'{"snapshot":"1CECHNKREP0F1RSTCMT0"' + b" " * 100_000 + b"}",
    ],
)
def test_other_documents_are_no_references(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"not a reference document|too large"):
        decode_ref(data, where="refs/branch.x")


@needs_fixtures
@pytest.mark.parametrize("name", names("g3-"))
def test_every_official_file_is_read_and_survives_rewriting(name: str) -> None:
    counts = {"snapshots": 0, "manifests": 0, "transactions": 0}
    for file, data in files(name, "snapshots"):
        identity = SnapshotId(decode_base32(file))
        snapshot = CODEC.decode_snapshot(data, identity, where=file)
        again = CODEC.encode_snapshot(snapshot, level=3)
        assert CODEC.decode_snapshot(again, identity, where=file) == snapshot
        counts["snapshots"] += 1
    for file, data in files(name, "manifests"):
        manifest_id = ManifestId(decode_base32(file))
        manifest = CODEC.decode_manifest(data, manifest_id, where=file)
        again = CODEC.encode_manifest(manifest, level=3)
        found = CODEC.decode_manifest(again, manifest_id, where=file)
        assert plain_manifest(found) == plain_manifest(manifest)
        assert len(manifest) > 0
        counts["manifests"] += 1
    for file, data in files(name, "transactions"):
        identity = SnapshotId(decode_base32(file))
        log = CODEC.decode_log(data, identity, where=file)
        again = CODEC.encode_log(log, level=3)
        assert plain_log(CODEC.decode_log(again, identity, where=file)) == plain_log(log)
        counts["transactions"] += 1
    facts = expected(name)["counts"]
    assert counts == {
        "snapshots": facts["snapshots"],
        "manifests": facts["manifests"],
        "transactions": facts["transaction_logs"],
    }


@needs_fixtures
@pytest.mark.parametrize("name", names("g3-"))
def test_official_files_say_what_is_expected_of_them(name: str) -> None:
    snapshots_ = dict(files(name, "snapshots"))
    manifests_ = dict(files(name, "manifests"))
    for content in expected(name)["contents"].values():
        file = content["snapshot"]
        snapshot = CODEC.decode_snapshot(
            snapshots_[file], SnapshotId(decode_base32(file)), where=file
        )
        groups = {node.path for node in snapshot.nodes.values() if node.is_group}
        assert groups == set(content["groups"])
        arrays = {path: node for path, node in snapshot.nodes.items() if not node.is_group}
        assert set(arrays) == set(content["arrays"])
        for path, facts in content["arrays"].items():
            check_array(arrays[path], facts, manifests_)


def check_array(node: Node, facts: dict[str, Any], manifests_: dict[str, bytes]) -> None:
    document = json.loads(node.user_data)
    assert node.array is not None
    assert [side.length for side in node.array.shape] == document["shape"] == facts["shape"]
    assert document["data_type"] == facts["dtype"]
    assert node.id.hex() == facts["node_id"]
    found = {"native": 0, "inline": 0, "virtual": 0}
    for ref in node.array.manifests:
        file = V1Layout().manifest(ref.id).removeprefix("manifests/")
        manifest = CODEC.decode_manifest(manifests_[file], ref.id, where=file)
        refs = manifest.of(node.id, len(node.array.shape))
        assert refs.extents() == ref.extents
        for payload in plain_references(refs).values():
            found[type(payload).__name__.lower()] += 1
    assert found == {"native": 0, "inline": 0, "virtual": 0} | facts["chunk_refs"]


def test_values_are_immutable() -> None:
    snapshot = Snapshot(SNAPSHOT, None, 0, "", {}, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.message = "x"  # type: ignore[misc]


@settings(max_examples=20)
@given(manifests())
def test_the_same_manifest_gives_the_same_bytes(manifest: Manifest) -> None:
    assert CODEC.encode_manifest(manifest, level=3) == CODEC.encode_manifest(manifest, level=3)
