"""Small files of every kind that ask for gigabytes, and a process in which one is opened.

Run as a program it opens bombs and prints what happened to each: the error's kind, by how many
bytes the peak of resident memory grew, and how many seconds of a processor it took.
"""

from __future__ import annotations

import gc
import io
import json
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from support import parquet_forgeries as forged

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline
from airflow_provider_icechunk.engine.format.codec import Codec, FileType
from airflow_provider_icechunk.engine.format.config.codec import decode_config
from airflow_provider_icechunk.engine.format.ids import AttributesId, ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import AlphaCodec
from airflow_provider_icechunk.engine.format.legacy.alpha1.codec import Alpha1Codec
from airflow_provider_icechunk.engine.format.legacy.alpha1.snapshots import write_attributes
from airflow_provider_icechunk.engine.format.legacy.attributes import AttributeFiles
from airflow_provider_icechunk.engine.format.legacy.draft.codec import DraftCodec
from airflow_provider_icechunk.engine.format.legacy.draft.state import decode_state
from airflow_provider_icechunk.engine.format.legacy.draft.tables import INVENTORY, STRUCTURE
from airflow_provider_icechunk.engine.format.model import Manifest, Node, Snapshot, in_order
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec, decode_ref
from airflow_provider_icechunk.engine.format.v2.codec import V2Codec
from airflow_provider_icechunk.engine.format.v2.repo_codec import decode_repo
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import PayloadWriter, Shape
from airflow_provider_icechunk.engine.format.zarr_metadata import parse_node
from airflow_provider_icechunk.engine.workers.codec import MAGIC, VERSION, decode_fragment
from airflow_provider_icechunk.exceptions import IcechunkError

ID = bytes(12)
EARLY_ID = bytes(16)
Make = Callable[[], bytes]
Read = Callable[[bytes], object]

_GIGABYTE = 1 << 30
NEARLY = 60 << 20
"""Unpacked bytes that are still within the free budget, although what is made of them is not."""


def sealed(kind: FileType, payload: bytes | bytearray, version: int) -> bytes:
    return envelope.pack(kind, payload, spec_version=version, level=3, writer="bomb")


def zeros(kind: FileType, version: int) -> bytes:
    """A file that unpacks to a gigabyte of zeros."""
    head = envelope.pack(kind, b"", spec_version=version, level=1, writer="bomb")
    return head[: envelope.HEADER_SIZE] + _frame_of_zeros()


@cache
def _frame_of_zeros() -> bytes:
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=_GIGABYTE)
    block = bytes(1 << 20)
    return b"".join([compressor.compress(block) for _ in range(1 << 10)]) + compressor.flush()


def windowed() -> bytes:
    """A frame that does not say its size and is unpacked through a window of 128 MB."""
    block = struct.pack("<I", _RLE_BLOCK)[:3] + b"\0"
    last = struct.pack("<I", _RLE_BLOCK | 1)[:3] + b"\0"
    return b"\x28\xb5\x2f\xfd" + bytes((0, 17 << 3)) + block * 4000 + last


_RLE_BLOCK = 128 << 10 << 3 | 1 << 1
"""Header of a block that is one byte, 128 kB times."""


def self_referring(slots: int, slot: int, *, version: int = 0) -> bytearray:
    """A FlatBuffers file with a vector of millions of tables that lie in the vector itself.

    Each link is also the beginning of another table and the layout of a third, so one number,
    repeated, is enough. The other slots are empty vectors, and slot 0 is an id or a version.
    """
    shape = Shape(4 * slots + 16, (4 * slots, *(4 * number for number in range(1, slots))))
    writer = PayloadWriter(b"Ichk", (shape,))
    root = writer.root(shape)
    writer.number(root + 4 * slots, "B", version)
    for number in range(1, slots):
        if number != slot:
            writer.blob(root + 4 * number, b"", align=8)
    writer.align(4)
    writer.link(root + 4 * slot)
    numbers = NEARLY // 4
    writer.data += struct.pack("<I", numbers - (_LINK >> 2) - 8)
    writer.data += np.full(numbers, _LINK, "<u4").tobytes()
    return writer.finish()


