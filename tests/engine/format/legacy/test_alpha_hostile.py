"""Damaged and oversized files of generation `alpha` are answers, never crashes."""

from __future__ import annotations

import random

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.alpha import (
    CODEC,
    MANIFEST,
    NODE,
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
    Virtual,
)
from airflow_provider_icechunk.engine.format.codec import FileType, Limits
from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import AlphaCodec
from airflow_provider_icechunk.engine.format.model import Manifest, TransactionLog
from airflow_provider_icechunk.exceptions import FormatError, Kind, UnsupportedError


def unwrapped(data: bytes, file_type: FileType) -> bytes:
    return envelope.unpack(data, where=WHERE, expected=file_type, limit=1 << 30).payload


def a_file(kind: str) -> bytes:
    many = {(row, row * 300): Native(MANIFEST, row, 70_000) for row in range(40)}  # type: ignore[arg-type]
    mixed = {
        (0,): Inline(b"x" * 40),
        (1,): Virtual("s3://bucket/key", 1, 2, ETag("tag")),
        (2,): Virtual("s3://bucket/other", 1, 2, LastModified(5)),
    }
    arrays = {
        NODE: (ChunkRefs.from_items(2, many.items()),),  # type: ignore[arg-type]
        NodeId(b"other-id"): (ChunkRefs.from_items(1, mixed.items()),),
    }
    match kind:
        case "snapshot":
            return CODEC.encode_snapshot(snapshot_of(group_node("/"), array_node()), level=1)
        case "manifest":
            return CODEC.encode_manifest(Manifest(MANIFEST, arrays), level=1)
        case _:
            chunks = {NODE: arrays[NODE][0].index}
            log = TransactionLog(id=SNAPSHOT, new_groups=frozenset([NODE]), updated_chunks=chunks)
            return CODEC.encode_log(log, level=1)


def decode(kind: str, data: bytes) -> None:
    match kind:
        case "snapshot":
            CODEC.decode_snapshot(data, SNAPSHOT, where=WHERE)
        case "manifest":
            CODEC.decode_manifest(data, MANIFEST, where=WHERE)
        case _:
            CODEC.decode_log(data, SNAPSHOT, where=WHERE)


def refusal(kind: str, data: bytes) -> str:
    """What the decoder has to say against `data`; where it has nothing, the name of the file."""
    try:
        decode(kind, data)
    except (FormatError, UnsupportedError) as error:
        return str(error)
    return WHERE


KINDS = {
    "snapshot": FileType.SNAPSHOT,
    "manifest": FileType.MANIFEST,
    "log": FileType.TRANSACTION_LOG,
}


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                del changed[at : at + chance.randint(1, 8)]
            case _:
                changed[at:at] = chance.randbytes(chance.randint(1, 8))
        if not changed:
            break
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_payload_gives_a_value_or_a_refusal(kind: str, seed: int) -> None:
    payload = mutated(unwrapped(a_file(kind), KINDS[kind]), random.Random(seed))
    data = envelope.pack(KINDS[kind], payload, spec_version=1, level=1, writer="test")
    for form in (data, payload):
        assert WHERE in refusal(kind, form)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_gives_a_value_or_a_refusal(kind: str, seed: int) -> None:
    assert WHERE in refusal(kind, mutated(a_file(kind), random.Random(seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_of_a_file_is_refused(kind: str) -> None:
    whole = a_file(kind)
    for size in range(len(whole)):
        with pytest.raises((FormatError, UnsupportedError)):
            decode(kind, whole[:size])


@pytest.mark.parametrize("kind", KINDS)
def test_files_above_the_limit_are_refused_in_every_wrapping(kind: str) -> None:
    small = AlphaCodec(Limits(manifest_bytes=16, other_bytes=16))
    whole = a_file(kind)
    payload = unwrapped(whole, KINDS[kind])
    stream = zstandard.ZstdCompressor().compress(payload)
    read = {
        "snapshot": lambda data: small.decode_snapshot(data, SNAPSHOT, where=WHERE),
        "manifest": lambda data: small.decode_manifest(data, MANIFEST, where=WHERE),
        "log": lambda data: small.decode_log(data, SNAPSHOT, where=WHERE),
    }[kind]
    for form in (whole, payload, stream):
        with pytest.raises(FormatError) as caught:
            read(form)
        assert caught.value.kind is Kind.LIMIT_EXCEEDED
