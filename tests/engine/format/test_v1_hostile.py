"""Stored bytes are hostile: whatever is done to a file, it is read or refused, nothing else."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fixtures import files, names
from support.model import plain_log, plain_references

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Inline,
    LastModified,
    Native,
    Virtual,
)
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.ids import ChunkId, ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    Manifest,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.engine.format.v1 import (
    logs,
    manifest_read,
    manifest_write,
    snapshots,
)
from airflow_provider_icechunk.engine.format.v1.manifest_read import ManifestSearch
from airflow_provider_icechunk.engine.format.v1.snapshots import decode_value
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import PayloadWriter, Shape
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

NODE = NodeId(b"nodenode")
MANIFEST = ManifestId(b"m" * 12)
SNAPSHOT = SnapshotId(b"s" * 12)
PLACES = [(0, 1), (1, 0), (1, 1), (2, 0), (3,), ()]
DOCUMENT = json.dumps({"zarr_format": 3, "node_type": "group"}).encode()


def own_snapshot() -> bytes:
    box = ((0, 2), (1, 3))
    array = ArrayData(
        (Dimension(10, 5), Dimension(9, 3)), ("x", None), (ManifestRef(MANIFEST, box),)
    )
    nodes = {
        "/": Node(NodeId(b"rootroot"), "/", DOCUMENT),
        "/a": Node(NODE, "/a", DOCUMENT, array),
    }
    listed = {MANIFEST: ManifestFile(MANIFEST, 100, 3)}
    return bytes(
        snapshots.encode(
            Snapshot(SNAPSHOT, SNAPSHOT, 5, "mé", {"k": [1, {"a": None}]}, nodes, listed)
        )
    )


def own_manifest() -> bytes:
    items = {
        (0, 1): Inline(b"bytes"),
        (0, 2): Native(ChunkId(b"c" * 12), 5, 6),
        (1, 0): Virtual("s3://b/k", 1, 2, ETag("tag")),
        (1, 2): Virtual("s3://b/k", 3, 2, LastModified(9)),
        (2, 0): Virtual("s3://b/l", 3, 2),
    }
    one = ChunkRefs.from_items(2, items.items())
    two = ChunkRefs.from_items(0, [((), Inline(b"z"))])
    return bytes(manifest_write.encode(Manifest(MANIFEST, {NODE: (one,), b"other000": (two,)})))


def own_log() -> bytes:
    rows = np.array([[0, 1], [2, 3]], np.uint32)
    return bytes(
        logs.encode(
            TransactionLog(SNAPSHOT, frozenset([NODE]), updated_chunks={NODE: rows, b"x" * 8: rows})
        )
    )


def read_manifest(payload: bytes) -> None:
    """Read every reference too: spans are only looked at when they are used."""
    with suppress(FormatError):
        search = ManifestSearch(payload, where="x")
        for place in PLACES:
            search.find(NODE, place)
    manifest = manifest_read.decode(payload, where="x")
    for parts in manifest.arrays.values():
        for refs in parts:
            plain_references(refs.take(slice(0, 20)))
            refs.compact()


KINDS: dict[str, tuple[FileType, Callable[[], bytes], Callable[[bytes], Any]]] = {
    "snapshots": (FileType.SNAPSHOT, own_snapshot, lambda data: snapshots.decode(data, where="x")),
    "manifests": (FileType.MANIFEST, own_manifest, read_manifest),
    "transactions": (
        FileType.TRANSACTION_LOG,
        own_log,
        lambda data: plain_log(logs.decode(data, where="x")),
    ),
}


def seeds(kind: str) -> list[bytes]:
    """Payloads to damage: one of ours, and official ones where they are at hand."""
    file_type, own, _ = KINDS[kind]
    found = {own()}
    for name in names("g3-"):
        for _, data in files(name, kind):
            payload = envelope.unpack(data, where="x", expected=file_type, limit=1 << 30).payload
            if len(payload) < 6000:
                found.add(payload)
    return sorted(found, key=len)


def damaged(payload: bytes, chance: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data))
        word = at & ~3
        match chance.randrange(7):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2 if len(data) > 16:
                del data[chance.randrange(8, len(data)) :]
            case 3:
                value = chance.choice((0, 1, 4, len(data), 2**31 - 1, 2**31, 2**32 - 1))
                data[word : word + 4] = struct.pack("<I", value)
            case 4:
                other = chance.randrange(len(data)) & ~3
                data[word : word + 4] = data[other : other + 4]
            case 5 if word + 4 <= len(data):
                value = struct.unpack_from("<I", data, word)[0]
                value = (value + chance.choice((-8, -4, -1, 1, 4, 8, 100))) % 2**32
                data[word : word + 4] = struct.pack("<I", value)
            case _:
                start, stop = sorted((at, chance.randrange(len(data))))
                data[at:at] = data[start : min(stop, start + 64)]
    return bytes(data)


def survives(kind: str, rounds: int) -> None:
    _, _, decode = KINDS[kind]
    payloads = seeds(kind)
    chance = random.Random(kind)
    for turn in range(rounds):
        data = damaged(payloads[turn % len(payloads)], chance)
        try:
            decode(data)
        except (FormatError, UnsupportedError):
            continue
        except Exception as error:
            error.add_note(f"escaped from {data.hex()}")
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_payloads_are_read_or_refused(kind: str) -> None:
    survives(kind, 3000)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_payloads_are_read_or_refused(kind: str) -> None:
    survives(kind, 100_000)


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_is_refused_or_read(kind: str) -> None:
    _, own, decode = KINDS[kind]
    payload = own()
    for size in range(len(payload)):
        try:
            decode(payload[:size])
        except FormatError:
            continue


@settings(max_examples=200)
@given(st.binary(max_size=200), st.sampled_from(sorted(KINDS)))
def test_arbitrary_payloads_are_read_or_refused(data: bytes, kind: str) -> None:
    for payload in (data, data[:4] + b"Ichk" + data[4:]):
        try:
            KINDS[kind][2](payload)
        except (FormatError, UnsupportedError):
            continue


def test_a_payload_of_another_encoding_is_named_so() -> None:
    with pytest.raises(FormatError, match="not a FlatBuffers file"):
        manifest_read.decode(b"\x92\x01\x02" + bytes(50), where="manifests/X")


# Crafted files: sound in structure, wrong in meaning.

REF = Shape(28, (4, 8, 0, 0, 16))
INLINE_REF = Shape(12, (4, 8))
ROOT = Shape(20, (8, 4))
ARRAY = Shape(16, (8, 4))
EMPTY_REF = Shape(8, (4,))
COMPRESSED_REF = Shape(12, (4, 0, 0, 0, 0, 0, 0, 0, 8))
SHAPES = (REF, INLINE_REF, ROOT, ARRAY, EMPTY_REF, COMPRESSED_REF)


def crafted(
    indices: list[tuple[int, ...]], shape: Shape = INLINE_REF, nodes: tuple[bytes, ...] = (NODE,)
) -> bytes:
    """A manifest with references at `indices`, in that order, under each of `nodes`."""
    return _crafted([(node, indices) for node in nodes], shape)


def crafted_arrays(arrays: list[list[tuple[int, ...]]]) -> bytes:
    """A manifest of many arrays, each with references at its own coordinates."""
    return _crafted([(bytes([n]) * 8, one) for n, one in enumerate(arrays, 1)], INLINE_REF)


def _crafted(arrays: list[tuple[bytes, list[tuple[int, ...]]]], shape: Shape) -> bytes:
    writer = PayloadWriter(b"Ichk", SHAPES)
    root = writer.root(ROOT)
    writer.put(root + 8, MANIFEST)
    for link, (node, indices) in zip(writer.references(root + 4, len(arrays)), arrays, strict=True):
        writer.align(4)
        writer.link(link)
        array = writer.table(ARRAY)
        writer.put(array + 8, node)
        for ref_link, index in zip(
            writer.references(array + 4, len(indices)), indices, strict=True
        ):
            writer.align(4)
            writer.link(ref_link)
            ref = writer.table(shape)
            writer.blob(ref + 4, struct.pack(f"<{len(index)}I", *index), count=len(index), align=4)
            if shape.size > 8:
                writer.blob(ref + 8, b"data")
    return bytes(writer.finish())


def test_a_crafted_manifest_is_sound_until_something_is_wrong() -> None:
    found = manifest_read.decode(crafted([(0, 1), (0, 2), (1, 0)]), where="x")
    assert found.of(NODE, 2).index.tolist() == [[0, 1], [0, 2], [1, 0]]
    assert found.of(NODE, 2).find((0, 2)) == Inline(b"data")


@pytest.mark.parametrize(
    ("indices", "problem"),
    [
        ([(1, 0), (0, 1)], "not in order"),
        ([(0, 1), (0, 1)], "occurs twice"),
        ([(0, 1), (0,)], "different lengths"),
        ([(0,) * 65], "65 dimensions"),
    ],
)
def test_references_that_lookups_would_miss_are_refused(
    indices: list[tuple[int, ...]], problem: str
) -> None:
    with pytest.raises(FormatError, match=problem):
        manifest_read.decode(crafted(indices), where="x")


@pytest.mark.parametrize("wrong", ["not in order", "occurs twice", "different lengths", "65 dimen"])
def test_one_wrong_array_among_many_is_found(wrong: str) -> None:
    indices = {
        "not in order": [(1, 0), (0, 1)],
        "occurs twice": [(0, 1), (0, 1)],
        "different lengths": [(0, 1), (0,)],
        "65 dimen": [(0,) * 65],
    }[wrong]
    good: list[list[tuple[int, ...]]] = [[(5, 5)], [(0,), (1,)], [()], [(0, 0), (0, 1)]] * 5
    for place in (0, 9, 20):
        many = [*good[:place], indices, *good[place:]]
        with pytest.raises(FormatError, match=wrong):
            manifest_read.decode(crafted_arrays(many), where="x")


def test_many_arrays_of_several_ranks_are_told_apart() -> None:
    """They are read together, and the last chunk of one may come after the first of the next."""
    many: list[list[tuple[int, ...]]] = [[(5, 5)], [(7,), (8,)], [], [()], [(0, 0), (0, 1)]] * 5
    found = manifest_read.decode(crafted_arrays(many), where="x")
    assert list(found.arrays) == [bytes([number]) * 8 for number in range(1, 26)]
    for parts, indices in zip(found.arrays.values(), many, strict=True):
        assert [tuple(row) for refs in parts for row in refs.index.tolist()] == indices
        assert all(refs.find(index) == Inline(b"data") for refs in parts for index in indices)


def test_a_reference_to_nothing_is_refused() -> None:
    with pytest.raises(FormatError, match="does not say where"):
        manifest_read.decode(crafted([(0,)], EMPTY_REF), where="x")


def test_compressed_locations_are_left_to_generation_2() -> None:
    with pytest.raises(UnsupportedError, match="generation `2`"):
        manifest_read.decode(crafted([(0,)], COMPRESSED_REF), where="x")


@pytest.mark.parametrize("nodes", [(b"b" * 8, b"a" * 8), (b"a" * 8, b"a" * 8)])
def test_arrays_out_of_order_or_doubled_are_refused(nodes: tuple[bytes, bytes]) -> None:
    with pytest.raises(FormatError, match="order of their node ids"):
        manifest_read.decode(crafted([(0,)], nodes=nodes), where="x")


def test_an_array_without_references_is_read() -> None:
    assert len(manifest_read.decode(crafted([]), where="x").of(NODE, 3)) == 0


def bomb(count: int, rank: int, *, inline: int = 4) -> bytes:
    """`count` references that share one table, with one index of `rank` and one inline vector."""
    writer = PayloadWriter(b"Ichk", SHAPES)
    root = writer.root(ROOT)
    (link,) = writer.references(root + 4, 1)
    writer.align(4)
    writer.link(link)
    array = writer.table(ARRAY)
    links = writer.references(array + 4, count)
    target = writer.align(4)
    ref = writer.table(INLINE_REF)
    writer.blob(ref + 4, bytes(4 * rank), count=rank, align=4)
    writer.blob(ref + 8, bytes(inline))
    places = np.arange(links.start, links.stop, 4)
    writer.put(links.start, (target - places).astype("<u4").tobytes())
    return bytes(writer.finish())


def test_many_references_to_one_huge_index_are_refused() -> None:
    with pytest.raises(FormatError, match="250000 dimensions"):
        manifest_read.decode(bomb(250_000, 250_000), where="x")


def test_many_references_to_one_table_are_refused_as_doubled() -> None:
    with pytest.raises(FormatError, match="occurs twice"):
        manifest_read.decode(bomb(250_000, 3, inline=1 << 20), where="x")


def test_spans_that_overlap_are_refused() -> None:
    """A run of ever shorter vectors inside one another would unpack to its square."""
    writer = PayloadWriter(b"Ichk", SHAPES)
    root = writer.root(ROOT)
    (link,) = writer.references(root + 4, 1)
    writer.align(4)
    writer.link(link)
    array = writer.table(ARRAY)
    refs = []
    count = 200
    for number, ref_link in enumerate(writer.references(array + 4, count)):
        writer.align(4)
        writer.link(ref_link)
        ref = writer.table(INLINE_REF)
        writer.blob(ref + 4, struct.pack("<I", number), count=1, align=4)
        refs.append(ref + 8)
    base = writer.align(4)
    for number, at in enumerate(refs):
        writer.number(at, "I", base + 4 * number - at)
    writer.data += struct.pack("<I", 4 * count) * (2 * count)
    with pytest.raises(FormatError, match="overlap"):
        manifest_read.decode(bytes(writer.finish()), where="x")


def test_nodes_that_share_one_huge_document_are_refused() -> None:
    writer = PayloadWriter(
        b"Ichk", (Shape(40, (28, 0, 4, 8, 16, 20, 24)), Shape(28, (16, 4, 8, 24, 12)))
    )
    root = writer.root(Shape(40, (28, 0, 4, 8, 16, 20, 24)), align=8)
    writer.text(root + 16, "")
    writer.blob(root + 20, b"")
    writer.blob(root + 24, b"")
    count = 2000
    links = writer.references(root + 4, count)
    nodes = []
    for number, link in enumerate(links):
        writer.align(4)
        writer.link(link)
        node = writer.table(Shape(28, (16, 4, 8, 24, 12)))
        writer.put(node + 16, struct.pack("<Q", number))
        writer.text(node + 4, f"/{number}")
        writer.number(node + 24, "B", 2)
        writer.number(node + 12, "I", 0)
        nodes.append(node)
    document = writer.align(4)
    writer.data += struct.pack("<I", 1 << 20) + bytes(1 << 20)
    group = writer.align(4)
    writer.table(Shape(28, (16, 4, 8, 24, 12)))
    for node in nodes:
        writer.number(node + 8, "I", document - node - 8)
        writer.number(node + 12, "I", group - node - 12)
    with pytest.raises(FormatError, match="overlap so much"):
        list(snapshots.decode(bytes(writer.finish()), where="x").nodes.values())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x91" * 500 + b"\x01",
        b"\xc4\x01a",
        b"\xd4\x05a",
        b"\xd6\xff\0\0\0\0",
        b"\x81\x01\x02",
        b"\xa1\xff",
        bytes(2 << 20),
    ],
)
def test_metadata_values_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="metadata value"):
        decode_value(data, where="x")


def test_references_of_very_many_layouts_are_put_back_in_order() -> None:
    """More layouts than the fast path expects, as a writer without shared vtables leaves them."""
    shapes = tuple(Shape(12 + 4 * extra, (4, 8)) for extra in range(40))
    writer = PayloadWriter(b"Ichk", (ROOT, ARRAY, *shapes))
    root = writer.root(ROOT)
    (link,) = writer.references(root + 4, 1)
    writer.align(4)
    writer.link(link)
    array = writer.table(ARRAY)
    for number, ref_link in enumerate(writer.references(array + 4, 120)):
        writer.align(4)
        writer.link(ref_link)
        ref = writer.table(shapes[number * 7 % 40])
        writer.blob(ref + 4, struct.pack("<I", number), count=1, align=4)
        writer.blob(ref + 8, bytes([number]))
    (refs,) = manifest_read.decode(bytes(writer.finish()), where="x").arrays[NodeId(bytes(8))]
    assert plain_references(refs) == {(n,): Inline(bytes([n])) for n in range(120)}


SIDE = Dimension(10, 5)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([Node(NODE, "/a", b""), Node(NODE, "/b", b"")], "same id"),
        ([Node(NODE, "/a//b", b"")], "empty segment"),
        ([Node(NODE, "/../b", b"")], "not segments"),
        ([Node(NODE, "a", b"")], "start with"),
        ([Node(NODE, "/a", b"", ArrayData((SIDE,), ("x", "y")))], "1 dimensions but 2 names"),
        ([Node(NODE, "/a", b"", ArrayData((SIDE,) * 65, None))], "65 dimensions"),
    ],
)
def test_nodes_that_cannot_be_are_refused(nodes: list[Node], problem: str) -> None:
    snapshot = Snapshot(SNAPSHOT, None, 0, "", {}, {node.path: node for node in nodes})
    with pytest.raises(FormatError, match=problem):
        snapshots.decode(bytes(snapshots.encode(snapshot)), where="x")