_LINK = 0x00100008
"""As a layout: 8 bytes long, for tables of 16 bytes, with fields at 8 and 16."""


def v_manifest(version: int) -> bytes:
    """One array with millions of references."""
    root_shape, array = Shape(20, (8, 4)), Shape(16, (8, 4))
    writer = PayloadWriter(b"Ichk", (root_shape, array))
    root = writer.root(root_shape)
    (link,) = writer.references(root + 4, 1)
    writer.link(link)
    table = writer.table(array)
    writer.link(table + 4)
    numbers = NEARLY // 4
    writer.data += struct.pack("<I", numbers - (_LINK >> 2) - 8)
    writer.data += np.full(numbers, _LINK, "<u4").tobytes()
    return sealed(FileType.MANIFEST, writer.finish(), version)


def v_log_ids(version: int) -> bytes:
    """A log with millions of ids of zeros."""
    shape = Shape(48, (32, 4, 8, 12, 16, 20, 24, 28))
    writer = PayloadWriter(b"Ichk", (shape,))
    root = writer.root(shape)
    for number in range(1, 8):
        count = NEARLY // 8 if number == 1 else 0
        writer.blob(root + 4 * number, bytes(8 * count), count=count, align=8)
    return sealed(FileType.TRANSACTION_LOG, writer.finish(), version)


def metadata_values(version: int) -> bytes:
    """A snapshot with one metadata value of a megabyte of empty containers, shared many times."""
    root_shape = Shape(40, (28, 0, 4, 8, 16, 20, 24))
    item = Shape(12, (4, 8))
    writer = PayloadWriter(b"Ichk", (root_shape, item))
    root = writer.root(root_shape, align=8)
    writer.put(root + 28, ID)
    writer.blob(root + 4, b"")
    writer.text(root + 16, "m")
    writer.blob(root + 24, b"", align=8)
    value = (
        _flexbuffer() if version == 2 else b"\xdd" + struct.pack(">I", 1_000_000) + b"\x80" * 10**6
    )
    for number, link in enumerate(writer.references(root + 20, 40)):
        writer.align(4)
        writer.link(link)
        at = writer.table(item)
        writer.text(at + 4, str(number))
        writer.blob(at + 8, value)
    return sealed(FileType.SNAPSHOT, writer.finish(), version)


def _flexbuffer() -> bytes:
    """A vector of 250,000 numbers, all zero."""
    count = 250_000
    data = bytearray(struct.pack("<I", count))
    data += bytes(4 * count)
    return bytes(data + struct.pack("<I", 4 * count) + bytes([12 << 2 | 2, 4]))


def alpha(kind: FileType, payload: bytes) -> bytes:
    return sealed(kind, payload, 1)


def alpha_nested(kind: FileType) -> bytes:
    """Seven items, of which the last is an array of millions of empty maps."""
    items = NEARLY
    return alpha(kind, b"\x97" + b"\x90" * 6 + b"\xdd" + struct.pack(">I", items) + b"\x80" * items)


def alpha_manifest() -> bytes:
    """A manifest with millions of references, as regular as they get."""
    row = b"\x91\x00\x81\xa6Inline\xc4\x01x"
    rows = NEARLY // len(row)
    head = b"\x92\x92\xc4\x0c" + ID + b"\x90\x81\x92\xc4\x08" + bytes(8) + b"\x90"
    return alpha(FileType.MANIFEST, head + b"\xdf" + struct.pack(">I", rows) + row * rows)


def alpha_openers() -> bytes:
    """A manifest of nothing but the byte that opens a reference."""
    return alpha(FileType.MANIFEST, b"\x92" + b"\x81" * NEARLY)


def alpha_log() -> bytes:
    """Coordinates of millions of chunks, all the same."""
    rows = NEARLY // 2
    head = b"\x97" + b"\x90" * 6 + b"\x81\x92\xc4\x08" + bytes(8) + b"\x90"
    return alpha(
        FileType.TRANSACTION_LOG, head + b"\xdd" + struct.pack(">I", rows) + b"\x91\0" * rows
    )


