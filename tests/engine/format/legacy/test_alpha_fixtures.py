"""Repositories of every shape of `alpha`, written by the original software, read to the end."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from support import fixtures

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    Inline,
    LastModified,
    Native,
    Payload,
    RefKind,
    Virtual,
    concatenate,
)
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    ManifestId,
    NodeId,
    SnapshotId,
    decode_base32,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import AlphaCodec
from airflow_provider_icechunk.engine.format.model import Node, Snapshot, in_order
from airflow_provider_icechunk.engine.opening import detect_generation
from airflow_provider_icechunk.engine.refs.base import Moved
from airflow_provider_icechunk.engine.refs.legacy.alpha import AlphaRefs
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

pytestmark = fixtures.needs_fixtures

NAMES = [*fixtures.names("g2-"), *fixtures.names("g3-f1dc0bbe")]
KINDS = {"native": RefKind.NATIVE, "inline": RefKind.INLINE, "virtual": RefKind.VIRTUAL}


@dataclass(frozen=True)
class Opened:
    refs: AlphaRefs
    expected: dict[str, Any]

    def snapshot(self, identity: SnapshotId) -> Snapshot:
        for name in (identity, None):
            found = name or self.refs.relocate(identity)
            assert found is not None, f"{encode_base32(identity)} is nowhere"
            key = self.refs.layout.snapshot(found)
            fetched = self.refs.storage.get(key)
            if fetched is not None:
                return self.refs.codec.decode_snapshot(fetched.data, found, where=key)
        raise AssertionError

    def ancestry(self, identity: SnapshotId) -> Iterator[tuple[str, str]]:
        """Ids as history names them, and messages."""
        current: SnapshotId | None = identity
        while current is not None:
            snapshot = self.snapshot(current)
            yield encode_base32(current), snapshot.message
            current = self.refs.parent(snapshot)

    def chunk_refs(self, node: Node) -> ChunkRefs:
        assert node.array is not None
        ndim = len(node.array.shape)
        parts = [ChunkRefs.empty(ndim)]
        for ref in node.array.manifests:
            key = self.refs.layout.manifest(ref.id)
            fetched = self.refs.storage.get(key)
            assert fetched is not None
            manifest = self.refs.codec.decode_manifest(fetched.data, ref.id, where=key)
            parts.append(manifest.of(node.id, ndim))
        return ChunkRefs.of(concatenate(parts))

    def chunk(self, payload: Payload | None) -> bytes:
        match payload:
            case Inline(data):
                return data
            case Native(identity, offset, length):
                fetched = self.refs.storage.get(self.refs.layout.chunk(identity))
                assert fetched is not None
                assert offset + length == len(fetched.data)
                return fetched.data
            case Virtual(location):
                assert location == self.expected["virtual"]["location"]
                return bytes.fromhex(self.expected["virtual"]["content_hex"])
        raise AssertionError

    def values(self, node: Node) -> np.ndarray[Any, Any]:
        """The whole array; the fixtures know no other codecs than `bytes` and `zstd`."""
        document = json.loads(node.user_data)
        dtype = np.dtype(document["data_type"])
        fill = document["fill_value"]
        array = np.full(document["shape"], np.nan if fill == "NaN" else fill, dtype)
        chunks = document["chunk_grid"]["configuration"]["chunk_shape"]
        codecs = [codec["name"] for codec in document["codecs"]]
        refs = self.chunk_refs(node)
        for row in range(len(refs)):
            data = self.chunk(refs[row])
            if "zstd" in codecs:
                data = zstandard.ZstdDecompressor().decompress(data)
            corner = zip(refs.index[row].tolist(), chunks, strict=True)
            area = tuple(slice(i * size, (i + 1) * size) for i, size in corner)
            array[area] = np.frombuffer(data, dtype.newbyteorder("<")).reshape(chunks)
        return array


@pytest.fixture(params=NAMES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    root, expected = fixtures.unpack(request.param, tmp_path)
    return Opened(AlphaRefs(LocalStorage(root, durable=False)), expected)


def texts(found: dict[str, SnapshotId]) -> dict[str, str]:
    return {name: encode_base32(identity) for name, identity in found.items()}


def test_it_is_detected(opened: Opened) -> None:
    assert detect_generation(opened.refs.storage) is Generation.ALPHA


def test_branches_and_tags_are_those_expected(opened: Opened) -> None:
    refs, expected = opened.refs, opened.expected
    assert texts(refs.branches()) == expected["branches"]
    assert texts(refs.tags()) == expected["tags"]
    assert refs.deleted_tags() == expected["deleted_tags"]
    for name in expected["deleted_tags"]:
        assert refs.tag(name) is None


def test_the_history_of_every_reference_is_that_expected(opened: Opened) -> None:
    heads = {f"branch:{name}": at for name, at in opened.refs.branches().items()}
    heads |= {f"tag:{name}": at for name, at in opened.refs.tags().items()}
    assert heads.keys() == opened.expected["ancestry"].keys()
    for ref, identity in heads.items():
        expected = [(entry["id"], entry["message"]) for entry in opened.expected["ancestry"][ref]]
        assert list(opened.ancestry(identity)) == expected


def test_every_node_has_the_metadata_references_and_values_expected(opened: Opened) -> None:
    for contents in opened.expected["contents"].values():
        snapshot = opened.snapshot(SnapshotId(decode_base32(contents["snapshot"])))
        check_contents(opened, snapshot, contents)


def check_contents(opened: Opened, snapshot: Snapshot, contents: dict[str, Any]) -> None:
    groups = {path: node for path, node in snapshot.nodes.items() if node.is_group}
    arrays = {path: node for path, node in snapshot.nodes.items() if not node.is_group}
    assert groups.keys() == contents["groups"].keys()
    for path, node in groups.items():
        document = json.loads(node.user_data)
        assert (document["zarr_format"], document["node_type"]) == (3, "group")
        assert document.get("attributes", {}) == contents["groups"][path]
    assert arrays.keys() == contents["arrays"].keys()
    for path, node in arrays.items():
        check_array(opened, node, contents["arrays"][path])


def check_array(opened: Opened, node: Node, expected: dict[str, Any]) -> None:
    document = json.loads(node.user_data)
    assert document["node_type"] == "array"
    assert document["data_type"] == expected["dtype"]
    assert document.get("dimension_names") == expected["dimension_names"]
    for name in ("shape", "fill_value", "chunk_grid", "attributes"):
        assert document[name] == expected[name], name
    assert [codec["name"] for codec in document["codecs"]] == expected["codecs"]
    assert node.array is not None
    assert [side.length for side in node.array.shape] == expected["shape"]
    assert node.id == node_id(expected["node_id"])
    refs = opened.chunk_refs(node)
    counts = {name: int((refs.kind == kind).sum()) for name, kind in KINDS.items()}
    assert counts == expected["chunk_refs"]
    for row in np.flatnonzero(refs.kind == RefKind.VIRTUAL):
        check_virtual(refs[int(row)], opened.expected["virtual"])
    values = opened.values(node)
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    assert hashlib.sha256(little.tobytes()).hexdigest() == expected["sha256"]


def check_virtual(found: Payload | None, expected: dict[str, Any]) -> None:
    seconds = expected["checksum_last_modified"]
    checksum = None if seconds is None else LastModified(seconds)
    assert expected["checksum_etag"] is None
    assert found == Virtual(expected["location"], expected["offset"], expected["length"], checksum)


def node_id(expected: int | str) -> NodeId:
    if isinstance(expected, int):
        return NodeId(expected.to_bytes(8, "big"))
    if len(expected) == 16:
        return NodeId(bytes.fromhex(expected))
    return NodeId(decode_base32(expected, 8))


def test_every_file_can_be_decoded_and_is_counted(opened: Opened) -> None:
    storage, codec, layout = opened.refs.storage, opened.refs.codec, opened.refs.layout
    readers = {
        "snapshots": (layout.snapshots, codec.decode_snapshot),
        "manifests": (layout.manifests, codec.decode_manifest),
        "transaction_logs": (layout.transactions, codec.decode_log),
    }
    for what, (prefix, read) in readers.items():
        keys = [item.key for item in storage.scan(prefix)]
        assert len(keys) == opened.expected["counts"][what]
        for key in keys:
            fetched = storage.get(key)
            assert fetched is not None
            read(fetched.data, decode_base32(key.removeprefix(prefix)), where=key)  # type: ignore[operator]


def test_logs_say_what_a_commit_wrote(opened: Opened) -> None:
    history = list(opened.ancestry(opened.refs.branches()["main"]))
    identity = next(
        SnapshotId(decode_base32(i)) for i, message in history if message == "fill data"
    )
    key = opened.refs.layout.transaction(identity)
    fetched = opened.refs.storage.get(key)
    if fetched is None:
        assert opened.expected["counts"]["transaction_logs"] == 0
        return
    log = opened.refs.codec.decode_log(fetched.data, identity, where=key)
    nodes = opened.snapshot(identity).nodes
    big, small = nodes["/group1/big_chunks"].id, nodes["/group1/small_chunks"].id
    assert {node: rows.tolist() for node, rows in log.updated_chunks.items()} == {
        big: [[0, 0], [0, 1], [1, 0], [1, 1]],
        small: [[0], [1], [2], [3], [4]],
    }
    assert not log.new_arrays | log.updated_arrays | log.updated_groups


def test_a_commit_on_top_keeps_everything_below(opened: Opened) -> None:
    refs = opened.refs
    base = opened.snapshot(refs.branches()["main"])
    document = b'{"zarr_format": 3, "node_type": "group", "attributes": {"new": true}}'
    node = Node(NodeId(b"new-node"), "/new", document)
    child = replace(
        base,
        id=SnapshotId(b"child-of-old"),
        parent_id=base.id,
        message="on top",
        nodes=in_order([*base.nodes.values(), node]),
    )
    data = refs.codec.encode_snapshot(child, level=1)
    refs.storage.put(refs.layout.snapshot(child.id), data, expect=Anything())
    assert refs.commit("main", base.id, child) == Moved()

    reopened = Opened(AlphaRefs(refs.storage), opened.expected)
    head = reopened.refs.branch("main")
    assert head == child.id
    below = [
        (entry["id"], entry["message"]) for entry in opened.expected["ancestry"]["branch:main"]
    ]
    assert list(reopened.ancestry(head)) == [(encode_base32(child.id), "on top"), *below]
    contents = opened.expected["contents"]["branch:main"]
    with_new = contents | {"groups": contents["groups"] | {"/new": {"new": True}}}
    check_contents(reopened, reopened.snapshot(head), with_new)


def test_a_stored_configuration_of_any_age_is_read(opened: Opened) -> None:
    stored = opened.refs.config()
    has_file = opened.refs.storage.head("config.yaml") is not None
    assert (stored is not None) is has_file
    if stored is not None:
        assert stored.config.inline_chunk_threshold_bytes == 12


def test_manifests_of_the_last_shape_are_written_byte_for_byte() -> None:
    codec = AlphaCodec()
    (name,) = fixtures.names("g2-eeb8f7f7")
    for file, data in fixtures.files(name, "manifests"):
        identity = ManifestId(decode_base32(file))
        again = codec.encode_manifest(codec.decode_manifest(data, identity, where=file), level=3)
        was, now = (
            envelope.unpack(form, where=file, expected=FileType.MANIFEST, limit=1 << 20).payload
            for form in (data, again)
        )
        assert was == now


def plain(data: bytes, file_type: FileType) -> Any:
    payload = envelope.unpack(data, where="x", expected=file_type, limit=1 << 20).payload
    return msgpack.unpackb(payload, strict_map_key=False, use_list=False)


def test_snapshots_of_the_last_shape_are_written_alike_but_for_nanoseconds() -> None:
    codec = AlphaCodec()
    (name,) = fixtures.names("g2-eeb8f7f7")
    for file, data in fixtures.files(name, "snapshots"):
        identity = SnapshotId(decode_base32(file))
        again = codec.encode_snapshot(codec.decode_snapshot(data, identity, where=file), level=3)
        was, now = plain(data, FileType.SNAPSHOT), plain(again, FileType.SNAPSHOT)
        assert was[2][:26] == now[2][:26]
        assert repr((*was[:2], *was[3:5], *was[6:])) == repr((*now[:2], *now[3:5], *now[6:]))
        assert sorted(was[5]) == sorted(now[5])


def test_logs_of_the_last_shape_are_written_alike_but_for_order() -> None:
    codec = AlphaCodec()
    (name,) = fixtures.names("g2-eeb8f7f7")
    for file, data in fixtures.files(name, "transactions"):
        identity = SnapshotId(decode_base32(file))
        again = codec.encode_log(codec.decode_log(data, identity, where=file), level=3)
        *was_ids, was_chunks = plain(data, FileType.TRANSACTION_LOG)
        *now_ids, now_chunks = plain(again, FileType.TRANSACTION_LOG)
        assert list(map(sorted, was_ids)) == list(map(sorted, now_ids))
        assert {n: set(c) for n, c in was_chunks.items()} == {
            n: set(c) for n, c in now_chunks.items()
        }


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_of_every_shape_are_values_or_refusals(name: str) -> None:
    codec = AlphaCodec()
    chance = random.Random(name)
    readers = {
        "snapshots": codec.decode_snapshot,
        "manifests": codec.decode_manifest,
        "transactions": codec.decode_log,
    }
    for folder, read in readers.items():
        for file, data in fixtures.files(name, folder):
            payload = without_wrapping(data)
            for _ in range(40):
                damaged = bytearray(payload)
                for _ in range(chance.randint(1, 3)):
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
                with suppress(FormatError, UnsupportedError):
                    read(bytes(damaged), decode_base32(file), where=file)  # type: ignore[operator]


def without_wrapping(data: bytes) -> bytes:
    """Plain MessagePack is read as well, so damage reaches the records, not the compression."""
    if envelope.has_header(data):
        data = data[envelope.HEADER_SIZE :]
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data
