"""Hostile bytes of generation `draft`: a `FormatError` or a refusal, nothing else, ever."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.early import MANIFEST, SNAPSHOT, array_node, group_node, number, snapshot_of

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, Native, Virtual
from airflow_provider_icechunk.engine.format.codec import Limits
from airflow_provider_icechunk.engine.format.ids import ChunkId
from airflow_provider_icechunk.engine.format.legacy.draft.codec import DraftCodec
from airflow_provider_icechunk.engine.format.legacy.draft.state import (
    StateEntry,
    decode_state,
    encode_state,
)
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

CODEC = DraftCodec()
REFS = ChunkRefs.from_items(
    1,
    [
        ((0,), Inline(b"x")),
        ((1,), Native(ChunkId(SNAPSHOT), 0, 5)),
        ((2,), Virtual("s3://b/k", 0, 5)),
    ],
)
GOOD = CODEC.encode_snapshot(snapshot_of(group_node("/", 0, {"a": 1}), array_node()), level=1)
GOOD_MANIFEST = CODEC.encode_manifest(Manifest(MANIFEST, {number(7): (REFS,)}), level=1)


def snapshot(data: bytes) -> object:
    return CODEC.decode_snapshot(data, SNAPSHOT, where="s/x.parquet")


def manifest(data: bytes, codec: DraftCodec = CODEC) -> Manifest:
    return codec.decode_manifest(data, MANIFEST, where="i/x.parquet")


def parquet(columns: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("good", [GOOD, GOOD_MANIFEST], ids=["structure", "inventory"])
def test_no_damaged_file_raises_anything_else(good: bytes) -> None:
    chance = random.Random(5)
    read = snapshot if good is GOOD else manifest
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for bad in (bytes(data), bytes(data[: chance.randrange(len(data))])):
            with suppress(FormatError, UnsupportedError):
                read(bad)


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200))
def test_noise_is_a_format_error(noise: bytes) -> None:
    for data in (noise, b"PAR1" + noise + b"PAR1"):
        with pytest.raises(FormatError):
            snapshot(data)
        with pytest.raises(FormatError):
            manifest(data)


def rows(**changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "id": [0, 1],
        "array_id": [7, 7],
        "coord": [b"\0\0", b"\0\1"],
        "inline_data": [b"x", None],
        "chunk_file": [None, SNAPSHOT.hex()],
        "offset": [None, 5],
        "length": [1, 6],
    } | changes
    return {name: column for name, column in columns.items() if column is not ...}


def test_wider_columns_are_read() -> None:
    refs = manifest(parquet(rows())).of(number(7), 1)
    assert (refs.find((0,)), refs.find((1,))) == (Inline(b"x"), Native(ChunkId(SNAPSHOT), 5, 6))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"coord": ...}, "column 'coord'"),
        ({"coord": [b"\0\0", b"\0\0"]}, "twice"),
        ({"coord": [b"\0\0", b"\0\0\0\1"]}, "differ"),
        ({"coord": [b"\0", b"\1"]}, "not coordinates"),
        ({"coord": ["a", "b"]}, "not coordinates"),
        ({"coord": [1, 2]}, "Parquet"),
        ({"coord": [b"\0" * 1000, b"\1" * 1000]}, "not coordinates"),
        ({"array_id": [7, None]}, "gaps"),
        ({"array_id": ["7", "7"]}, "integers"),
        ({"array_id": [7, -1]}, "Parquet"),
        ({"array_id": [7, 2**32]}, "larger"),
        ({"length": [2, 6]}, "length"),
        ({"inline_data": [b"x", b"y"]}, "either"),
        ({"chunk_file": [None, None]}, "either"),
        ({"offset": [None, 2**63 - 1]}, "larger"),
        ({"length": [1.0, 6.0]}, "integers"),
    ],
)
def test_bad_inventories_say_what_is_wrong(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        manifest(parquet(rows(**changes)))
    assert "i/x.parquet" in str(caught.value)


NO_NAMES = ["", ".", "..", "../state.json", "a/../../b", "/etc/passwd", "a//b", "a\\b", "a\0b"]
NO_NAMES += ["x" * 256, "part#12", "a/b#1/c", "\x7f"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_could_leave_their_folder_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match="cannot be the name"):
        manifest(parquet(rows(chunk_file=[None, name])))
    for nodes in (
        node(attrs_reference={"attrs_file": name, "row": 0}),
        array() | {"inventories": [{"inventory_file": name, "row": 0, "extent": [[0, 1]]}]},
    ):
        with pytest.raises(FormatError, match="cannot be the name"):
            snapshot(structure(nodes))
    entry = STATE["snapshots"][0] | {"structure-file": name}
    with pytest.raises(FormatError, match="cannot be the name"):
        decode_state(json.dumps(STATE | {"snapshots": [entry]}).encode())


def test_more_foreign_names_than_are_kept_in_memory_are_refused() -> None:
    codec = DraftCodec()
    count = (1 << 18) + 1
    data = parquet(
        {
            "id": pa.array(range(count), pa.uint32()),
            "array_id": pa.array([7] * count, pa.uint32()),
            "coord": [number.to_bytes(4, "big") for number in range(count)],
            "chunk_file": [f"n{number}" for number in range(count)],
            "offset": pa.array([0] * count, pa.uint64()),
            "length": pa.array([1] * count, pa.uint32()),
        }
    )
    with pytest.raises(FormatError, match="names of other software"):
        manifest(data, codec)


def test_one_foreign_name_for_many_chunks_is_kept_once() -> None:
    codec = DraftCodec()
    count = 300_000
    data = parquet(
        {
            "id": pa.array(range(count), pa.uint32()),
            "array_id": pa.array([7] * count, pa.uint32()),
            "coord": [number.to_bytes(4, "big") for number in range(count)],
            "chunk_file": ["a pack of many"] * count,
            "offset": pa.array(range(count), pa.uint64()),
            "length": pa.array([1] * count, pa.uint32()),
        }
    )
    for _ in range(2):
        found = manifest(data, codec).of(number(7), 1)
    assert len(found) == count
    assert (found.chunk_id == found.chunk_id[0]).all()


def test_a_file_that_unpacks_to_too_much_is_refused() -> None:
    count = 200_000
    data = parquet(
        {
            "id": list(range(count)),
            "array_id": [7] * count,
            "coord": [n.to_bytes(4, "big") for n in range(count)],
            "inline_data": [b"x" * 1000] * count,
            "length": [1000] * count,
        }
    )
    assert len(data) < 10_000_000
    with pytest.raises(FormatError, match="limit"):
        manifest(data, DraftCodec(Limits(manifest_bytes=20_000_000)))


def node(**changes: Any) -> dict[str, Any]:
    fields = {
        "id": 1,
        "type": "group",
        "path": "/",
        "array_metadata": None,
        "inline_attrs": None,
        "attrs_reference": None,
        "inventories": None,
    }
    return fields | changes


def structure(*nodes: dict[str, Any]) -> bytes:
    columns = {name: [one[name] for one in nodes] for name in nodes[0]}
    return parquet({k: v for k, v in columns.items() if any(one is not None for one in v)})


ARRAY = {
    "shape": [4],
    "data_type": "uint8",
    "fill_value": b"0",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes", "configuration": b"{}"}],
}


def array(**changes: Any) -> dict[str, Any]:
    return node(type="array", array_metadata=ARRAY | changes)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node(path="no slash")], "node path"),
        ([node(path="/../x")], "node path"),
        ([node(type="table")], "neither"),
        ([node(type="array")], "neither"),
        ([node(id=-1)], "integer"),
        ([node(id="x")], "integer"),
        ([node(), node(id=2)], "same path"),
        ([node(), node(path="/b")], "same id"),
        ([node(inline_attrs=b"{")], "JSON"),
        ([node(inline_attrs=b"[]")], "object"),
        ([node(inline_attrs=b"[" * 5000)], "JSON"),
        ([array(shape=[-4])], "integer"),
        ([array(shape=["4"])], "integer"),
        ([array(shape=[4, 4])], "dimensions"),
        ([array(fill_value=b"\xff")], "JSON"),
        ([array(data_type=5)], "text"),
        ([array(chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}})], "key"),
        ([array() | {"inventories": [{"inventory_file": "x"}]}], "no row"),
        (
            [
                array()
                | {
                    "inventories": [
                        {"inventory_file": "0" * 32 + ".parquet", "row": 0, "extent": [[3, 1]]}
                    ]
                }
            ],
            "extent",
        ),
    ],
)
def test_bad_structures_say_what_is_wrong(nodes: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        snapshot(structure(*nodes))


def test_chunk_keys_with_dots_give_the_same_array() -> None:
    encoding = {"name": "default", "configuration": {"separator": "."}}
    codec = DraftCodec(entry=lambda identity, _: StateEntry(identity, None, 5, "x.parquet", {}))
    usual, other = (
        codec.decode_snapshot(structure(one), SNAPSHOT, where="s/x.parquet")
        for one in (array(), array(chunk_key_encoding=encoding))
    )
    assert other.nodes == usual.nodes


@pytest.mark.parametrize(
    "encoding",
    [
        {"name": "default", "configuration": {"separator": "-"}},
        {"name": "fanout", "configuration": {"separator": "/"}},
    ],
)
def test_an_unknown_spelling_of_chunk_keys_is_refused(encoding: dict[str, Any]) -> None:
    with pytest.raises((FormatError, UnsupportedError), match="chunk key"):
        snapshot(structure(array(chunk_key_encoding=encoding)))


def test_flags_that_nobody_knows_are_refused() -> None:
    inventory = {"inventory_file": "x", "row": 0, "extent": [[0, 1]], "flags": 1}
    with pytest.raises(FormatError, match="flags"):
        snapshot(structure(array() | {"inventories": [inventory]}))


STATE: dict[str, Any] = {
    "id": "x",
    "generation": 3,
    "snapshots": [
        {
            "snapshot-id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "timestamp-ms": 5,
            "structure-file": "f.parquet",
        }
    ],
    "refs": {"main": {"snapshot-id": "00010203-0405-0607-0809-0a0b0c0d0e0f", "type": "branch"}},
}
POISON: list[Any] = [None, True, -1, 2**64, "x", "../x", [], {}, [1], {"a": 1}]


def test_no_poisoned_state_raises_anything_else() -> None:
    decode_state(json.dumps(STATE).encode())
    refused = 0
    for name in STATE:
        for poison in POISON:
            with suppress(UnsupportedError):
                try:
                    decode_state(json.dumps(STATE | {name: poison}).encode())
                except FormatError:
                    refused += 1
    for field in ("snapshot-id", "timestamp-ms", "structure-file", "properties"):
        for poison in POISON:
            entry = STATE["snapshots"][0] | {field: poison}
            try:
                decode_state(json.dumps(STATE | {"snapshots": [entry]}).encode())
            except FormatError:
                refused += 1
    assert refused > 40


def test_no_changed_byte_of_a_state_gives_another_state() -> None:
    state = decode_state(json.dumps(STATE).encode())
    good = encode_state(state)
    for at in range(len(good)):
        for byte in {good[at] ^ 1, good[at] ^ 16, 0, *b'07,:"[}'} - {good[at]}:
            with suppress(FormatError, UnsupportedError):
                found = decode_state(good[:at] + bytes([byte]) + good[at + 1 :])
                assert replace(found, extra={}) == state


@pytest.mark.parametrize("spaces", [None, 2])
def test_an_edited_state_must_not_keep_its_checksum(spaces: int | None) -> None:
    value = json.loads(encode_state(decode_state(json.dumps(STATE).encode())))
    with pytest.raises(FormatError, match="edited by hand"):
        decode_state(json.dumps(value | {"generation": 4}, indent=spaces).encode())
    del value["sha256"]
    assert decode_state(json.dumps(value, indent=spaces).encode()).generation == 3


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"store_root": 5}, FormatError, "store_root"),
        ({"snapshots": STATE["snapshots"] * 2}, FormatError, "twice"),
        ({"refs": {"a/b": STATE["refs"]["main"]}}, FormatError, "segment"),
        ({"refs": {"main": STATE["refs"]["main"] | {"type": "note"}}}, FormatError, "neither"),
        ({"refs": {"main": STATE["refs"]["main"] | {"name": "b"}}}, FormatError, "another name"),
        ({"x": json.loads("[" * 300 + "]" * 300)}, FormatError, "nested"),
    ],
)
def test_bad_states_say_what_is_wrong(changes: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        decode_state(json.dumps(STATE | changes).encode())