def alpha_log_nested() -> bytes:
    """A log in which the place of one id is taken by millions of maps in maps."""
    inner = b"\x8f" + b"\0\x80" * 15
    return alpha(
        FileType.TRANSACTION_LOG,
        b"\x97\x91" + b"\xdc\x03\xff" + (b"\xdc\x03\xff" + inner * 1023) * 1023,
    )


def parquet(
    columns: dict[str, object],
    schema: object,
    notes: dict[str, str] | None = None,
    *,
    plain: bool = False,
) -> bytes:
    sink = io.BytesIO()
    table = pa.table(columns, schema=schema)
    if notes:
        table = table.replace_schema_metadata(notes)
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=3 if plain else 19,
        use_dictionary=not plain,
        write_statistics=not plain,  # comparing long values takes longer than everything else
        dictionary_pagesize_limit=1 << 30,
    )
    return sink.getvalue()


def _repeated(value: object, rows: int, kind: object) -> object:
    indices = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], type=kind))


def inventory_dictionary() -> bytes:
    """One location of 100 kB that 50,000 rows share."""
    rows = 50_000
    text = "s3://" + "x" * 100_000
    sink = io.BytesIO()
    schema = pa.schema(
        [
            *[field for field in INVENTORY if field.name != "chunk_file"],
            pa.field("chunk_file", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    columns = {
        "id": pa.array(np.zeros(rows, np.uint32)),
        "array_id": pa.array(np.zeros(rows, np.uint32)),
        "coord": pa.array([b"\0\0"] * rows, pa.binary()),
        "inline_data": pa.nulls(rows, pa.binary()),
        "offset": pa.array(np.zeros(rows, np.uint64)),
        "length": pa.array(np.ones(rows, np.uint32)),
        "chunk_file": _repeated(text, rows, pa.string()),
    }
    table = pa.table([columns[field.name] for field in schema], schema=schema)
    pq.write_table(table, sink, compression="zstd", compression_level=19, store_schema=False)
    return sink.getvalue()


def inventory_rows() -> bytes:
    """Ten million identical rows."""
    rows = 10_000_000
    sink = io.BytesIO()
    columns = {
        "id": pa.array(np.zeros(rows, np.uint32)),
        "array_id": pa.array(np.zeros(rows, np.uint32)),
        "coord": _repeated(b"\0\0", rows, pa.binary()),
        "inline_data": _repeated(b"x", rows, pa.binary()),
        "chunk_file": pa.nulls(rows, pa.string()),
        "offset": pa.nulls(rows, pa.uint64()),
        "length": pa.array(np.ones(rows, np.uint32)),
    }
    table = pa.table(columns)
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=19,
        store_schema=False,
        row_group_size=rows,
    )
    return sink.getvalue()


def inventory_zeros() -> bytes:
    """One inline chunk of 800 MB of zeros."""
    size = 800 << 20
    zeros = pa.py_buffer(bytes(size))
    offsets = pa.py_buffer(struct.pack("<2i", 0, size))
    columns = {
        "id": pa.array([0], pa.uint32()),
        "array_id": pa.array([0], pa.uint32()),
        "coord": pa.array([b"\0\0"], pa.binary()),
        "inline_data": pa.Array.from_buffers(pa.binary(), 1, [None, offsets, zeros]),
        "chunk_file": pa.nulls(1, pa.string()),
        "offset": pa.nulls(1, pa.uint64()),
        "length": pa.array([size], pa.uint32()),
    }
    return parquet(columns, INVENTORY, plain=True)


_LONG_NAME = b"s3://" + b"x" * 100_000


def forged_inventories() -> dict[str, Make]:
    """Files that the library understands differently from a careless reader of the footer."""
    name = forged.text(b"chunk_file", _LONG_NAME)
    rows = 50_000

    def zeros_of(*sizes: tuple[int, forged.Item]) -> bytes:
        column = forged.text(b"inline_data", b"x")
        return forged.inventory(1, replace(column, packed=_frame_of_zeros(), sizes=sizes))

    return {
        "width": lambda: forged.inventory(20_000, forged.fixed(b"coord", _LONG_NAME)),
        "type": lambda: forged.inventory(rows, replace(name, told_type=forged.short(1))),
        "type-of-33-bits": lambda: forged.inventory(
            rows, replace(name, told_type=forged.short(6, beyond=1))
        ),
        "name": lambda: forged.inventory(rows, replace(name, told_name=b"another")),
        "size-twice": lambda: zeros_of((2, forged.short(_GIGABYTE)), (2, forged.long(9))),
        "size-as-another-field": lambda: zeros_of(
            (2, forged.short(9)), ((1 << 16) + 2, forged.short(_GIGABYTE))
        ),
        "empty-texts": lambda: forged.inventory(
            1, forged.Column(b"inline_data", 6, bytes(NEARLY), entries=NEARLY // 4)
        ),
        "groups": lambda: forged.inventory(
            1, replace(forged.number(b"id"), empty_pages=2000), groups=400
        ),
    }


def structure_dictionary() -> bytes:
    """Nodes that share attributes of 100 kB."""
    attributes = json.dumps({"a": "x" * 100_000}).encode()
    return structure(
        [
            {"id": n, "type": "group", "path": f"/{n}", "inline_attrs": attributes}
            for n in range(1000)
        ]
    )


def structure_nested() -> bytes:
    """One node with many codecs that share one long name."""
    metadata = {
        "shape": [1],
        "data_type": "int8",
        "fill_value": b"0",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "c" * 10_000}] * 10_000,
    }
    return structure([{"id": 1, "type": "array", "path": "/a", "array_metadata": metadata}])


def structure(rows: list[dict[str, object]]) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema=STRUCTURE)
    pq.write_table(table, sink, compression="zstd", compression_level=19, store_schema=False)
    return sink.getvalue()


