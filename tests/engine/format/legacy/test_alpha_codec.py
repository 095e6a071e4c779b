"""Files of generation `alpha`: what is written comes back, and damage is an answer, not a crash."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.alpha import (
    CODEC,
    MANIFEST,
    NODE,
    PARENT,
    SNAPSHOT,
    WHERE,
    array_node,
    group_node,
    snapshot_of,
)

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Inline,
    LastModified,
    Native,
    RefKind,
    Virtual,
)
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, encode_base32
from airflow_provider_icechunk.engine.format.legacy.alpha.scalars import decode_time, encode_time
from airflow_provider_icechunk.engine.format.model import (
    Manifest,
    ManifestRef,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
)

identities = st.binary(min_size=12, max_size=12)
node_ids = st.binary(min_size=8, max_size=8).map(NodeId)
u64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
u32 = st.integers(0, 2**32 - 1) | st.integers(0, 300)
locations = st.text(min_size=1, max_size=300)
checksums = (
    st.none()
    | st.text(min_size=1, max_size=40).map(ETag)
    | st.integers(1, 2**32 - 1).map(LastModified)
)
payloads = (
    st.builds(Inline, st.binary(min_size=1, max_size=300))
    | st.builds(Native, identities, u64, u64)
    | st.builds(Virtual, locations, u64, u64, checksums)
)


@st.composite
def references(draw: st.DrawFn) -> ChunkRefs:
    ndim = draw(st.integers(0, 4))
    index = st.tuples(*[u32] * ndim)
    return ChunkRefs.from_items(ndim, draw(st.dictionaries(index, payloads, min_size=1)).items())


def items(refs: ChunkRefs) -> list[tuple[list[int], Any]]:
    return [(refs.index[row].tolist(), refs[row]) for row in range(len(refs))]


def read_back(snapshot: Snapshot) -> Snapshot:
    data = CODEC.encode_snapshot(snapshot, level=1)
    return CODEC.decode_snapshot(data, snapshot.id, where=WHERE)


def file_of(value: object, file_type: FileType = FileType.SNAPSHOT) -> bytes:
    payload = msgpack.packb(value)
    return envelope.pack(file_type, payload, spec_version=1, level=1, writer="test")


def unwrapped(data: bytes, file_type: FileType) -> bytes:
    return envelope.unpack(data, where=WHERE, expected=file_type, limit=1 << 30).payload


# snapshots


def test_a_snapshot_comes_back_as_it_was_written() -> None:
    snapshot = snapshot_of(group_node("/"), group_node("/group", {"a": 1}), array_node())
    back = read_back(snapshot)
    assert replace(back, nodes={}) == replace(snapshot, nodes={})
    assert list(back.nodes) == list(snapshot.nodes)
    for path, node in back.nodes.items():
        expected = snapshot.nodes[path]
        assert json.loads(node.user_data) == json.loads(expected.user_data)
        assert replace(node, user_data=b"") == replace(expected, user_data=b"")


@pytest.mark.parametrize(
    ("data_type", "fill"),
    [
        ("bool", True),
        ("int8", -8),
        ("uint64", 2**64 - 1),
        ("float16", 1.5),
        ("float32", 0.1),
        ("float64", "-Infinity"),
        ("complex64", [1.5, "NaN"]),
        ("complex128", [0.1, -2.0]),
        ("string", "text"),
    ],
)
def test_every_fill_value_comes_back(data_type: str, fill: Any) -> None:
    back = read_back(snapshot_of(array_node(data_type=data_type, fill_value=fill)))
    document = json.loads(back.nodes["/group/array"].user_data)
    assert (document["data_type"], document["fill_value"]) == (data_type, fill)


def test_single_precision_fill_values_take_32_bits() -> None:
    data = CODEC.encode_snapshot(snapshot_of(array_node(fill_value=0.1)), level=1)
    assert b"\x81\xa7Float32\xca" in unwrapped(data, FileType.SNAPSHOT)


def test_nodes_are_written_by_path_component_and_read_in_byte_order() -> None:
    paths = ["/", "/a", "/a/b", "/a-b"]
    snapshot = snapshot_of(*map(group_node, paths))
    written = msgpack.unpackb(
        unwrapped(CODEC.encode_snapshot(snapshot, level=1), FileType.SNAPSHOT), strict_map_key=False
    )
    assert list(written[7]) == paths
    assert list(read_back(snapshot).nodes) == ["/", "/a", "/a-b", "/a/b"]


def test_unknown_extents_are_written_as_the_whole_grid() -> None:
    node = array_node()
    assert node.array is not None
    unknown = replace(node.array, manifests=(ManifestRef(MANIFEST, None),))
    back = read_back(snapshot_of(replace(node, array=unknown)))
    array = back.nodes[node.path].array
    assert array is not None
    assert array.manifests == (ManifestRef(MANIFEST, ((0, 2), (0, 2))),)


def test_a_manifest_that_only_a_node_names_is_still_kept() -> None:
    snapshot = replace(snapshot_of(array_node()), manifest_files={})
    assert list(read_back(snapshot).manifest_files) == [MANIFEST]


def test_a_snapshot_under_another_name_is_refused() -> None:
    data = CODEC.encode_snapshot(snapshot_of(), level=1)
    with pytest.raises(FormatError, match=encode_base32(SNAPSHOT)):
        CODEC.decode_snapshot(data, PARENT, where=WHERE)


def old_first_snapshot(*history: tuple[str, str, str]) -> bytes:
    own = (encode_base32(SNAPSHOT), "2024-10-13T18:53:45.425022391Z", "Repository initialized")
    depth = len(history)
    return msgpack.packb((0, {}, (), (), depth, depth, history, own, own[1], {}, {}))


def test_an_old_first_snapshot_may_have_another_id_inside() -> None:
    snapshot = CODEC.decode_snapshot(old_first_snapshot(), PARENT, where=WHERE)
    assert (snapshot.id, snapshot.parent_id) == (PARENT, None)
    assert snapshot.flushed_at == 1_728_845_625_425_022
    assert CODEC.embedded_id(old_first_snapshot(), where=WHERE) == SNAPSHOT


def test_an_old_later_snapshot_may_not() -> None:
    entry = (encode_base32(MANIFEST), "2024-10-13T18:53:45Z", "before")
    data = old_first_snapshot(entry)
    assert CODEC.decode_snapshot(data, SNAPSHOT, where=WHERE).parent_id == MANIFEST
    with pytest.raises(FormatError):
        CODEC.decode_snapshot(data, PARENT, where=WHERE)


def test_an_attribute_file_that_is_not_there_is_missed() -> None:
    ident = [SNAPSHOT, []]
    base = [ident, None, "2025-01-30T00:00:00Z", "m", {}, [], [], {}]
    node = [[NODE, []], "/", {"Ref": [[MANIFEST, []], 0]}, "Group"]
    for change in ({6: [ident]}, {6: [[1]]}, {7: {"/": node}}):
        value = [change.get(at, item) for at, item in enumerate(base)]
        with pytest.raises(FormatError):
            CODEC.decode_snapshot(file_of(value), SNAPSHOT, where=WHERE)
    base[6] = [[ident]]
    found = CODEC.decode_snapshot(file_of(base), SNAPSHOT, where=WHERE)
    assert found.attribute_files == {SNAPSHOT}


@pytest.mark.parametrize("path", ["", "a", "/a/", "/../a", "/a//b", "/\0"])
def test_node_paths_that_leave_the_tree_are_refused(path: str) -> None:
    node = [[NODE, []], path, None, "Group"]
    value = [[SNAPSHOT, []], None, "2025-01-30T00:00:00Z", "m", {}, [], [], {path: node}]
    with pytest.raises(FormatError):
        CODEC.decode_snapshot(file_of(value), SNAPSHOT, where=WHERE)


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_times_come_back_to_the_microsecond(moment: int) -> None:
    assert decode_time(encode_time(moment), where=WHERE) == moment


@pytest.mark.parametrize(
    "text", ["", "2025", "2025-13-01T00:00:00Z", "2025-01-01T00:00:00", 5, "x"]
)
def test_what_is_no_time_is_refused(text: Any) -> None:
    with pytest.raises(FormatError):
        decode_time(text, where=WHERE)


# manifests


@given(st.dictionaries(node_ids, references(), max_size=3))
def test_a_manifest_comes_back_as_it_was_written(arrays: dict[NodeId, ChunkRefs]) -> None:
    manifest = Manifest(MANIFEST, {node: (refs,) for node, refs in arrays.items()})
    data = CODEC.encode_manifest(manifest, level=1)
    back = CODEC.decode_manifest(data, MANIFEST, where=WHERE)
    assert list(back.arrays) == sorted(arrays)
    for node, refs in arrays.items():
        assert items(back.of(node, refs.ndim)) == items(refs)


@given(references())
def test_manifests_are_packed_as_compactly_as_a_plain_serializer_does(refs: ChunkRefs) -> None:
    def plain(payload: Any) -> Any:
        match payload:
            case Inline(data):
                return {"Inline": data}
            case Native(identity, offset, length):
                return {"Ref": [[identity, []], offset, length]}
            case Virtual(location, offset, length, checksum):
                tail = None
                if isinstance(checksum, ETag):
                    tail = {"ETag": checksum.value}
                elif isinstance(checksum, LastModified):
                    tail = {"LastModified": checksum.seconds}
                return {"Virtual": [location, offset, length, tail]}

    packer = msgpack.Packer()
    entries = b"".join(packer.pack(index) + packer.pack(plain(p)) for index, p in items(refs))
    expected = b"".join(
        [
            b"\x92",
            packer.pack([MANIFEST, []]),
            b"\x81",
            packer.pack([NODE, []]),
            packer.pack_map_header(len(refs)),
            entries,
        ]
    )
    data = CODEC.encode_manifest(Manifest(MANIFEST, {NODE: (refs,)}), level=1)
    assert unwrapped(data, FileType.MANIFEST) == expected


def test_coordinates_of_another_rank_are_kept_apart() -> None:
    wanted, stray = Native(MANIFEST, 0, 100), Inline(b"T")  # type: ignore[arg-type]
    text = encode_base32(MANIFEST)
    chunks = {
        (3, (1, 0)): {"Ref": (text, 0, 100)},
        (3, (0,)): {"Inline": b"T"},
        (3, (0, 1)): {"Virtual": ({"Absolute": "s3://b/k"}, 5, 6)},
    }
    manifest = CODEC.decode_manifest(msgpack.packb((0, {}, chunks)), MANIFEST, where=WHERE)
    node = NodeId((3).to_bytes(8, "big"))
    assert items(manifest.of(node, 2)) == [([0, 1], Virtual("s3://b/k", 5, 6)), ([1, 0], wanted)]
    assert items(manifest.of(node, 1)) == [([0], stray)]
    assert len(manifest.of(node, 3)) == 0


def test_a_bare_zstd_stream_is_a_manifest_too() -> None:
    payload = msgpack.packb((0, {}, {("0000000000000", (7,)): {"Inline": b"x"}}))
    stream = zstandard.ZstdCompressor().compressobj()
    data = stream.compress(payload) + stream.flush()
    manifest = CODEC.decode_manifest(data, MANIFEST, where=WHERE)
    assert items(manifest.of(NodeId(bytes(8)), 1)) == [([7], Inline(b"x"))]


def test_a_manifest_under_another_name_is_refused() -> None:
    data = CODEC.encode_manifest(Manifest(MANIFEST, {}), level=1)
    with pytest.raises(FormatError, match=encode_base32(MANIFEST)):
        CODEC.decode_manifest(data, ManifestId(bytes(12)), where=WHERE)


def test_erased_references_cannot_be_written() -> None:
    erased = ChunkRefs.blank(np.zeros((1, 1), np.uint32), kind=RefKind.ERASED)
    with pytest.raises(InvalidInputError):
        CODEC.encode_manifest(Manifest(MANIFEST, {NODE: (erased,)}), level=1)


@pytest.mark.parametrize(
    ("coordinates", "payload"),
    [
        ((True,), {"Inline": b"x"}),
        ((2**32,), {"Inline": b"x"}),
        ((-1,), {"Inline": b"x"}),
        ((1.0,), {"Inline": b"x"}),
        ("ab", {"Inline": b"x"}),
        ((0,) * 300, {"Inline": b"x"}),
        ((0,), {"Inline": "text"}),
        ((0,), {"Other": b"x"}),
        ((0,), {"Inline": b"x", "Ref": b"x"}),
        ((0,), {}),
        ((0,), {1: b"x"}),
        ((0,), "Inline"),
        ((0,), {"Ref": [[b"short", []], 0, 1]}),
        ((0,), {"Ref": [[MANIFEST, [0]], 0, 1]}),
        ((0,), {"Ref": ["no such id", 0, 1]}),
        ((0,), {"Ref": ["U" * 20, 0, 1]}),
        ((0,), {"Ref": ["é" * 20, 0, 1]}),
        ((0,), {"Ref": [[MANIFEST, []], -1, 1]}),
        ((0,), {"Ref": [[MANIFEST, []], 0]}),
        ((0,), {"Virtual": [5, 0, 1, None]}),
        ((0,), {"Virtual": [{"Relative": "x"}, 0, 1, None]}),
        ((0,), {"Virtual": ["s3://b/k", 0, 1, {"LastModified": 2**32}]}),
        ((0,), {"Virtual": ["s3://b/k", 0, 1, {"Sha": "x"}]}),
    ],
)
def test_a_wrong_reference_is_refused(coordinates: Any, payload: Any) -> None:
    key = msgpack.packb(coordinates)
    entry = b"\x81" + msgpack.packb([NODE, []]) + b"\x81" + key + msgpack.packb(payload)
    data = b"\x92" + msgpack.packb([MANIFEST, []]) + entry
    with pytest.raises(FormatError, match="some/file"):
        CODEC.decode_manifest(data, MANIFEST, where=WHERE)


# logs

log_ids = st.frozensets(node_ids, max_size=4)


@given(log_ids, log_ids, log_ids, st.dictionaries(node_ids, references(), max_size=3))
def test_a_log_comes_back_as_it_was_written(
    new: frozenset[NodeId],
    deleted: frozenset[NodeId],
    updated: frozenset[NodeId],
    chunks: dict[NodeId, ChunkRefs],
) -> None:
    log = TransactionLog(
        id=SNAPSHOT,
        new_arrays=new,
        deleted_groups=deleted - new,
        updated_arrays=updated - new - deleted,
        updated_chunks={node: chunks[node].index for node in sorted(chunks)},
    )
    data = CODEC.encode_log(log, level=1)
    back = CODEC.decode_log(data, SNAPSHOT, where=WHERE)
    assert (back.new_arrays, back.deleted_groups) == (log.new_arrays, log.deleted_groups)
    assert back.updated_arrays == log.updated_arrays
    assert not back.updated_groups
    assert list(back.updated_chunks) == list(log.updated_chunks)
    for node, rows in back.updated_chunks.items():
        assert rows.tolist() == log.updated_chunks[node].tolist()


def test_an_updated_group_is_found_in_the_log() -> None:
    log = TransactionLog(id=SNAPSHOT, updated_groups=frozenset([NODE]))
    back = CODEC.decode_log(CODEC.encode_log(log, level=1), SNAPSHOT, where=WHERE)
    assert NODE in back.updated_groups


def test_new_nodes_are_not_updated_ones() -> None:
    log = TransactionLog(id=SNAPSHOT, new_groups=frozenset([NODE]))
    data = CODEC.encode_log(log, level=1)
    written = msgpack.unpackb(unwrapped(data, FileType.TRANSACTION_LOG), strict_map_key=False)
    assert written[4] == [[NODE, []]]
    back = CODEC.decode_log(data, SNAPSHOT, where=WHERE)
    assert not back.updated_groups
    assert not back.updated_arrays


def test_unordered_log_coordinates_are_sorted_and_made_unique() -> None:
    value = (0, (), (), (), (), (), (), {"0000000000000": ((1, 0), (0, 1), (1, 0), (5,))})
    back = CODEC.decode_log(msgpack.packb(value), SNAPSHOT, where=WHERE)
    assert back.updated_chunks[NodeId(bytes(8))].tolist() == [[0, 1], [1, 0]]
