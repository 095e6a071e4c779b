"""Hostile bytes of generation `alpha1`: a `FormatError` or a refusal, nothing else, ever."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.early import MANIFEST, SNAPSHOT, array_node, group_node, number, snapshot_of, unsealed
from support.model import plain_manifest

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, Native, Virtual
from airflow_provider_icechunk.engine.format.ids import ChunkId
from airflow_provider_icechunk.engine.format.legacy.alpha1.codec import Alpha1Codec
from airflow_provider_icechunk.engine.format.legacy.alpha1.layout import decode_ref, encode_ref
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

CODEC = Alpha1Codec()
GOOD = CODEC.encode_snapshot(
    snapshot_of(group_node("/", 0, {"a": 1}), array_node(fill_value=1.0)), level=1
)
REFS = ChunkRefs.from_items(
    1,
    [
        ((0,), Inline(b"x")),
        ((1,), Native(ChunkId(SNAPSHOT), 0, 5)),
        ((2,), Virtual("s3://b/k", 0, 5)),
    ],
)
GOOD_MANIFEST = CODEC.encode_manifest(Manifest(MANIFEST, {number(7): (REFS,)}), level=1)
POISON: list[Any] = [
    None,
    True,
    -1,
    2**40,
    2**64,
    1.5,
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"x": 1},
    "/../x",
]


def snapshot(data: bytes) -> object:
    return CODEC.decode_snapshot(data, SNAPSHOT, where="s/x.json")


def manifest(data: bytes) -> object:
    return plain_manifest(CODEC.decode_manifest(data, MANIFEST, where="m/x.json"))


FILES: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "snapshot": (GOOD, snapshot),
    "manifest": (GOOD_MANIFEST, manifest),
    "ref": (encode_ref(SNAPSHOT, 5), lambda data: decode_ref(data, where="r/x")),
}


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(item, (*here, key))


def poisoned(data: bytes) -> Iterator[bytes]:
    """The document with one value replaced or removed, for every value."""
    value = unsealed(data)
    for path in paths(value):
        for poison in POISON:
            changed: Any = [copy.deepcopy(value)]
            place = changed
            for key in (0, *path)[:-1]:
                place = place[key]
            place[(0, *path)[-1]] = poison
            yield json.dumps(changed[0]).encode()


@pytest.mark.parametrize(
    ("data", "read"), [(GOOD, snapshot), (GOOD_MANIFEST, manifest)], ids=["snapshot", "manifest"]
)
def test_no_poisoned_value_raises_anything_else(data: bytes, read: Any) -> None:
    refused = 0
    for bad in poisoned(data):
        try:
            read(bad)
        except (FormatError, UnsupportedError):
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("what", ["snapshot", "manifest", "ref"])
def test_no_changed_byte_gives_another_value(what: str) -> None:
    good, read = FILES[what]
    value = read(good)
    for at in range(len(good)):
        for byte in {good[at] ^ 1, good[at] ^ 16, 0, *b'07,:"[}'} - {good[at]}:
            with suppress(FormatError, UnsupportedError):
                assert read(good[:at] + bytes([byte]) + good[at + 1 :]) == value


@settings(deadline=None, max_examples=150)
@given(
    st.binary(max_size=60), st.integers(0, 400), st.sampled_from(["snapshot", "manifest", "ref"])
)
def test_no_damaged_bytes_raise_anything_else(noise: bytes, at: int, what: str) -> None:
    good, read = FILES[what]
    for data in (noise, good[:at] + noise + good[at + len(noise) :], good[:at]):
        with suppress(FormatError, UnsupportedError):
            read(data)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b'{"chunks": {}, "chunks": {}}', "JSON"),
        (b'{"chunks": {"1/0": {"Inline": [NaN]}}}', "JSON"),
        (b'{"chunks": []}', "object"),
        (b'{"chunks": {"01/0": {"Inline": [1]}}}', "key"),
        (b'{"chunks": {"1/-0": {"Inline": [1]}}}', "key"),
        (b'{"chunks": {"1/\xd9\xa1": {"Inline": [1]}}}', "key"),
        (b'{"chunks": {"1/4294967296": {"Inline": [1]}}}', "coordinate"),
        (b'{"chunks": {"4294967296/0": {"Inline": [1]}}}', "node"),
        (b'{"chunks": {"1/0": {"Inline": [256]}}}', "type"),
        (b'{"chunks": {"1/0": {"Inline": [1], "Ref": {}}}}', "one kind"),
        (b'{"chunks": {"1/0": {"Other": [1]}}}', "member"),
        (b'{"chunks": {"1/0": {"Virtual": {"location": "\\ud800", "offset": 0}}}}', "JSON"),
        (
            b'{"chunks":{"1/0":{"Virtual":{"location":"s3://b","offset":9223372036854775807,"length":1}}}}',
            "beyond",
        ),
        (b'{"chunks": {"1/0": {"Ref": {"id": [1], "offset": 0, "length": 1}}}}', "16 bytes"),
        (b'{"chunks": {"' + b"/".join([b"1"] * 70) + b'": {"Inline": [1]}}}', "coordinates"),
    ],
)
def test_bad_manifests_say_what_is_wrong(document: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        manifest(document)
    assert "m/x.json" in str(caught.value)


def changed(**changes: Any) -> bytes:
    return json.dumps(unsealed(GOOD) | changes).encode()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"short_term_parents": 3}, "ancestors"),
        ({"total_parents": 2**32}, "integer"),
        ({"started_at": "yesterday"}, "RFC 3339"),
        ({"properties": [1]}, "object"),
        ({"nodes": {"a": {"id": 0, "path": "a", "node_data": "Group"}}}, "node path"),
        ({"nodes": {"/a": {"id": 0, "path": "/b", "node_data": "Group"}}}, "elsewhere"),
        ({"nodes": {"/a": {"id": 0, "path": "/a", "node_data": "Table"}}}, "neither"),
        (
            {"nodes": {p: {"id": 1, "path": p, "node_data": "Group"} for p in ("/a", "/b")}},
            "same number",
        ),
        ({"properties": {"x": json.loads("[" * 200 + "]" * 200)}}, "nested"),
    ],
)
def test_bad_snapshots_say_what_is_wrong(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        snapshot(changed(**changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "does not exist"),
        ({"flags": [1]}, "flags"),
        ({"location": -1}, "row"),
        ({"location": 1 << 32}, "row"),
        ({"object_id": [1]}, "id"),
    ],
)
def test_bad_references_to_attributes_say_what_is_wrong(
    changes: dict[str, Any], reason: str
) -> None:
    value = unsealed(GOOD)
    ref = {"object_id": list(SNAPSHOT), "location": 1, "flags": []} | changes
    value["nodes"]["/"]["user_attributes"] = {"Ref": ref}
    with pytest.raises(FormatError, match=reason):
        snapshot(json.dumps(value).encode())


@pytest.mark.parametrize("encoding", ["Slash", "Dot", "Default"])
def test_every_spelling_of_chunk_keys_gives_the_same_array(encoding: str) -> None:
    value = unsealed(GOOD)
    value["nodes"]["/group/array"]["node_data"]["Array"][0]["chunk_key_encoding"] = encoding
    assert snapshot(json.dumps(value).encode()) == snapshot(GOOD)


@pytest.mark.parametrize("encoding", ["slash", "Comma", None, 1])
def test_an_unknown_spelling_of_chunk_keys_is_refused(encoding: Any) -> None:
    value = unsealed(GOOD)
    value["nodes"]["/group/array"]["node_data"]["Array"][0]["chunk_key_encoding"] = encoding
    with pytest.raises(FormatError, match="chunk keys"):
        snapshot(json.dumps(value).encode())
