"""Generation `alpha1`: documents as its schemas say, and back without loss."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.early import (
    MANIFEST,
    PARENT,
    SNAPSHOT,
    array_node,
    group_node,
    manifests,
    number,
    plain,
    seed,
    snapshot_of,
    unsealed,
)
from support.model import plain_manifest

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Inline,
    LastModified,
    Native,
    Virtual,
)
from airflow_provider_icechunk.engine.format.codec import Codec, Layout, Limits, Selective
from airflow_provider_icechunk.engine.format.ids import (
    ChunkId,
    ManifestId,
    SnapshotId,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.alpha1.codec import Alpha1Codec
from airflow_provider_icechunk.engine.format.legacy.alpha1.layout import (
    Alpha1Layout,
    Spelling,
    decode_ref,
    encode_ref,
    parse_state_file,
)
from airflow_provider_icechunk.engine.format.legacy.alpha1.snapshots import HISTORY
from airflow_provider_icechunk.engine.format.model import (
    Manifest,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    UnsupportedError,
)

WHERE = "s/some.json"
CODEC = Alpha1Codec()
MANIFEST_TOP = {"top": 2**32 - 1, "nodes": 2**32 - 1, "sizes": 2**62 - 1}


def encode(snapshot: Snapshot) -> dict[str, Any]:
    value: dict[str, Any] = unsealed(CODEC.encode_snapshot(snapshot, level=1))
    return value


def again(snapshot: Snapshot) -> Snapshot:
    data = CODEC.encode_snapshot(snapshot, level=1)
    return Alpha1Codec().decode_snapshot(data, snapshot.id, where=WHERE)


def schema(title: str) -> dict[str, Any]:
    text = seed("001")
    if text is None:
        pytest.skip("the specification is not at hand")
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    found: dict[str, Any] = next(block for block in blocks if block["title"] == title)
    return found


def test_it_is_a_codec_that_cannot_hold_everything() -> None:
    codec: Codec = CODEC
    layout: Layout = Alpha1Layout()
    assert isinstance(codec, Selective)
    assert layout.snapshot(SNAPSHOT) == f"s/{encode_base32(SNAPSHOT)}.json"
    assert layout.manifest(MANIFEST) == f"m/{encode_base32(MANIFEST)}.json"
    assert layout.chunk(ChunkId(SNAPSHOT)) == "c/000G40R40M30E209185GR38E1W"


def test_a_snapshot_has_exactly_the_members_of_its_schema() -> None:
    node = array_node()
    value = encode(snapshot_of(group_node("/", 0, {"a": 1}), node))
    assert value.keys() == {
        "metadata", "nodes", "properties", "short_term_history", "short_term_parents", "started_at",
        "total_parents",
    }  # fmt: skip
    assert value["metadata"] == {
        "id": list(SNAPSHOT),
        "message": "a message",
        "written_at": "2024-09-18T09:00:00.123456Z",
    }
    assert (value["short_term_parents"], value["total_parents"]) == (0, 0)
    assert value["nodes"]["/"] == {
        "id": 0,
        "path": "/",
        "node_data": "Group",
        "user_attributes": {"Inline": {"a": 1}},
    }
    zarr, refs = value["nodes"]["/group/array"]["node_data"]["Array"]
    assert refs == [{"object_id": list(MANIFEST), "flags": [], "extents": [[0, 1], [2, 2]]}]
    assert zarr == {
        "shape": [10, 7],
        "data_type": "float32",
        "chunk_shape": [5, 5],
        "chunk_key_encoding": "Slash",
        "fill_value": {"Float32": "NaN"},
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "crc32c"},
        ],
        "storage_transformers": None,
        "dimension_names": ["y", None],
    }


def test_documents_are_valid_by_the_schemas_of_the_specification() -> None:
    import jsonschema

    def validate(value: object, rules: dict[str, Any]) -> None:
        # Not `jsonschema.validate`: it objects to the schema of `Flags`, which lists no items.
        jsonschema.Draft7Validator(
            rules, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
        ).validate(value)

    codec = Alpha1Codec()
    root = snapshot_of(id=PARENT)
    codec.encode_snapshot(root, level=1)
    node = array_node(fill_value=1.5)
    raw = array_node("/raw", 8, data_type="r16", fill_value=[1, 2], storage_transformers=[])
    child = snapshot_of(group_node("/", 0, {}), node, raw, parent=PARENT)
    validate(json.loads(codec.encode_snapshot(child, level=1)), schema("Snapshot"))
    refs = ChunkRefs.from_items(
        2,
        [
            ((0, 0), Inline(b"\x00\xff")),
            ((0, 1), Native(ChunkId(SNAPSHOT), 5, 6)),
            ((1, 1), Virtual("s3://b/k", 7, 8)),
        ],
    )
    manifest = Manifest(MANIFEST, {number(7): (refs,)})
    validate(json.loads(codec.encode_manifest(manifest, level=1)), schema("Manifest"))
    validate(json.loads(encode_ref(SNAPSHOT, 1)), schema("RefData"))


def test_a_manifest_is_one_object_by_node_and_coordinates() -> None:
    refs = ChunkRefs.from_items(
        2,
        [
            ((0, 10), Inline(b"\x00\xff")),
            ((1, 0), Native(ChunkId(SNAPSHOT), 5, 6)),
            ((1, 1), Virtual("s3://b/k", 7, 8)),
        ],
    )
    scalar = ChunkRefs.from_items(0, [((), Inline(b"x"))])
    manifest = Manifest(MANIFEST, {number(7): (refs,), number(2**32 - 1): (scalar,)})
    assert unsealed(CODEC.encode_manifest(manifest, level=1)) == {
        "chunks": {
            "7/0/10": {"Inline": [0, 255]},
            "7/1/0": {"Ref": {"id": list(SNAPSHOT), "offset": 5, "length": 6}},
            "7/1/1": {"Virtual": {"location": "s3://b/k", "offset": 7, "length": 8}},
            "4294967295": {"Inline": [120]},
        }
    }


@settings(deadline=None, max_examples=60)
@given(manifests(**MANIFEST_TOP))
def test_manifests_come_back_as_they_were(manifest: Manifest) -> None:
    data = CODEC.encode_manifest(manifest, level=1)
    found = CODEC.decode_manifest(data, MANIFEST, where="m/x.json")
    assert plain_manifest(found) == plain_manifest(manifest)


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | finite | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, values, max_size=4)


@settings(deadline=None, max_examples=60)
@given(objects, objects, names, st.integers(-(10**15), 10**16), st.integers(0, 2**32 - 1))
def test_snapshots_come_back_as_they_were(
    attributes: dict[str, Any], metadata: dict[str, Any], message: str, time: int, identity: int
) -> None:
    nodes = (
        array_node("/x", identity, attributes=attributes),
        group_node("/", (identity + 1) % 2**32, attributes),
    )
    snapshot = snapshot_of(*nodes, metadata=metadata, message=message, flushed_at=time)
    assert plain(again(snapshot)) == plain(snapshot)


@pytest.mark.parametrize(
    ("data_type", "fill", "stored"),
    [
        ("bool", True, {"Bool": True}),
        ("int8", -128, {"Int8": -128}),
        ("uint64", 2**64 - 1, {"UInt64": 2**64 - 1}),
        ("float16", 0.5, {"Float16": 0.5}),
        ("float32", "Infinity", {"Float32": "Infinity"}),
        ("float64", "-Infinity", {"Float64": "-Infinity"}),
        ("float64", 0.1, {"Float64": 0.1}),
        ("complex64", [1.0, "NaN"], {"Complex64": [1.0, "NaN"]}),
        ("complex128", [0.1, -2.0], {"Complex128": [0.1, -2.0]}),
        ("r24", "AQID", {"RawBits": [1, 2, 3]}),
    ],
)
def test_every_data_type_of_the_schema_keeps_its_fill_value(
    data_type: str, fill: Any, stored: Any
) -> None:
    node = array_node(data_type=data_type, fill_value=fill)
    snapshot = snapshot_of(node)
    zarr, _ = encode(snapshot)["nodes"]["/group/array"]["node_data"]["Array"]
    assert zarr["fill_value"] == stored
    assert plain(again(snapshot)) == plain(snapshot)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_type": "string", "fill_value": ""}, "no data type"),
        ({"data_type": "variable_length_bytes", "fill_value": ""}, "no data type"),
        ({"data_type": {"name": "numpy.datetime64"}, "fill_value": 0}, "no data type"),
        ({"attributes": {"x": float("nan")}}, "JSON cannot express"),
        ({"fill_value": 10**400, "data_type": "int8"}, "does not fit"),
    ],
)
def test_what_the_documents_have_no_place_for_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        CODEC.check_node(array_node(**changes))


def test_ids_of_later_generations_are_refused() -> None:
    late = Node(number(2**32), "/g", group_node("/g", 1).user_data)
    with pytest.raises(InvalidInputError, match="32 bits"):
        CODEC.check_node(late)
    short = ChunkRefs.from_items(1, [((0,), Native(ChunkId(b"twelve bytes"), 0, 1))])
    with pytest.raises(InvalidInputError, match="16 bytes"):
        CODEC.encode_manifest(Manifest(MANIFEST, {number(1): (short,)}), level=1)


@pytest.mark.parametrize("checksum", [ETag("e"), LastModified(5)])
def test_checksums_are_refused(checksum: ETag | LastModified) -> None:
    refs = ChunkRefs.from_items(1, [((0,), Virtual("s3://b/k", 0, 1, checksum))])
    with pytest.raises(InvalidInputError, match="checksum"):
        CODEC.check_references(refs)


def test_a_snapshot_lists_its_nearest_ancestors_and_counts_all() -> None:
    codec = Alpha1Codec()
    parent: SnapshotId | None = None
    data = b""
    for n in range(HISTORY + 5):
        own = SnapshotId(n.to_bytes(16, "big"))
        data = codec.encode_snapshot(
            snapshot_of(id=own, parent=parent, message=f"m{n}", flushed_at=n), level=1
        )
        parent = own
    value = json.loads(data)
    assert value["total_parents"] == HISTORY + 4
    assert value["short_term_parents"] == len(value["short_term_history"]) == HISTORY
    assert [one["message"] for one in value["short_term_history"][:2]] == ["m103", "m102"]
    found = Alpha1Codec().decode_snapshot(data, own, where=WHERE)
    assert found.parent_id == SnapshotId((HISTORY + 3).to_bytes(16, "big"))


def test_the_past_of_an_unknown_parent_is_fetched_or_the_child_refused() -> None:
    root = CODEC.encode_snapshot(snapshot_of(id=PARENT), level=1)
    child = snapshot_of(parent=PARENT, flushed_at=1_800_000_000_000_000)
    data = Alpha1Codec(fetch={PARENT: root}.get).encode_snapshot(child, level=1)
    assert json.loads(data)["short_term_history"][0]["id"] == list(PARENT)
    with pytest.raises(InvalidInputError, match="parent"):
        Alpha1Codec().encode_snapshot(child, level=1)


def test_a_snapshot_under_another_name_is_refused() -> None:
    data = CODEC.encode_snapshot(snapshot_of(), level=1)
    with pytest.raises(FormatError, match="says it is"):
        CODEC.decode_snapshot(data, PARENT, where=WHERE)


def test_boxes_may_be_unknown() -> None:
    node = array_node()
    assert node.array is not None
    unknown = replace(node, array=replace(node.array, manifests=(ManifestRef(MANIFEST, None),)))
    value = encode(snapshot_of(unknown))
    assert value["nodes"][node.path]["node_data"]["Array"][1][0]["extents"] == []
    assert plain(again(snapshot_of(unknown))) == plain(snapshot_of(unknown))


def test_there_are_no_logs() -> None:
    with pytest.raises(UnsupportedError):
        CODEC.encode_log(TransactionLog(SNAPSHOT), level=1)
    with pytest.raises(UnsupportedError):
        CODEC.decode_log(b"", SNAPSHOT, where="t/x")


# what is read but not written


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"snapshot": list(SNAPSHOT)}).encode(),
        json.dumps({"snapshot": encode_base32(SNAPSHOT)}).encode(),
        json.dumps({"snapshot": SNAPSHOT.hex(), "timestamp": "2024-09-03T10:00:00Z"}).encode(),
        encode_ref(SNAPSHOT, 0),
    ],
)
def test_references_of_all_forms_are_read(data: bytes) -> None:
    assert decode_ref(data, where="r/x.json") == SNAPSHOT


def test_development_files_are_named_differently() -> None:
    layout = Alpha1Layout(Spelling.DEVELOPMENT)
    assert layout.snapshot(SNAPSHOT) == f"s/{encode_base32(SNAPSHOT)}.msgpack"
    assert layout.manifest(ManifestId(SNAPSHOT)) == f"m/{encode_base32(SNAPSHOT)}.msgpack"
    assert parse_state_file("ZZZZZZZZZZZZY.json") == 0
    assert parse_state_file("ZZZZZZZZZZZZW.json") == 1
    assert parse_state_file("ZZZZZZWV.json") == 100
    assert parse_state_file("ZZZZZZZZZZZZZ.json") is None


def test_limits_bound_what_is_read() -> None:
    small = Alpha1Codec(Limits(manifest_bytes=10, other_bytes=10))
    data = CODEC.encode_snapshot(snapshot_of(), level=1)
    with pytest.raises(FormatError, match="limit"):
        small.decode_snapshot(data, SNAPSHOT, where=WHERE)
    with pytest.raises(FormatError, match="limit"):
        small.decode_manifest(b'{"chunks": {}}', MANIFEST, where=WHERE)
    with pytest.raises(FormatError, match="limit"):
        small.decode_manifest(b"\x91" * 40, MANIFEST, where=WHERE)
