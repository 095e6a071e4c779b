"""Nodes of large snapshots: decoded when used, and copied where they did not change."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.engine.format.node_table import (
    EditedNodes,
    NodeTable,
    edited,
    manifests_of,
    nodes_with,
)
from airflow_provider_icechunk.engine.format.v1 import snapshot_layout, snapshots
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec
from airflow_provider_icechunk.engine.format.v1.stored_nodes import Source
from airflow_provider_icechunk.engine.format.v2.codec import SNAPSHOT_DIALECT, V2Codec
from airflow_provider_icechunk.exceptions import FormatError

DOCUMENT = b'{"zarr_format":3,"node_type":"array","shape":[8],"chunk_grid":{"name":"regular"}}'
PARENT = SnapshotId(bytes(12))


def manifest(number: int) -> ManifestId:
    return ManifestId(number.to_bytes(12, "big"))


def array(number: int, *manifests: int) -> Node:
    refs = tuple(ManifestRef(manifest(one), ((0, 4),)) for one in manifests)
    data = ArrayData((Dimension(8, 2, 4),), ("t",), refs)
    return Node(NodeId(number.to_bytes(8, "big")), f"/g/a{number:05}", DOCUMENT, data)


def snapshot(count: int) -> Snapshot:
    nodes = [Node(NodeId(b"rootroot"), "/", b"{}"), Node(NodeId(b"group..."), "/g", b"{}")]
    nodes += [array(number, number // 4) for number in range(count)]
    used = sorted(manifests_of(in_order(nodes)))
    files = {one: ManifestFile(one, 100, 4) for one in used}
    return Snapshot(SnapshotId(b"s" * 12), PARENT, 1, "first", {"k": 1}, in_order(nodes), files)


@pytest.fixture(params=[V1Codec, V2Codec])
def codec(request: pytest.FixtureRequest) -> V1Codec:
    found: V1Codec = request.param()
    return found


def stored(codec: V1Codec, value: Snapshot) -> Snapshot:
    return codec.decode_snapshot(codec.encode_snapshot(value), value.id, where="x")


def codec_payload(codec: V1Codec, value: Snapshot) -> bytes:
    return bytes(snapshots.encode(value, dialect=dialect_of(codec)))


def codec_decode(codec: V1Codec, payload: bytes) -> Snapshot:
    return snapshots.decode(payload, where="x", dialect=dialect_of(codec))


def dialect_of(codec: V1Codec) -> snapshot_layout.Dialect:
    return SNAPSHOT_DIALECT if isinstance(codec, V2Codec) else snapshots.DIALECT


def child(base: Snapshot, number: int, *changed: Node) -> Snapshot:
    nodes = edited(base.nodes, {node.path: node for node in changed})
    used = sorted(manifests_of(nodes))
    files = {one: ManifestFile(one, 100, 4) for one in used}
    identity = SnapshotId(number.to_bytes(12, "big"))
    return replace(base, id=identity, message=f"{number} " * 9, nodes=nodes, manifest_files=files)


def test_nodes_are_decoded_when_they_are_used(codec: V1Codec) -> None:
    value = snapshot(1000)
    found = stored(codec, value)
    assert isinstance(found.nodes, NodeTable)
    assert not found.nodes._known
    assert found.nodes["/g/a00007"] == value.nodes["/g/a00007"]
    assert list(found.nodes._known) == [found.nodes.row("/g/a00007")]
    assert list(found.nodes) == list(value.nodes)
    assert "/nowhere" not in found.nodes
    ids = [NodeId((5).to_bytes(8, "big")), NodeId(b"nonesuch")]
    assert nodes_with(found.nodes, ids) == [value.nodes["/g/a00005"]]
    assert manifests_of(found.nodes) == set(value.manifest_files)
    assert pickle.loads(pickle.dumps(found.nodes)) == value.nodes
    assert dict(found.nodes) == value.nodes


def test_an_edited_snapshot_reads_as_if_it_had_been_written_anew(codec: V1Codec) -> None:
    base = stored(codec, snapshot(1000))
    value = child(base, 1, array(3, 0, 900), array(999, 901))
    assert isinstance(value.nodes, EditedNodes)
    assert manifests_of(value.nodes) == manifests_of(dict(value.nodes))
    found = stored(codec, value)
    plain = stored(codec, replace(value, nodes=in_order(value.nodes.values())))
    assert found == plain == value
    again = stored(codec, child(found, 2, array(3, 902), array(4, 1, 903)))
    assert again.nodes["/g/a00003"] == array(3, 902)
    assert again.nodes["/g/a00999"] == array(999, 901)
    assert set(again.manifest_files) == manifests_of(dict(again.nodes))


def test_nodes_that_did_not_change_are_not_decoded_to_be_stored(codec: V1Codec) -> None:
    base = stored(codec, snapshot(1000))
    value = child(base, 1, array(3, 900))
    codec.encode_snapshot(value)
    assert not base.nodes._known  # type: ignore[attr-defined]


def test_a_process_that_stays_can_commit_any_number_of_times(codec: V1Codec) -> None:
    # A pipeline keeps its snapshot in memory. What is read of its file is paid for once.
    base = stored(codec, snapshot(300))
    for number in range(1, 200):
        base = child(base, number, array(3, 900 + number))
    assert manifests_of(base.nodes) == set(base.manifest_files)
    assert dict(base.nodes)["/g/a00003"] == array(3, 900 + 199)


def test_damage_in_one_of_many_nodes_is_told_when_it_is_used(codec: V1Codec) -> None:
    # A reader must not get half a node, and a commit must not carry it on.
    value = snapshot(300)
    payload = bytearray(codec_payload(codec, value))
    at = payload.index(b"/g/a00007") + 9
    links = payload.index(DOCUMENT, at) + len(DOCUMENT)
    payload[links : links + 64] = b"\xff" * 64
    found = codec_decode(codec, bytes(payload))
    assert "/g/a00007" in found.nodes
    assert found.nodes["/g/a00006"] == value.nodes["/g/a00006"]
    with pytest.raises(FormatError):
        found.nodes["/g/a00007"]
    changed = {"/g/a00003": array(3, 900)}
    with pytest.raises(FormatError):
        codec.encode_snapshot(replace(found, nodes=edited(found.nodes, changed)))


def test_what_is_left_of_changed_nodes_does_not_grow_for_ever() -> None:
    codec = V1Codec()
    base = stored(codec, snapshot(400))
    fresh = len(snapshots.encode(base))
    longest = 0
    for number in range(1, 700):
        base = child(base, number, array(number % 3, 1000 + number))
        if number % 7 == 0:
            payload = snapshots.encode(base)
            longest = max(longest, len(payload))
            base = stored(codec, base)
    assert fresh < longest < 2 * fresh + (1 << 16)


def test_a_file_of_another_layout_is_written_anew(codec: V1Codec) -> None:
    value = snapshot(300)
    base = stored(codec, value)
    assert isinstance(base.nodes, NodeTable)
    source = base.nodes.stored.source
    assert isinstance(source, Source)
    data = bytearray(source.buffer.data)
    marks = snapshot_layout.MARKS_AT
    data[marks : marks + 8] = b"\xff" * 8
    source.buffer.data = bytes(data)
    changed = child(base, 1, array(3, 900))
    assert stored(codec, changed) == changed


@pytest.mark.parametrize("spec_version", ["1", "2"])
def test_a_commit_on_many_arrays_is_read_by_all(spec_version: str, tmp_path: Path) -> None:
    repo = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path)), spec_version=spec_version
    )
    session = repo.writable_session("main")
    group = zarr.group(session.store)
    for number in range(300):
        group.create_array(f"a{number}", shape=(4,), chunks=(2,), dtype="i4")[:] = number
    session.commit("many arrays")
    for number in range(3):
        opened = icechunk.Repository.open(repo.storage)
        session = opened.writable_session("main")
        zarr.open_array(session.store, path=f"a{number}")[2:] = -1
        session.commit("one chunk")
    assert repo.verify().ok
    found = zarr.open_group(
        icechunk.Repository.open(repo.storage).readonly_session("main").store, mode="r"
    )
    assert [found[f"a{number}"][:].tolist() for number in (2, 3)] == [[2, 2, -1, -1], [3] * 4]
    if spec_version == "1":
        import icechunk as official

        theirs = official.Repository.open(official.local_filesystem_storage(str(tmp_path)))
        seen = zarr.open_group(theirs.readonly_session("main").store, mode="r")
        for number in (0, 2, 3, 299):
            assert seen[f"a{number}"][:].tolist() == found[f"a{number}"][:].tolist()
