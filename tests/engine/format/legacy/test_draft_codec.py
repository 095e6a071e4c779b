"""Generation `draft`: Parquet files with the schemas of the sketch, and back without loss."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
from airflow_provider_icechunk.engine.format.codec import Codec, Layout, Selective
from airflow_provider_icechunk.engine.format.ids import ChunkId, SnapshotId
from airflow_provider_icechunk.engine.format.legacy.draft.codec import DraftCodec
from airflow_provider_icechunk.engine.format.legacy.draft.layout import DraftLayout
from airflow_provider_icechunk.engine.format.legacy.draft.state import MESSAGE, StateEntry, entry_of
from airflow_provider_icechunk.engine.format.legacy.draft.tables import INVENTORY, STRUCTURE
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot, TransactionLog
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

CODEC = DraftCodec()
WHERE = "s/some.parquet"


def again(snapshot: Snapshot) -> Snapshot:
    data = CODEC.encode_snapshot(snapshot, level=1)
    return DraftCodec().decode_snapshot(data, snapshot.id, where=WHERE)


def table(data: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(data))


def parquet(columns: dict[str, Any], schema: pa.Schema | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_it_is_a_codec_that_cannot_hold_everything() -> None:
    codec: Codec = CODEC
    layout: Layout = DraftLayout()
    assert isinstance(codec, Selective)
    assert layout.snapshot(SNAPSHOT) == "s/000102030405060708090a0b0c0d0e0f.parquet"
    assert layout.manifest(MANIFEST).startswith("i/2021")
    assert layout.chunk(ChunkId(SNAPSHOT)) == "c/000102030405060708090a0b0c0d0e0f"


@pytest.mark.parametrize(("schema", "place"), [(STRUCTURE, 0), (INVENTORY, 1)])
def test_schemas_print_as_in_the_sketch(schema: pa.Schema, place: int) -> None:
    text = seed("003")
    if text is None:
        pytest.skip("the sketch is not at hand")
    blocks = [block for block in text.split("```")[1::2] if "not null" in block]
    shown = schema.to_string(element_size_limit=10_000)
    assert shown.split() == blocks[place].split()


def test_schemas_have_the_narrow_integers_of_the_sketch() -> None:
    assert STRUCTURE.names == [
        "id", "type", "path", "array_metadata", "inline_attrs", "attrs_reference", "inventories",
    ]  # fmt: skip
    assert INVENTORY.names == [
        "id", "array_id", "coord", "inline_data", "chunk_file", "offset", "length",
    ]  # fmt: skip
    assert STRUCTURE.field("id").type == pa.uint16()
    assert INVENTORY.field("length").type == pa.uint32()
    assert STRUCTURE.field("id").metadata == {b"description": b"unique identifier for the node"}


def test_a_structure_file_has_one_row_for_each_node() -> None:
    snapshot = snapshot_of(group_node("/", 0, {"a": 1}), array_node())
    stored = table(CODEC.encode_snapshot(snapshot, level=1))
    assert stored.schema.remove_metadata().equals(STRUCTURE)
    root, array = stored.to_pylist()
    assert root == {
        "id": 0,
        "type": "group",
        "path": "/",
        "array_metadata": None,
        "inline_attrs": b'{"a":1}',
        "attrs_reference": None,
        "inventories": None,
    }
    metadata = array["array_metadata"]
    assert (metadata["shape"], metadata["fill_value"]) == ([10, 7], b'"NaN"')
    assert metadata["chunk_grid"]["configuration"] == {"chunk_shape": [5, 5]}
    assert metadata["chunk_key_encoding"]["configuration"] == {"separator": "/"}
    assert metadata["codecs"][0] == {"name": "bytes", "configuration": b'{"endian":"little"}'}
    assert metadata["codecs"][1] == {"name": "crc32c", "configuration": None}
    assert metadata["dimension_names"] == ["y", None]
    assert array["inventories"] == [
        {
            "inventory_file": f"{MANIFEST.hex()}.parquet",
            "row": 0,
            "extent": [[0, 2], [1, 2]],
            "flags": None,
        }
    ]


def test_an_inventory_file_has_one_sorted_row_for_each_chunk() -> None:
    refs = ChunkRefs.from_items(
        2,
        [
            ((1, 0), Native(ChunkId(SNAPSHOT), 5, 6)),
            ((0, 258), Inline(b"\x00\xff")),
            ((1, 1), Virtual("s3://b/k", 7, 8)),
        ],
    )
    scalar = ChunkRefs.from_items(0, [((), Inline(b"x"))])
    manifest = Manifest(MANIFEST, {number(9): (scalar,), number(7): (refs,)})
    stored = table(CODEC.encode_manifest(manifest, level=1))
    assert stored.schema.remove_metadata().equals(INVENTORY)
    assert [tuple(row.values()) for row in stored.to_pylist()] == [
        (0, 7, b"\0\0\1\2", b"\x00\xff", None, None, 2),
        (1, 7, b"\0\1\0\0", None, SNAPSHOT.hex(), 5, 6),
        (2, 7, b"\0\1\0\1", None, "s3://b/k", 7, 8),
        (3, 9, b"", b"x", None, None, 1),
    ]


@settings(deadline=None, max_examples=60)
@given(manifests(top=65_534, nodes=65_535, sizes=2**32 - 1))
def test_manifests_come_back_as_they_were(manifest: Manifest) -> None:
    data = CODEC.encode_manifest(manifest, level=1)
    found = CODEC.decode_manifest(data, MANIFEST, where="i/x.parquet")
    assert plain_manifest(found) == plain_manifest(manifest)


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | finite | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, values, max_size=4)


@settings(deadline=None, max_examples=50)
@given(objects, objects, names, st.integers(0, 10**16), st.integers(0, 65_535), values)
def test_snapshots_come_back_as_they_were(
    attributes: dict[str, Any],
    metadata: dict[str, Any],
    message: str,
    time: int,
    identity: int,
    fill: Any,
) -> None:
    nodes = (
        array_node("/x", identity, attributes=attributes, data_type="anything", fill_value=fill),
        group_node("/", (identity + 1) % 2**16, attributes),
    )
    snapshot = snapshot_of(
        *nodes, metadata=metadata, message=message, flushed_at=time, parent=PARENT
    )
    assert plain(again(snapshot)) == plain(snapshot)


def test_what_the_state_says_of_a_snapshot_wins() -> None:
    snapshot = snapshot_of(parent=PARENT)
    data = CODEC.encode_snapshot(snapshot, level=1)
    entry = replace(entry_of(snapshot), parent=None, properties={MESSAGE: "other", "x": 1})
    codec = DraftCodec(entry=lambda _identity, _again: entry)
    found = codec.decode_snapshot(data, SNAPSHOT, where=WHERE)
    assert (found.parent_id, found.message, found.metadata) == (None, "other", {"x": 1})
    assert found.flushed_at == snapshot.flushed_at, "to the microsecond, for the files agree"


def test_a_file_of_other_software_needs_the_state() -> None:
    stored = table(CODEC.encode_snapshot(snapshot_of(group_node("/", 0)), level=1))
    data = parquet({name: stored.column(name) for name in stored.column_names}, STRUCTURE)
    with pytest.raises(FormatError, match="neither"):
        CODEC.decode_snapshot(data, SNAPSHOT, where=WHERE)
    entry = StateEntry(SNAPSHOT, None, 5, "any.parquet", {})
    asked: list[bool] = []

    def look(_identity: SnapshotId, again: bool) -> StateEntry:
        asked.append(again)
        return entry

    found = DraftCodec(entry=look).decode_snapshot(data, SNAPSHOT, where=WHERE)
    assert (found.flushed_at, found.message, list(found.nodes)) == (5000, "", ["/"])
    assert asked == [True]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": [65_536, 7]}, "sides longer"),
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [70_000, 5]}}},
            "chunks longer",
        ),
        ({"data_type": {"name": "numpy.datetime64"}}, "data type"),
        ({"storage_transformers": [{"name": "x"}]}, "storage_transformers"),
        ({"extension": {"must_understand": True}}, "extension"),
        ({"attributes": {"x": float("inf")}}, "JSON cannot express"),
        ({"codecs": [{"name": "x", "must_understand": False}]}, "codec"),
    ],
)
def test_what_a_row_has_no_place_for_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        CODEC.check_node(array_node(**changes))


def test_ids_of_later_generations_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="16 bits"):
        CODEC.check_node(group_node("/g", 65_536))


@pytest.mark.parametrize(
    ("index", "payload", "reason"),
    [
        (65_535, Inline(b"x"), "indices"),
        (0, Native(ChunkId(SNAPSHOT), 0, 2**32), "4 GiB"),
        (0, Native(ChunkId(b"twelve bytes"), 0, 1), "16 bytes"),
        (0, Virtual("s3://b/k", 0, 1, ETag("e")), "checksum"),
        (0, Virtual("s3://b/k", 0, 1, LastModified(1)), "checksum"),
        (0, Virtual("relative/key", 0, 1), "://"),
    ],
)
def test_references_a_row_has_no_place_for_are_refused(
    index: int, payload: Any, reason: str
) -> None:
    refs = ChunkRefs.from_items(1, [((index,), payload)])
    with pytest.raises(InvalidInputError, match=reason):
        CODEC.check_references(refs)
    with pytest.raises(InvalidInputError, match=reason):
        CODEC.encode_manifest(Manifest(MANIFEST, {number(1): (refs,)}), level=1)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_coordinates_of_every_width_are_read_by_the_rank_of_the_array(width: int) -> None:
    places = [(0, 3), (1, 2), (300, 0)]
    coords = [np.array(place, f">u{width}").tobytes() for place in places]
    data = parquet(
        {
            "id": pa.array([0, 1, 2], pa.uint64()),
            "array_id": pa.array([5, 5, 5], pa.int64()),
            "coord": pa.array(coords, pa.large_binary()),
            "inline_data": pa.array([b"a", b"b", b"c"], pa.binary()),
            "length": pa.array([1, 1, 1], pa.int64()),
        }
    )
    found = CODEC.decode_manifest(data, MANIFEST, where="i/x").of(number(5), 2)
    assert [found.find(place) for place in places] == [Inline(b"a"), Inline(b"b"), Inline(b"c")]


def test_rows_of_a_shared_inventory_are_kept_when_the_structure_is_written_again() -> None:
    node = array_node()
    rows = table(CODEC.encode_snapshot(snapshot_of(node), level=1)).to_pylist()
    rows[0]["inventories"][0]["row"] = 17
    data = parquet(dict(pa.Table.from_pylist(rows, STRUCTURE).to_pydict()), STRUCTURE)
    codec = DraftCodec(entry=lambda identity, _: StateEntry(identity, None, 5, "x.parquet", {}))
    found = codec.decode_snapshot(data, SNAPSHOT, where=WHERE)
    written = table(codec.encode_snapshot(found, level=1)).to_pylist()
    assert written[0]["inventories"][0]["row"] == 17


def test_there_are_no_logs() -> None:
    with pytest.raises(UnsupportedError):
        CODEC.encode_log(TransactionLog(SNAPSHOT), level=1)


def test_the_engine_does_not_load_pyarrow_until_a_file_is_touched() -> None:
    code = (
        "import sys, airflow_provider_icechunk.engine.repository as r\n"
        "from airflow_provider_icechunk.engine.refs.legacy.draft import DraftRefs\n"
        "assert 'pyarrow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    package = "airflow_provider_icechunk.engine.format.legacy.draft"
    monkeypatch.delattr(f"{package}.structures", raising=False)
    monkeypatch.setitem(sys.modules, f"{package}.structures", None)
    with pytest.raises(UnsupportedError, match="install pyarrow"):
        CODEC.encode_snapshot(snapshot_of(), level=1)


def test_documents_keep_their_members() -> None:
    found = again(snapshot_of(array_node(dimension_names=..., attributes=...)))
    fields = json.loads(found.nodes["/group/array"].user_data)
    assert "attributes" not in fields
    assert "dimension_names" not in fields