def attributes_dictionary() -> bytes:
    rows = 30_000
    sink = io.BytesIO()
    value = json.dumps({"a": "x" * 100_000}).encode()
    table = pa.table({"attrs": _repeated(value, rows, pa.binary())})
    pq.write_table(table, sink, compression="zstd", compression_level=19, store_schema=False)
    return sink.getvalue()


def alpha1_snapshot() -> bytes:
    """A snapshot whose nodes all refer to one long row of an attributes file."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": _LONG}
    files = AttributeFiles(
        threshold=100, store=lambda *_: None, new_id=lambda: AttributesId(EARLY_ID)
    )
    text = json.dumps(document).encode()
    nodes = [Node(NodeId(n.to_bytes(8, "big")), f"/{n}", text) for n in range(1, 300)]
    snapshot = Snapshot(SnapshotId(EARLY_ID), None, 1, "m", {}, in_order(nodes))
    return Alpha1Codec(attributes=files).encode_snapshot(snapshot, level=1)


_LONG = {"a": "x" * 1_000_000}


def _alpha1_attributes(data: bytes) -> object:
    rows = js.dump(write_attributes(AttributesId(EARLY_ID), (_LONG,)), "rows")
    codec = Alpha1Codec(attributes=AttributeFiles(fetch=lambda _: rows))
    return codec.decode_snapshot(data, SnapshotId(EARLY_ID), where="bomb")


def attributes_nested() -> bytes:
    """One row of attributes with millions of empty lists."""
    sink = io.BytesIO()
    text = b'{"a":[' + b"[]," * 7_000_000 + b"[]]}"
    pq.write_table(pa.table({"attrs": [text]}), sink, compression="zstd", compression_level=3)
    return sink.getvalue()


def structure_lists() -> bytes:
    """The same as attributes of a node."""
    text = b'{"a":[' + b"[]," * 7_000_000 + b"[]]}"
    return structure([{"id": 1, "type": "group", "path": "/a", "inline_attrs": text}])


def structure_rows() -> bytes:
    """More nodes than there are numbers for, all identical."""
    metadata = {
        "shape": [1],
        "data_type": "int8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
    row = {"id": 1, "type": "array", "path": "/a", "array_metadata": metadata}
    return structure([row] * 200_000)


def document_lists() -> bytes:
    return (
        b'{"zarr_format":3,"node_type":"group","attributes":{"a":[' + b"[]," * 7_000_000 + b"[]]}}"
    )


def snapshot_document() -> bytes:
    """A node whose document is a bomb by itself, which is not read before it is used."""
    node = Node(NodeId(bytes(8)), "/a", document_lists())
    return V1.encode_snapshot(Snapshot(SnapshotId(ID), None, 1, "m", {}, {"/a": node}))


def _document(data: bytes) -> object:
    found = V1.decode_snapshot(data, SnapshotId(ID), where="bomb")
    return parse_node(found.nodes["/a"].user_data)


def fragment(arrays: bytes) -> bytes:
    head = b"\x96" + msgpack.packb(MAGIC) + msgpack.packb(VERSION) + msgpack.packb(ID)
    payload = head + msgpack.packb("job") + msgpack.packb("worker") + arrays
    return zstandard.ZstdCompressor(level=19).compress(payload)


V1, V2, ALPHA = V1Codec(), V2Codec(), AlphaCodec()


def _snapshot(codec: V1Codec | V2Codec | AlphaCodec) -> Read:
    return lambda data: codec.decode_snapshot(data, SnapshotId(ID), where="bomb")


def _glance(codec: V1Codec | V2Codec) -> Read:
    """What is not read at first must be refused when it is read."""

    def read(data: bytes) -> object:
        found = codec.glance_at_snapshot(data, SnapshotId(ID), where="bomb")
        return dict(found.nodes), dict(found.manifest_files)

    return read


def _manifest(codec: V1Codec | V2Codec | AlphaCodec) -> Read:
    return lambda data: codec.decode_manifest(data, ManifestId(ID), where="bomb")


def _search(codec: V1Codec | V2Codec) -> Read:
    return lambda data: codec.search_manifest(data, ManifestId(ID), where="bomb").decode()


def _log(codec: V1Codec | V2Codec | AlphaCodec) -> Read:
    return lambda data: codec.decode_log(data, SnapshotId(ID), where="bomb")


def _alpha1(data: bytes) -> object:
    return Alpha1Codec().decode_snapshot(data, SnapshotId(EARLY_ID), where="bomb")


def _inventory(data: bytes) -> object:
    return DraftCodec().decode_manifest(data, ManifestId(EARLY_ID), where="bomb")


def _structure(data: bytes) -> object:
    return DraftCodec().decode_snapshot(data, SnapshotId(EARLY_ID), where="bomb")


def _draft_attributes(data: bytes) -> object:
    return DraftCodec()._decode_attributes(data, AttributesId(EARLY_ID), "bomb")


def _attributes(data: bytes) -> object:
    return ALPHA._decode_attributes(data, AttributesId(ID), "bomb")


def _repo(data: bytes) -> object:
    return decode_repo(data, where="bomb")


def _config(data: bytes) -> object:
    return decode_config(data, where="bomb")


def _fragment(data: bytes) -> object:
    return decode_fragment(data, where="bomb")


def _flat(version: int, codec: V1Codec | V2Codec) -> dict[str, tuple[Make, Read]]:
    """Bombs of the generations that use FlatBuffers."""
    snapshot, glance, log = FileType.SNAPSHOT, _glance(codec), _log(codec)

    def refers(kind: FileType, slots: int, slot: int) -> Make:
        return lambda: sealed(kind, self_referring(slots, slot), version)

    files = {
        "manifest-zeros": (lambda: zeros(FileType.MANIFEST, version), _manifest(codec)),
        "manifest-references": (lambda: v_manifest(version), _manifest(codec)),
        "manifest-references-later": (lambda: v_manifest(version), _search(codec)),
        "manifest-arrays": (refers(FileType.MANIFEST, 4, 1), _manifest(codec)),
        "manifest-arrays-later": (refers(FileType.MANIFEST, 4, 1), _search(codec)),
        "snapshot-zeros": (lambda: zeros(snapshot, version), _snapshot(codec)),
        "snapshot-values": (lambda: metadata_values(version), _snapshot(codec)),
        "log-zeros": (lambda: zeros(FileType.TRANSACTION_LOG, version), log),
        "log-chunks": (refers(FileType.TRANSACTION_LOG, 9, 7), log),
        "log-ids": (lambda: v_log_ids(version), log),
    }
    for slot, what in ((2, "nodes"), (5, "items"), (7 if version == 2 else 6, "files")):
        files[f"snapshot-{what}"] = (refers(snapshot, 8, slot), _snapshot(codec))
        files[f"snapshot-{what}-later"] = (refers(snapshot, 8, slot), glance)
    return {f"{version}/{name}": pair for name, pair in files.items()}


BOMBS: dict[str, tuple[Make, Read]] = {
    **_flat(1, V1),
    **_flat(2, V2),
    **{
        f"2/repo-{slot}": (
            lambda slot=slot: sealed(FileType.REPO_INFO, self_referring(13, slot, version=2), 2),
            _repo,
        )  # type: ignore[misc]
        for slot in (1, 2, 3, 4, 6, 7)
    },
    "2/repo-zeros": (lambda: zeros(FileType.REPO_INFO, 2), _repo),
    "alpha/manifest": (alpha_manifest, _manifest(ALPHA)),
    "alpha/manifest-openers": (alpha_openers, _manifest(ALPHA)),
    "alpha/manifest-nested": (lambda: alpha_nested(FileType.MANIFEST), _manifest(ALPHA)),
    "alpha/manifest-zeros": (lambda: zeros(FileType.MANIFEST, 1), _manifest(ALPHA)),
    "alpha/snapshot-nested": (lambda: alpha_nested(FileType.SNAPSHOT), _snapshot(ALPHA)),
    "alpha/snapshot-zeros": (lambda: zeros(FileType.SNAPSHOT, 1), _snapshot(ALPHA)),
    "alpha/snapshot-bare-zstd": (_frame_of_zeros, _snapshot(ALPHA)),
    "alpha/log": (alpha_log, _log(ALPHA)),
    "alpha/log-nested": (alpha_log_nested, _log(ALPHA)),
    "alpha/log-maps": (lambda: alpha_nested(FileType.TRANSACTION_LOG), _log(ALPHA)),
    "alpha/attributes": (lambda: alpha_nested(FileType.ATTRIBUTES), _attributes),
    "alpha1/snapshot-attributes": (alpha1_snapshot, _alpha1_attributes),
    "alpha1/snapshot": (lambda: b"[" + b"{}," * 40_000 + b"{}]", _alpha1),
    "alpha1/message-pack": (lambda: b"\x97" + b"\x80" * 128_000, _alpha1),
    "draft/inventory-dictionary": (inventory_dictionary, _inventory),
    "draft/inventory-rows": (inventory_rows, _inventory),
    "draft/inventory-zeros": (inventory_zeros, _inventory),
    **{f"draft/forged-{what}": (make, _inventory) for what, make in forged_inventories().items()},
    "draft/structure-dictionary": (structure_dictionary, _structure),
    "draft/structure-nested": (structure_nested, _structure),
    "draft/attributes": (attributes_dictionary, _draft_attributes),
    "draft/attributes-nested": (attributes_nested, _draft_attributes),
    "draft/structure-lists": (structure_lists, _structure),
    "draft/structure-rows": (structure_rows, _structure),
    "1/document": (snapshot_document, _document),
    "draft/state": (lambda: b'{"id":[' + b"[]," * 40_000 + b"[]]}", decode_state),
    "fragment/zeros": (_frame_of_zeros, _fragment),
    "fragment/maps": (
        lambda: fragment(b"\xdd" + struct.pack(">I", 14 << 20) + b"\x80" * (14 << 20)),
        _fragment,
    ),
    "config/values": (lambda: b"a: [" + b"{}," * 300_000 + b"{}]", _config),
    "config/nested": (lambda: b"[" * 1_000_000, _config),
    "config/text": (lambda: b"a: '" + b"''" * 500_000 + b"'\nb", _config),
    "1/snapshot-window": (
        lambda: zeros(FileType.SNAPSHOT, 1)[: envelope.HEADER_SIZE] + windowed(),
        _snapshot(V1),
    ),
    "alpha/snapshot-window": (windowed, _snapshot(ALPHA)),
    "fragment/window": (windowed, _fragment),
    "ref": (
        lambda: b'{"snapshot":' + b"[" * 60_000 + b"}",
        lambda data: decode_ref(data, where="r"),
    ),
}


def crowded_manifest(codec: Codec, arrays: int) -> bytes:
    """A manifest of many arrays with one tiny chunk each."""
    refs = ChunkRefs.from_items(1, [((0,), Inline(b"x"))])
    parts = {NodeId(number.to_bytes(8, "big")): (refs,) for number in range(arrays)}
    return codec.encode_manifest(Manifest(ManifestId(ID), parts), level=3)


def crowded_inventory(arrays: int) -> bytes:
    """An inventory of many arrays with one tiny chunk each, whose coordinates fit three ranks."""
    columns = {
        "id": pa.array(np.arange(arrays, dtype=np.uint32)),
        "array_id": pa.array(np.arange(arrays, dtype=np.uint32)),
        "coord": pa.array([bytes(8)] * arrays, pa.binary()),
        "inline_data": pa.array([b"x"] * arrays, pa.binary()),
        "chunk_file": pa.nulls(arrays, pa.string()),
        "offset": pa.nulls(arrays, pa.uint64()),
        "length": pa.array(np.ones(arrays, np.uint32)),
    }
    return parquet(columns, INVENTORY)


def crowded_log(version: int, arrays: int, rows: int) -> bytes:
    """A log whose many arrays share a list of chunks, all alike, with room to pay for them."""
    root_shape = Shape(48, (32, 4, 8, 12, 16, 20, 24, 28))
    array, chunk = Shape(16, (8, 4)), Shape(8, (4,))
    writer = PayloadWriter(b"Ichk", (root_shape, array, chunk))
    root = writer.root(root_shape)
    for number in range(1, 7):
        writer.blob(root + 4 * number, b"", align=8)
    tables = []
    for number, link in enumerate(writer.references(root + 28, arrays)):
        writer.align(4)
        writer.link(link)
        at = writer.table(array)
        writer.put(at + 8, number.to_bytes(8, "big"))
        tables.append(at + 4)
    vector = writer.align(4)
    for at in tables:
        writer.link(at, vector)
    links = writer.references(tables[-1], rows)
    writer.align(4)
    for link in links:
        writer.link(link)
    at = writer.table(chunk)
    writer.blob(at + 4, bytes(4), count=1, align=4)
    writer.data += bytes(8 * rows * arrays)
    return sealed(FileType.TRANSACTION_LOG, writer.finish(), version)


CROWDED: dict[str, tuple[Make, Read]] = {
    "1/manifest-of-many-arrays": (lambda: crowded_manifest(V1, 20_000), _manifest(V1)),
    "2/manifest-of-many-arrays": (lambda: crowded_manifest(V2, 20_000), _manifest(V2)),
    "alpha/manifest-of-many-arrays": (lambda: crowded_manifest(ALPHA, 25_000), _manifest(ALPHA)),
    "draft/inventory-of-many-arrays": (lambda: crowded_inventory(20_000), _inventory),
    "1/log-of-many-arrays": (lambda: crowded_log(1, 20_000, 9), _log(V1)),
    "2/log-of-many-arrays": (lambda: crowded_log(2, 20_000, 9), _log(V2)),
}
"""Files with so many arrays that setting up array operations for each would take seconds."""


def peak() -> int:
    """The most memory that this process ever had, in bytes.

    Unlike that of `getrusage`, which begins with the peak of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def main() -> None:
    """Open bombs, `name=path` each, some copies at once, and print what happened to each."""
    copies, *bombs = sys.argv[1:]
    _inventory(crowded_inventory(1))  # the first Parquet file of a process loads libraries
    for bomb in bombs:
        name, _, path = bomb.partition("=")
        print(json.dumps([name, *open_bomb(name, Path(path).read_bytes(), int(copies))]))


def open_bomb(name: str, data: bytes, copies: int) -> tuple[list[str], int, float]:
    """How it ended, by how much the peak of memory grew, and seconds of a processor."""
    read = {**BOMBS, **CROWDED}[name][1]
    kinds: list[str] = []

    def once() -> None:
        try:
            read(data)
            kinds.append("read")
        except IcechunkError as error:
            kinds.append(type(error).__name__)

    threads = [threading.Thread(target=once) for _ in range(copies)]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before, begin = peak(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(set(kinds)), peak() - before, time.process_time() - begin


if __name__ == "__main__":
    main()
