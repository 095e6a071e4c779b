"""The columnar manifest reader gives what the general one gives, or stands aside."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Index,
    Inline,
    LastModified,
    Native,
    Payload,
    RefKind,
    Virtual,
)
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.engine.format.legacy.alpha import manifests, scan
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import AlphaCodec
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.exceptions import FormatError

MANIFEST = ManifestId(b"manifest-id!")
NODE = NodeId(b"node-id8")
NUMBERS = (0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1)


def items(refs: ChunkRefs) -> list[tuple[list[int], Any]]:
    return [(refs.index[row].tolist(), refs[row]) for row in range(len(refs))]


def some_payload(chance: random.Random) -> Payload:
    numbers = (*NUMBERS, 2**32, 2**64 - 1)
    offset, length = chance.choice(numbers), chance.choice(numbers)
    match chance.randrange(3):
        case 0:
            return Native(chance.randbytes(12), offset, length)  # type: ignore[arg-type]
        case 1:
            return Inline(chance.randbytes(chance.choice((1, 31, 255, 256, 3000))))
        case _:
            location = "s3://bücket/" + "k" * chance.choice((1, 15, 16, 300))
            checksum = chance.choice((None, ETag("e" * chance.choice((1, 40))), LastModified(7)))
            return Virtual(location, offset, length, checksum)


def some_array(chance: random.Random, ndim: int, rows: int) -> ChunkRefs:
    found: dict[Index, Payload] = {}
    for _ in range(rows):
        index = tuple(chance.choice((*NUMBERS, chance.randrange(1000))) for _ in range(ndim))
        found[index] = some_payload(chance)
    return ChunkRefs.from_items(ndim, found.items())


def generally(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "scan_manifest", lambda *_: None)
        return manifests.decode_manifest(payload, MANIFEST, where="x")


@pytest.fixture(autouse=True)
def also_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_SMALL", 0)
    monkeypatch.setattr(scan, "_ROWS_PER_ARRAY", 0)


@pytest.mark.parametrize("seed", range(40))
def test_it_reads_every_kind_and_width(seed: int) -> None:
    chance = random.Random(seed)
    arrays = {
        NodeId(chance.randbytes(8)): (some_array(chance, ndim, 50),)
        for ndim in chance.sample(range(1, 5), 3)
    }
    payload = manifests.encode_manifest(Manifest(MANIFEST, arrays))
    found = scan.scan_manifest(payload)
    assert found is not None
    identity, back = found
    assert identity == MANIFEST
    assert back.keys() == arrays.keys()
    for node, (refs,) in back.items():
        assert items(refs) == items(arrays[node][0])


def test_a_0d_array_is_read() -> None:
    refs = ChunkRefs.from_items(0, [((), Inline(b"x"))])
    payload = manifests.encode_manifest(Manifest(MANIFEST, {NODE: (refs,)}))
    found = scan.scan_manifest(payload)
    assert found is not None
    assert items(found[1][NODE][0]) == [([], Inline(b"x"))]


def test_rows_in_any_order_are_sorted() -> None:
    index = np.array([[3], [1], [2]], np.uint32)
    refs = replace(ChunkRefs.blank(index, kind=RefKind.NATIVE), length=np.arange(3, dtype="u8"))
    payload = manifests.encode_manifest(Manifest(MANIFEST, {NODE: (refs,)}))
    found = scan.scan_manifest(payload)
    assert found is not None
    assert found[1][NODE][0].index.ravel().tolist() == [1, 2, 3]
    assert found[1][NODE][0].length.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    "data",
    [b"\x81\xa6Inline", b"\x81\xa3Ref\x93\x92\xc4\x0c" + bytes(20), b"\x81\xa7Virtual\x94\xa1x"],
)
def test_data_that_looks_like_a_reference_is_left_to_the_general_reader(data: bytes) -> None:
    refs = ChunkRefs.from_items(1, [((row,), Inline(data)) for row in range(5)])
    payload = manifests.encode_manifest(Manifest(MANIFEST, {NODE: (refs,)}))
    assert scan.scan_manifest(payload) is None
    manifest = manifests.decode_manifest(payload, MANIFEST, where="x")
    assert items(manifest.of(NODE, 1)) == items(refs)


def test_two_ranks_under_one_node_are_left_to_the_general_reader() -> None:
    parts = tuple(ChunkRefs.from_items(n, [((0,) * n, Inline(b"x"))]) for n in (1, 2))
    payload = manifests.encode_manifest(Manifest(MANIFEST, {NODE: parts}))
    assert scan.scan_manifest(payload) is None
    manifest = manifests.decode_manifest(payload, MANIFEST, where="x")
    assert [len(manifest.of(NODE, n)) for n in (1, 2)] == [1, 1]


def test_a_gap_or_a_rest_is_not_overlooked() -> None:
    refs = ChunkRefs.from_items(1, [((row,), Inline(b"x")) for row in range(3)])
    payload = manifests.encode_manifest(Manifest(MANIFEST, {NODE: (refs,)}))
    assert scan.scan_manifest(payload) is not None
    gap = payload.replace(b"\x81\xa6Inline", b"\x05\x81\xa6Inline", 1)
    for damaged in (gap, payload + b"\xc0", payload[:-1], b"\x93" + payload[1:]):
        assert scan.scan_manifest(damaged) is None
        with pytest.raises(FormatError):
            manifests.decode_manifest(damaged, MANIFEST, where="x")


@settings(max_examples=400)
@given(seed=st.integers(0, 2**32))
def test_on_damaged_bytes_both_readers_agree(seed: int) -> None:
    chance = random.Random(seed)
    arrays = {NODE: (some_array(chance, 2, 12),), NodeId(bytes(8)): (some_array(chance, 1, 3),)}
    changed = bytearray(manifests.encode_manifest(Manifest(MANIFEST, arrays)))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed))
        if chance.random() < 0.7:
            changed[at] = chance.choice((chance.randrange(256), changed[at] ^ 1, 0xFF, 0))
        else:
            del changed[at : at + chance.randint(1, 4)]
    payload = bytes(changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_SMALL", 0)
        patch.setattr(scan, "_ROWS_PER_ARRAY", 0)
        found = scan.scan_manifest(payload)
        if found is None:
            return
        try:
            general = generally(payload, patch)
        except FormatError as error:
            # Text is checked when it is asked for, and the id by the caller.
            assert "utf-8" in str(error) or "says it is" in str(error)  # noqa: PT017
            return
    assert found[1].keys() == general.arrays.keys()
    for node, (refs,) in found[1].items():
        assert items(refs) == items(general.of(node, refs.ndim))


def test_a_million_compressible_references_are_not_taken_for_a_bomb() -> None:
    """Value by value they take more memory than a file of their stored size may."""
    count = 1_000_000
    rows = np.arange(count, dtype=np.uint32)[:, None]
    location = b"s3://bucket/prefix/file.nc"
    refs = replace(
        ChunkRefs.blank(rows, kind=RefKind.VIRTUAL),
        length=np.full(count, 1000, np.uint64),
        span=np.tile(np.array([0, len(location)], np.uint64), (count, 1)),
        heap=location,
    )
    codec = AlphaCodec()
    data = codec.encode_manifest(Manifest(MANIFEST, {NODE: (refs,)}), level=3)
    assert len(data) < 10_000_000
    assert len(codec.decode_manifest(data, MANIFEST, where="x").of(NODE, 1)) == count
