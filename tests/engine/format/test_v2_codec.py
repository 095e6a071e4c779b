"""Files of generation `2`: what differs from generation `1` survives, and both are read."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from support import fixtures

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, Native, Virtual
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.ids import (
    ManifestId,
    NodeId,
    SnapshotId,
    decode_base32,
)
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    Manifest,
    ManifestFile,
    ManifestRef,
    Move,
    Node,
    Snapshot,
    TransactionLog,
    in_order,
)
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec
from airflow_provider_icechunk.engine.format.v2 import locations
from airflow_provider_icechunk.engine.format.v2.codec import V2Codec, seal
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument, parse_node
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    UnsupportedError,
)

CODEC = V2Codec()
SNAPSHOT = SnapshotId(b"snapshot-one")
MANIFEST = ManifestId(b"manifest-one")
NODE = NodeId(b"node-one")


def document(shape: list[int], grid: dict[str, object]) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "int32",
            "chunk_grid": grid,
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    ).encode()


def regular(*chunks: int) -> dict[str, object]:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}


def rectilinear(*shapes: object, kind: str = "inline") -> dict[str, object]:
    return {
        "name": "rectilinear",
        "configuration": {"kind": kind, "chunk_shapes": list(shapes)},
    }


def snapshot() -> Snapshot:
    array = ArrayData(
        (Dimension(10, 3, 4), Dimension(0, 0, 0)),
        ("x", None),
        (ManifestRef(MANIFEST, ((0, 4), (0, 1))),),
    )
    nodes = [
        Node(NodeId(b"rootroot"), "/", b'{"zarr_format": 3, "node_type": "group"}'),
        Node(NODE, "/a", document([10, 0], regular(3, 1)), array),
        Node(NodeId(b"scalar!!"), "/a-b", document([], regular()), ArrayData((), None)),
    ]
    return Snapshot(
        SNAPSHOT,
        None,
        123456789,
        "message",
        {"big": 2**64 - 1, "f": 1e300, "l": [None, True, {"k": "v"}]},
        in_order(nodes),
        {MANIFEST: ManifestFile(MANIFEST, 4711, 3)},
    )


def test_snapshots_come_back_as_they_were():
    data = CODEC.encode_snapshot(snapshot(), level=3)
    again = CODEC.decode_snapshot(data, SNAPSHOT, where="s")
    assert again == snapshot()
    assert [side.num_chunks for side in again.nodes["/a"].array.shape] == [4, 0]
    assert data[36] == 2


def test_the_parent_is_not_in_the_file():
    child = replace(snapshot(), parent_id=SnapshotId(b"parent-id-12"))
    data = CODEC.encode_snapshot(child, level=3)
    assert CODEC.decode_snapshot(data, SNAPSHOT, where="s").parent_id is None


def test_numbers_of_chunks_that_nobody_noted_come_from_the_zarr_document():
    bare = ArrayData((Dimension(10, 3), Dimension(7, 7)), None)
    node = Node(NODE, "/a", document([10, 7], regular(3, 7)), bare)
    data = CODEC.encode_snapshot(
        replace(snapshot(), nodes={"/a": node}, manifest_files={}), level=3
    )
    sides = CODEC.decode_snapshot(data, SNAPSHOT, where="s").nodes["/a"].array.shape
    assert [side.num_chunks for side in sides] == [4, 1]


def test_files_of_generation_1_are_read_by_their_own_header():
    old = replace(snapshot(), parent_id=SnapshotId(b"parent-id-12"), metadata={"a": [1, "x"]})
    data = V1Codec().encode_snapshot(old)
    assert CODEC.decode_snapshot(data, SNAPSHOT, where="s") == old
    log = TransactionLog(SNAPSHOT, new_groups=frozenset({NODE}))
    assert CODEC.decode_log(V1Codec().encode_log(log), SNAPSHOT, where="t").new_groups == {NODE}


def test_a_file_under_a_wrong_name_is_refused():
    data = CODEC.encode_snapshot(snapshot(), level=3)
    with pytest.raises(FormatError, match="moved or replaced"):
        CODEC.decode_snapshot(data, SnapshotId(b"another--one"), where="s")


def test_moves_are_kept_in_the_order_of_their_segments():
    moves = (
        Move(NodeId(b"node-001"), False, "/q", "/a-b"),
        Move(NodeId(b"node-002"), True, "/w/x", "/a/b"),
        Move(NodeId(b"node-003"), False, "/w", "/a"),
    )
    log = TransactionLog(SNAPSHOT, moves=moves)
    again = CODEC.decode_log(CODEC.encode_log(log, level=3), SNAPSHOT, where="t")
    assert [move.target for move in again.moves] == ["/a", "/a/b", "/a-b"]
    assert set(again.moves) == set(moves)
    with pytest.raises(InvalidInputError, match="generation `2`"):
        V1Codec().encode_log(log)


def refs() -> ChunkRefs:
    return ChunkRefs.from_items(
        1,
        [
            ((0,), Inline(b"bytes")),
            ((1,), Native(b"chunk-chunk!", 5, 6)),
            ((2,), Virtual("s3://b/k", 1, 2)),
        ],
    )


def test_manifests_say_that_nothing_is_compressed():
    data = CODEC.encode_manifest(Manifest(MANIFEST, {NODE: (refs(),)}), level=3)
    found = CODEC.decode_manifest(data, MANIFEST, where="m").of(NODE, 1)
    assert [found[row] for row in range(3)] == [refs()[row] for row in range(3)]
    import flatbuffers.table

    payload = envelope.unpack(data, where="m", expected=FileType.MANIFEST, limit=1 << 20).payload
    root = int.from_bytes(payload[:4], "little")
    table = flatbuffers.table.Table(payload, root)
    offset = table.Offset(4 + 2 * 3)
    assert offset
    assert payload[root + offset] == 0


@pytest.mark.parametrize("name", fixtures.names("g4-"))
@fixtures.needs_fixtures
def test_official_files_come_back_as_they_were(name):
    for text, data in fixtures.files(name, "snapshots"):
        identity = SnapshotId(decode_base32(text))
        found = CODEC.decode_snapshot(data, identity, where=text)
        again = CODEC.decode_snapshot(CODEC.encode_snapshot(found, level=1), identity, where=text)
        assert again == replace(found, parent_id=None)
    for text, data in fixtures.files(name, "transactions"):
        identity = SnapshotId(decode_base32(text))
        log = CODEC.decode_log(data, identity, where=text)
        assert CODEC.decode_log(CODEC.encode_log(log, level=1), identity, where=text).moves == (
            log.moves
        )
    for text, data in fixtures.files(name, "manifests"):
        manifest_id = ManifestId(decode_base32(text))
        manifest = CODEC.decode_manifest(data, manifest_id, where=text)
        again_bytes = CODEC.encode_manifest(manifest, level=1)
        again_manifest = CODEC.decode_manifest(again_bytes, manifest_id, where=text)
        for node, (part,) in manifest.arrays.items():
            other = again_manifest.of(node, part.ndim)
            assert (other.index == part.index).all()
            assert other.locations() == part.locations()
            assert (other.modified == part.modified).all()


# --- locations compressed with a dictionary ------------------------------------------------------


def frames(texts: list[bytes]) -> tuple[bytes, np.ndarray, bytes]:
    dictionary = zstandard.train_dictionary(
        2048, [b"s3://bucket/some/path/%06d.nc" % n for n in range(2000)]
    )
    packer = zstandard.ZstdCompressor(level=3, dict_data=dictionary)
    payload, spans = bytearray(b"head"), []
    for text in texts:
        frame = packer.compress(text)
        spans.append((len(payload), len(payload) + len(frame)))
        payload += frame
    return bytes(payload), np.array(spans, np.uint64).reshape(-1, 2), dictionary.as_bytes()


def test_compressed_locations_are_unpacked_once_each():
    texts = [b"s3://bucket/some/path/%06d.nc" % n for n in (1, 2, 3)] + [b"x" * 1024, b""]
    payload, spans, dictionary = frames(texts)
    spans = np.concatenate([spans, spans[:1]])
    heap, found = locations.unpack_frames(payload, spans, dictionary, "m")
    assert [heap[a:b] for a, b in found.tolist()] == [*texts, texts[0]]
    assert len(heap) == sum(map(len, texts))


@pytest.mark.parametrize("length", [1025, 70_000])
def test_locations_longer_than_official_readers_accept_are_refused(length):
    payload, spans, dictionary = frames([b"x" * length])
    with pytest.raises(FormatError, match="more than 1024"):
        locations.unpack_frames(payload, spans, dictionary, "m")


def test_damaged_frames_are_refused():
    payload, spans, dictionary = frames([b"s3://bucket/some/path/000001.nc"])
    start, stop = (int(number) for number in spans[0])
    dice = random.Random(3)
    for _ in range(300):
        data = bytearray(payload)
        data[dice.randrange(start, stop)] = dice.randrange(256)
        with contextlib.suppress(FormatError):
            heap, _ = locations.unpack_frames(bytes(data), spans, dictionary, "m")
            assert len(heap) <= 1024
    with pytest.raises(FormatError):
        locations.unpack_frames(payload, spans, b"no dictionary", "m")
    with pytest.raises(FormatError):
        locations.unpack_frames(payload, np.array([[0, 3]], np.uint64), dictionary, "m")


# --- chunks of different sizes -------------------------------------------------------------------


def test_rectilinear_grids_count_their_chunks():
    found = parse_node(document([6, 4], rectilinear([1, 2, 3], [[2, 2]])), rectilinear=True)
    assert isinstance(found, ArrayDocument)
    assert found.num_chunks == (3, 2)
    assert found.chunk_shape == (3, 2)
    huge = parse_node(document([1 << 40], rectilinear([[1024, 1 << 30]])), rectilinear=True)
    assert isinstance(huge, ArrayDocument)
    assert huge.num_chunks == (1 << 30,)


def test_rectilinear_grids_are_for_generation_2_only():
    with pytest.raises(UnsupportedError, match="generation `2`"):
        parse_node(document([6, 4], rectilinear([1, 2, 3], [[2, 2]])))


@pytest.mark.parametrize(
    "grid",
    [
        rectilinear([1, 2, 3]),
        rectilinear([1, 2, 3], 0),
        rectilinear([1, 2, 3], [[2, 2, 2]]),
        rectilinear([1, 2, 3], [[2, -1]]),
        rectilinear([1, 2, 3], [0]),
        rectilinear([1, 2, 3], [True]),
        rectilinear([1, 2, 3], ["x"]),
        rectilinear([1, 2, 3], [[1, 1 << 33]]),
        rectilinear([1, 2, 3], [4], kind="file"),
        {"name": "rectilinear", "configuration": {"chunk_shapes": "x"}},
    ],
)
def test_rectilinear_grids_that_make_no_sense_are_refused(grid):
    with pytest.raises(InvalidInputError):
        parse_node(document([6, 4], grid), rectilinear=True)


@pytest.mark.parametrize("kind", [FileType.SNAPSHOT, FileType.MANIFEST, FileType.TRANSACTION_LOG])
def test_damaged_files_raise_nothing_but_refusals(kind):
    moves = (Move(NODE, True, "/a", "/b"),)
    sound, decode = {
        FileType.SNAPSHOT: (CODEC.encode_snapshot(snapshot(), level=1), CODEC.decode_snapshot),
        FileType.MANIFEST: (
            CODEC.encode_manifest(Manifest(MANIFEST, {NODE: (refs(),)}), level=1),
            CODEC.decode_manifest,
        ),
        FileType.TRANSACTION_LOG: (
            CODEC.encode_log(TransactionLog(SNAPSHOT, moves=moves), level=1),
            CODEC.decode_log,
        ),
    }[kind]
    identity = MANIFEST if kind is FileType.MANIFEST else SNAPSHOT
    payload = envelope.unpack(sound, where="x", expected=kind, limit=1 << 20).payload
    dice = random.Random(11)
    for _ in range(1500):
        data = bytearray(payload)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.choice((0, 1, 127, 255, dice.randrange(256)))
        with contextlib.suppress(FormatError, UnsupportedError):
            decode(seal(kind, data, 1), identity, where="x")


@pytest.mark.parametrize("shape", ["NEWER", "NODE", "MANIFEST_INFO"])
def test_what_a_newer_version_stored_in_a_snapshot_is_not_written_over(
    monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    from airflow_provider_icechunk.engine.format.v1 import snapshot_layout as files
    from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import Shape

    known = getattr(files, shape)
    slots = {"NEWER": 9, "NODE": 6, "MANIFEST_INFO": 4}[shape]
    newer = Shape(known.size, (*known.slots, *[0] * (slots - len(known.slots)), 4))
    monkeypatch.setattr(files, shape, newer)
    monkeypatch.setattr(files, "SHAPES", (*files.SHAPES, newer))
    codec = V2Codec()
    base = snapshot()
    data = codec.encode_snapshot(base)
    monkeypatch.undo()
    found = codec.decode_snapshot(data, base.id, where="s")
    assert found.nodes.keys() == base.nodes.keys()
    child = replace(base, id=SnapshotId(b"another one!"), parent_id=base.id)
    with pytest.raises(UnsupportedError, match="newer version"):
        codec.encode_snapshot(child)
    V2Codec().encode_snapshot(child)
