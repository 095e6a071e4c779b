"""Structure files: one row for each node. Needs pyarrow.

The sketch keeps the facts about a snapshot only in `state.json`. Files written here repeat them in
a note in the Parquet footer, so that a snapshot that no state lists yet can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    NODE_ID_SIZE,
    AttributesId,
    ManifestId,
    NodeId,
    SnapshotId,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.attributes import (
    AttributeReading,
    AttributesRef,
    Rows,
    Writing,
    checked_rows,
)
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    ManifestRef,
    Node,
    Snapshot,
)
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_DOCUMENT, ArrayDocument
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

from .codec import TOP, from_zarr_json, to_zarr_json
from .layout import DraftLayout
from .tables import ATTRIBUTES, STRUCTURE, Cost, broken, read_table, write_table

_NOTE = "icechunk.snapshot"
_NOTE_LIMIT = 64 << 20
_U32 = (1 << 32) - 1
_NODES = Cost(row=50, value=8)
_DOCUMENTS = Cost(row=500, value=8)
_NODE_MEMORY = 400
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class StructureFacts:
    """What a structure file says about its snapshot besides the nodes."""

    id: SnapshotId
    parent: SnapshotId | None
    flushed_at: int
    message: str
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Structure:
    """The content of a structure file."""

    nodes: list[Node]
    facts: StructureFacts | None
    """`None` in files of other software."""


def encode_structure(
    snapshot: Snapshot, layout: DraftLayout, outside: Writing, *, level: int
) -> bytes:
    """A whole file; `outside` says which attributes go to separate files."""
    rows = [_row(node, layout, outside) for node in snapshot.nodes.values()]
    try:
        table = pa.Table.from_pylist(rows, schema=STRUCTURE)
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise InvalidInputError(f"the nodes cannot be stored: {str(error)[:200]}") from None
    note = {
        "snapshot-id": snapshot.id.hex(),
        "parent-snapshot-id": None if snapshot.parent_id is None else snapshot.parent_id.hex(),
        "timestamp-us": snapshot.flushed_at,
        "message": snapshot.message,
        "properties": dict(snapshot.metadata),
    }
    return write_table(table, {_NOTE: js.dump(note, "the snapshot").decode()}, level=level)


def decode_structure(
    data: bytes, layout: DraftLayout, *, where: str, limit: int, outside: AttributeReading
) -> Structure:
    """The nodes of a file, everything checked; `outside` has attributes that are in other files."""
    table, notes = read_table(
        data, STRUCTURE, where=where, limit=limit, cost=_NODES, memory=outside.memory
    )
    nodes = []
    paths: set[str] = set()
    for record in _records(table, where):
        node = _read_row(record, layout, where, outside)
        outside.memory.charge(len(node.user_data) + _NODE_MEMORY)
        nodes.append(node)
        paths.add(node.path)
        if len(paths) != len(nodes):
            raise FormatError(f"{where}: two nodes have the same path")
    if len({node.id for node in nodes}) != len(nodes):
        raise FormatError(f"{where}: two nodes have the same id")
    return Structure(nodes, _facts(notes.get(_NOTE), where))


def _records(table: Any, where: str) -> Iterator[dict[str, Any]]:
    """The rows, of which only a few are dictionaries at a time."""
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        try:
            records = table.slice(start, _ROWS_AT_ONCE).to_pylist()
        except (pa.ArrowException, ValueError, OverflowError, MemoryError) as error:
            raise broken(where, error) from None
        yield from records


def check_node(node: Node) -> None:
    """Refuse a node that a row cannot hold."""
    _row(node, DraftLayout(), Writing(None, {}, None))


def encode_attributes(rows: Rows, *, level: int) -> bytes:
    """A whole attributes file: one row of JSON for each node."""
    texts = [js.dump(row, "the attributes") for row in rows]
    return write_table(pa.table({"attrs": texts}, schema=ATTRIBUTES), {}, level=level)


def decode_attributes(data: bytes, *, where: str, limit: int, memory: Purse) -> Rows:
    """The rows of an attributes file."""
    table, _ = read_table(
        data, ATTRIBUTES, where=where, limit=limit, cost=_DOCUMENTS, memory=memory
    )
    try:
        texts = table.column("attrs").to_pylist()
    except (pa.ArrowException, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise broken(where, error) from None
    if not all(isinstance(text, bytes) for text in texts):
        raise FormatError(f"{where}: attributes are not binary")
    memory.charge(sum(map(js.memory_of, texts)))
    rows = [js.parse(text, where=where, limit=MAX_DOCUMENT) for text in texts]
    return checked_rows(rows, where=where)


def node_number(identity: NodeId) -> int:
    """The number of a node; ids of later generations do not fit."""
    number = int.from_bytes(identity, "big")
    if number > TOP:
        raise InvalidInputError(
            f"node id {encode_base32(identity)} does not fit the 16 bits that generation `draft` "
            "has for it",
            kind=Kind.INVALID_METADATA,
        )
    return number


def _row(node: Node, layout: DraftLayout, outside: Writing) -> dict[str, Any]:
    metadata, attributes = from_zarr_json(node.user_data)
    if (metadata is None) != (node.array is None):
        raise InvalidInputError(f"node {node.path!r} and its `zarr.json` are of different kinds")
    array = node.array
    ref = None if attributes is None else outside.place(json.loads(attributes))
    return {
        "id": node_number(node.id),
        "type": "group" if array is None else "array",
        "path": node.path,
        "array_metadata": metadata,
        "inline_attrs": attributes if ref is None else None,
        "attrs_reference": None
        if ref is None
        else {
            "attrs_file": layout.attribute_files.name_of(ref.file),
            "row": ref.row,
            "flags": None,
        },
        "inventories": None
        if array is None
        else [_inventory(ref, array, layout) for ref in array.manifests],
    }


def _inventory(ref: ManifestRef, array: ArrayData, layout: DraftLayout) -> dict[str, Any]:
    """If the box is unknown, the whole grid is written: a box that is too large is harmless."""
    extents = ref.extents
    if extents is None:
        extents = tuple((0, -(-side.length // side.chunk_length)) for side in array.shape)
    return {
        "inventory_file": layout.inventories.name_of(ref.id),
        "row": ref.row,
        "extent": [list(box) for box in extents],
        "flags": None,
    }


def _read_row(
    record: dict[str, Any], layout: DraftLayout, where: str, outside: AttributeReading
) -> Node:
    number = js.as_number(record["id"], "the id of a node", where=where, most=_U32)
    identity = NodeId(number.to_bytes(NODE_ID_SIZE, "big"))
    path = js.as_text(record["path"], "the path of a node", where=where)
    try:
        check_node_path(path)
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error.message}") from None
    attributes = record.get("inline_attrs")
    if record.get("attrs_reference") is not None:
        attributes = _outside_attributes(record["attrs_reference"], layout, outside, where)
    kind, metadata = record["type"], record.get("array_metadata")
    if kind not in ("array", "group") or (kind == "array") != (metadata is not None):
        raise FormatError(f"{where}: node {path[:200]!r} is neither a group nor an array")
    here = f"{where}, node {path[:200]!r}"
    if isinstance(attributes, bytes):
        outside.memory.check(js.memory_of(attributes))
    document, facts = to_zarr_json(metadata, attributes, where=here)
    if not isinstance(facts, ArrayDocument):
        return Node(identity, path, document)
    refs = [
        _read_inventory(item, len(facts.shape), layout, here)
        for item in js.as_list(record.get("inventories") or [], "the inventories", where=here)
    ]
    sides = tuple(map(Dimension, facts.shape, facts.chunk_shape))
    return Node(identity, path, document, ArrayData(sides, facts.dimension_names, tuple(refs)))


def _outside_attributes(
    value: object, layout: DraftLayout, outside: AttributeReading, where: str
) -> bytes:
    required = ("attrs_file", "row")
    fields = js.as_object(value, "a reference to attributes", where=where, required=required)
    if fields.get("flags"):
        raise FormatError(f"{where}: a reference to attributes has flags")
    name = js.as_text(fields["attrs_file"], "the file of attributes", where=where)
    row = js.as_number(fields["row"], "the row of attributes", where=where, most=_U32)
    file = AttributesId(layout.attribute_files.id_of(name, where=where))
    return js.dump(outside.resolve(AttributesRef(file, row), where=where), "the attributes")


def _read_inventory(value: object, ndim: int, layout: DraftLayout, where: str) -> ManifestRef:
    required = ("inventory_file", "row", "extent")
    fields = js.as_object(value, "an inventory", where=where, required=required)
    if fields.get("flags"):
        raise FormatError(f"{where}: an inventory has flags")
    name = js.as_text(fields["inventory_file"], "the file of an inventory", where=where)
    row = js.as_number(fields["row"], "a row", where=where, most=_U32)
    boxes = []
    for box in js.as_list(fields["extent"], "an extent", where=where):
        ends = [
            js.as_number(end, "an extent", where=where, most=_U32 + 1)
            for end in js.as_list(box, "an extent", where=where)
        ]
        if len(ends) != 2 or ends[0] >= ends[1]:
            raise FormatError(f"{where}: {ends[:4]} is not an extent")
        boxes.append((ends[0], ends[1]))
    if len(boxes) != ndim:
        raise FormatError(f"{where}: extents of {len(boxes)} dimensions for {ndim}")
    identity = ManifestId(layout.inventories.id_of(name, where=where))
    return ManifestRef(identity, tuple(boxes), row)


def _facts(note: str | None, where: str) -> StructureFacts | None:
    if note is None:
        return None
    required = ("snapshot-id", "parent-snapshot-id", "timestamp-us", "message", "properties")
    value = js.parse(note.encode(), where=where, limit=_NOTE_LIMIT)
    fields = js.as_object(value, "the note on the snapshot", where=where, required=required)
    js.check_nesting(fields, where=where)
    if type(fields["timestamp-us"]) is not int or abs(fields["timestamp-us"]) >= 1 << 63:
        raise FormatError(f"{where}: the note on the snapshot has no time")
    parent = fields["parent-snapshot-id"]
    return StructureFacts(
        id=_hex_id(fields["snapshot-id"], where),
        parent=None if parent is None else _hex_id(parent, where),
        flushed_at=fields["timestamp-us"],
        message=js.as_text(fields["message"], "the message", where=where),
        metadata=dict(js.as_object(fields["properties"], "the properties", where=where)),
    )


def _hex_id(value: object, where: str) -> SnapshotId:
    try:
        identity = bytes.fromhex(js.as_text(value, "the id of a snapshot", where=where))
    except ValueError:
        identity = b""
    if len(identity) != EARLY_OBJECT_ID_SIZE:
        raise FormatError(f"{where}: {repr(value)[:80]} is not the id of a snapshot")
    return SnapshotId(identity)
