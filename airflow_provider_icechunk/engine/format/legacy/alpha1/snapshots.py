"""Snapshots of `alpha1` and the Zarr documents in them.

The model has only a parent; the document lists the newest ancestors and counts all of them. `Past`
is what a child needs to know about its parent for that.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_icechunk.engine.format.chunk_refs import Extents
from airflow_provider_icechunk.engine.format.ids import (
    NODE_ID_SIZE,
    AttributesId,
    ManifestId,
    NodeId,
    SnapshotId,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.alpha.scalars import decode_time, encode_time
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
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.engine.format.zarr_metadata import (
    MAX_RANK,
    rebuild_document,
    split_document,
)
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

from .layout import decode_id

_REQUIRED_OF_ARRAYS = (
    "shape",
    "data_type",
    "chunk_shape",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
)
_RAW = re.compile(r"r([1-9][0-9]{0,8})", re.ASCII)
_FLOATS = ("Float16", "Float32", "Float64")
_COMPLEX = ("Complex64", "Complex128")
_NOT_YET = ("String", "Bytes")
_SPECIAL = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity"}


def from_zarr_json(document: bytes) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Metadata of an array (`None` for a group) and attributes; refuses what has no field."""
    plain, bits = _without_raw_bits(document)
    zarr, attributes = split_document(plain)
    if zarr is None:
        return None, attributes
    shape, data_type, chunk_shape, encoding, fill, codecs, transformers, names = zarr
    ((variant, value),) = fill.items()
    if bits is not None:
        data_type, variant = {"rawbits": bits}, "RawBits"
    elif variant in _NOT_YET:
        raise InvalidInputError(
            f"generation `alpha1` has no data type {data_type!r}; use a newer generation",
            kind=Kind.INVALID_METADATA,
        )
    metadata = {
        "shape": shape,
        "data_type": data_type,
        "chunk_shape": chunk_shape,
        "chunk_key_encoding": encoding,
        "fill_value": {variant: _finite(variant, value)},
        "codecs": [_step(step) for step in codecs],
        "storage_transformers": transformers and [_step(step) for step in transformers],
        "dimension_names": names,
    }
    if 0 in chunk_shape:
        raise InvalidInputError(
            "generation `alpha1` has no chunks of length 0", kind=Kind.INVALID_METADATA
        )
    return metadata, attributes


def to_zarr_json(
    metadata: Mapping[str, Any] | None, attributes: Mapping[str, Any] | None, *, where: str
) -> bytes:
    """The `zarr.json` of an array or a group (`None`)."""
    if metadata is None:
        return rebuild_document(None, attributes, where=where)
    js.as_object(metadata, "the Zarr metadata", where=where, required=_REQUIRED_OF_ARRAYS)
    # Only Zarr's name for a chunk depends on it: references are kept by coordinates.
    if metadata["chunk_key_encoding"] not in ("Slash", "Dot", "Default"):
        raise FormatError(f"{where}: an unknown encoding of chunk keys")
    variant, value = js.as_variant(metadata["fill_value"], "the fill value", where=where)
    data_type, bits = metadata["data_type"], None
    if isinstance(data_type, dict):
        name, size = js.as_variant(data_type, "the data type", where=where)
        if name != "rawbits" or variant != "RawBits":
            raise FormatError(f"{where}: an unknown data type {name[:60]!r}")
        bits = js.as_number(size, "the size of raw bits", where=where, most=999_999_999)
        data_type, variant = "bytes", "Bytes"
    elif variant in (*_NOT_YET, "RawBits") or data_type in ("string", "bytes"):
        raise FormatError(f"{where}: a fill value or data type that does not exist yet")
    transformers = metadata.get("storage_transformers")
    items = (
        metadata["shape"],
        data_type,
        metadata["chunk_shape"],
        "Slash",
        {variant: _checked(variant, value, where)},
        _pairs(metadata["codecs"], where),
        None if transformers is None else _pairs(transformers, where),
        metadata.get("dimension_names"),
    )
    document = rebuild_document(items, attributes, where=where)
    return document if bits is None else _with_raw_bits(document, bits)


def _without_raw_bits(document: bytes) -> tuple[bytes, int | None]:
    """The document with raw bits called bytes, which the early shape stores the same way."""
    if b'"r' not in document:
        return document, None
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        return document, None
    data_type = fields.get("data_type") if isinstance(fields, dict) else None
    match = _RAW.fullmatch(data_type) if isinstance(data_type, str) else None
    if match is None:
        return document, None
    fill = fields.get("fill_value")
    if isinstance(fill, str):
        try:
            fill = list(base64.standard_b64decode(fill.encode()))
        except (binascii.Error, UnicodeEncodeError):
            fill = None
    return json.dumps(fields | {"data_type": "bytes", "fill_value": fill}).encode(), int(match[1])


def _with_raw_bits(document: bytes, bits: int) -> bytes:
    fields = json.loads(document)
    fill = base64.standard_b64encode(bytes(fields["fill_value"])).decode()
    fields |= {"data_type": f"r{bits}", "fill_value": fill}
    return json.dumps(fields, ensure_ascii=False).encode()


def _finite(variant: str, value: Any) -> Any:
    """JSON has only finite numbers: for all others, Zarr's names are used."""
    if variant in _FLOATS:
        return _named(value)
    return [_named(part) for part in value] if variant in _COMPLEX else value


def _named(number: float) -> float | str:
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _checked(variant: str, value: Any, where: str) -> Any:
    parts = value if variant in _COMPLEX else [value] if variant in _FLOATS else []
    for part in js.as_list(parts, "a complex fill value", where=where):
        if not (part in _SPECIAL if isinstance(part, str) else type(part) in (int, float)):
            raise FormatError(f"{where}: {repr(part)[:60]} is not a number")
    return value


def _step(step: list[Any]) -> dict[str, Any]:
    name, configuration = step
    return (
        {"name": name} if configuration is None else {"name": name, "configuration": configuration}
    )


def _pairs(steps: object, where: str) -> list[list[Any]]:
    pairs = []
    for step in js.as_list(steps, "a list of codecs", where=where):
        fields = js.as_object(step, "a codec", where=where, required=["name"])
        pairs.append([fields["name"], fields.get("configuration")])
    return pairs


HISTORY = 100
"""How many ancestors a snapshot lists; it counts all of them."""

_REQUIRED = (
    "metadata",
    "nodes",
    "properties",
    "short_term_history",
    "short_term_parents",
    "started_at",
    "total_parents",
)
_U16, _U32, _I63 = (1 << 16) - 1, (1 << 32) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One entry of a history."""

    id: SnapshotId
    written_at: int
    """Microseconds since 1970 UTC."""
    message: str


@dataclass(frozen=True, slots=True)
class Past:
    """A snapshot and its history."""

    own: Ancestor
    history: tuple[Ancestor, ...] = ()
    """Newest first, but not all of them."""
    total: int = 0
    """How many ancestors there are."""

    def next(self, own: Ancestor) -> Past:
        """The past of a child."""
        return Past(own, (self.own, *self.history)[:HISTORY], min(self.total + 1, _U32))


def past_of(snapshot: Snapshot, parent: Past | None) -> Past:
    """The past of a snapshot, given that of its parent."""
    own = Ancestor(snapshot.id, snapshot.flushed_at, snapshot.message)
    return Past(own) if parent is None else parent.next(own)


def write_snapshot(snapshot: Snapshot, past: Past, outside: Writing) -> dict[str, Any]:
    """The document of a snapshot; `outside` says which attributes go to separate files."""
    return {
        "metadata": _write_ancestor(past.own),
        "nodes": {path: _write_node(node, outside) for path, node in snapshot.nodes.items()},
        "properties": dict(snapshot.metadata),
        "short_term_history": [_write_ancestor(one) for one in past.history],
        "short_term_parents": len(past.history),
        "started_at": encode_time(
            snapshot.flushed_at if snapshot.started_at is None else snapshot.started_at
        ),
        "total_parents": past.total,
    }


def read_snapshot(
    document: object, *, where: str, outside: AttributeReading
) -> tuple[Snapshot, Past]:
    """The snapshot in a document and its past, everything checked.

    `outside` has the attributes that are in separate files.
    """
    fields = js.as_object(document, "the snapshot", where=where, required=_REQUIRED)
    js.check_nesting(fields, where=where)
    past = _read_past(fields, where)
    nodes = [
        _read_node(path, node, where, outside)
        for path, node in js.as_object(fields["nodes"], "the nodes", where=where).items()
    ]
    if len({node.id for node in nodes}) != len(nodes):
        raise FormatError(f"{where}: two nodes have the same number")
    used = {ref.id for node in nodes if node.array for ref in node.array.manifests}
    snapshot = Snapshot(
        id=past.own.id,
        parent_id=past.history[0].id if past.history else None,
        flushed_at=past.own.written_at,
        message=past.own.message,
        metadata=dict(js.as_object(fields["properties"], "the properties", where=where)),
        nodes=in_order(nodes),
        manifest_files={identity: ManifestFile(identity, 0, 0) for identity in sorted(used)},
        attribute_files=outside.files,
        started_at=decode_time(fields["started_at"], where=where),
    )
    return snapshot, past


def read_past(document: object, *, where: str) -> Past:
    """Only the identity and the history of a snapshot."""
    fields = js.as_object(document, "the snapshot", where=where, required=_REQUIRED)
    return _read_past(fields, where)


def check_node(node: Node) -> None:
    """Refuse a node that the documents cannot hold."""
    js.dump(_write_node(node, Writing(None, {}, None)), f"node {node.path!r}")


def write_attributes(identity: AttributesId, rows: Rows) -> dict[str, Any]:
    """The document of an attributes file."""
    return {"id": list(identity), "attributes": list(rows)}


def read_attributes(document: object, expected: AttributesId, where: str) -> Rows:
    """The rows of an attributes file."""
    fields = js.as_object(document, "the file", where=where, required=["id", "attributes"])
    if decode_id(fields["id"], where=where) != expected:
        raise FormatError(f"{where}: says it is another file")
    return checked_rows(js.as_list(fields["attributes"], "the rows", where=where), where=where)


def _read_past(fields: js.Object, where: str) -> Past:
    """Identity and history; the parent is the youngest ancestor, wherever it is listed."""
    entries = js.as_list(fields["short_term_history"], "the history", where=where)
    history = [_read_ancestor(entry, where) for entry in entries]
    parents = js.as_number(fields["short_term_parents"], "the parents", where=where, most=_U16)
    total = js.as_number(fields["total_parents"], "all parents", where=where, most=_U32)
    decode_time(fields["started_at"], where=where)
    if parents != len(history) or total < parents:
        raise FormatError(
            f"{where}: {len(history)} ancestors are listed, {parents} counted, of {total} in all"
        )
    if history and history[0].written_at < history[-1].written_at:
        history.reverse()
    return Past(_read_ancestor(fields["metadata"], where), tuple(history), total)


def _write_ancestor(one: Ancestor) -> dict[str, Any]:
    return {"id": list(one.id), "message": one.message, "written_at": encode_time(one.written_at)}


def _read_ancestor(value: object, where: str) -> Ancestor:
    required = ("id", "message", "written_at")
    fields = js.as_object(value, "a snapshot's metadata", where=where, required=required)
    return Ancestor(
        id=SnapshotId(decode_id(fields["id"], where=where)),
        written_at=decode_time(fields["written_at"], where=where),
        message=js.as_text(fields["message"], "a message", where=where),
    )


def _write_node(node: Node, outside: Writing) -> dict[str, Any]:
    zarr, attributes = from_zarr_json(node.user_data)
    if (zarr is None) != (node.array is None):
        raise InvalidInputError(f"node {node.path!r} and its `zarr.json` are of different kinds")
    data: Any = "Group"
    if node.array is not None:
        refs = [_write_ref(ref, node.array) for ref in node.array.manifests]
        data = {"Array": [zarr, refs]}
    return {
        "id": node_number(node.id),
        "path": node.path,
        "node_data": data,
        "user_attributes": _write_attributes(attributes, outside),
    }


def _write_attributes(attributes: dict[str, Any] | None, outside: Writing) -> Any:
    if attributes is None:
        return None
    ref = outside.place(attributes)
    if ref is None:
        return {"Inline": attributes}
    return {"Ref": {"object_id": list(ref.file), "location": ref.row, "flags": []}}


def node_number(identity: NodeId) -> int:
    """The number of a node; ids of later generations do not fit."""
    number = int.from_bytes(identity, "big")
    if number > _U32:
        raise InvalidInputError(
            f"node id {encode_base32(identity)} does not fit the 32 bits that generation `alpha1` "
            "has for it",
            kind=Kind.INVALID_METADATA,
        )
    return number


def read_node_id(value: object, *, where: str) -> NodeId:
    """The model's id of a numbered node."""
    number = js.as_number(value, "the id of a node", where=where, most=_U32)
    return NodeId(number.to_bytes(NODE_ID_SIZE, "big"))


def _read_node(path: str, value: object, where: str, outside: AttributeReading) -> Node:
    fields = js.as_object(value, "a node", where=where, required=["id", "path", "node_data"])
    try:
        check_node_path(path)
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error.message}") from None
    if fields["path"] != path:
        raise FormatError(f"{where}: the node at {path[:200]!r} says it is elsewhere")
    kind, content = js.as_variant(fields["node_data"], f"the data of {path!r}", where=where)
    zarr: js.Object | None = None
    array = None
    if kind == "Array":
        zarr, array = _read_array(content, where)
    elif kind != "Group" or content is not None:
        raise FormatError(f"{where}: node {path[:200]!r} is neither a group nor an array")
    attributes = _read_attributes(fields.get("user_attributes"), where, outside)
    document = to_zarr_json(zarr, attributes, where=f"{where}, node {path[:200]!r}")
    return Node(read_node_id(fields["id"], where=where), path, document, array)


def _read_attributes(value: object, where: str, outside: AttributeReading) -> js.Object | None:
    if value is None:
        return None
    kind, content = js.as_variant(value, "the attributes of a node", where=where)
    if kind == "Ref":
        required = ("object_id", "location", "flags")
        ref = js.as_object(content, "a reference to attributes", where=where, required=required)
        if ref["flags"] != []:
            raise FormatError(f"{where}: a reference to attributes has flags")
        file = AttributesId(decode_id(ref["object_id"], where=where))
        row = js.as_number(ref["location"], "the row of attributes", where=where, most=_U32)
        return outside.resolve(AttributesRef(file, row), where=where)
    if kind != "Inline":
        raise FormatError(f"{where}: the attributes of a node are neither inline nor a reference")
    return js.as_object(content, "the attributes of a node", where=where)


def _read_array(value: object, where: str) -> tuple[js.Object, ArrayData]:
    parts = js.as_list(value, "an array", where=where)
    if len(parts) != 2:
        raise FormatError(f"{where}: an array has {len(parts)} parts, expected 2")
    required = ("shape", "chunk_shape")
    zarr = js.as_object(parts[0], "the Zarr metadata", where=where, required=required)
    shape, chunks = (_numbers(zarr[name], name, where, most=_I63) for name in required)
    if len(shape) != len(chunks) or 0 in chunks or len(shape) > MAX_RANK:
        raise FormatError(f"{where}: shape {shape[:8]} and chunk shape {chunks[:8]} do not fit")
    names = zarr.get("dimension_names")
    if names is not None:
        names = js.as_list(names, "the dimension names", where=where)
        if len(names) != len(shape) or not all(isinstance(name, str | None) for name in names):
            raise FormatError(f"{where}: the dimension names are not {len(shape)} texts or nulls")
    refs = js.as_list(parts[1], "the manifests of an array", where=where)
    return zarr, ArrayData(
        shape=tuple(map(Dimension, shape, chunks)),
        dimension_names=None if names is None else tuple(names),
        manifests=tuple(_read_ref(ref, len(shape), where) for ref in refs),
    )


def _numbers(value: object, what: str, where: str, *, most: int) -> tuple[int, ...]:
    items = js.as_list(value, what, where=where)
    return tuple(js.as_number(item, what, where=where, most=most) for item in items)


def _write_ref(ref: ManifestRef, array: ArrayData) -> dict[str, Any]:
    """An unknown box stays unknown: an empty list."""
    corners: list[list[int]] = []
    if ref.extents is not None and len(ref.extents) == len(array.shape):
        corners = [[low for low, _ in ref.extents], [high for _, high in ref.extents]]
    return {"object_id": list(ref.id), "flags": [], "extents": corners}


def _read_ref(value: object, ndim: int, where: str) -> ManifestRef:
    required = ("object_id", "flags", "extents")
    fields = js.as_object(value, "a manifest reference", where=where, required=required)
    if fields["flags"] != []:
        raise FormatError(f"{where}: a manifest reference has flags")
    corners = js.as_list(fields["extents"], "the extents of a manifest", where=where)
    extents: Extents | None = None
    if corners:
        boxes = [_numbers(corner, "an extent", where, most=_U32 + 1) for corner in corners]
        if [len(box) for box in boxes] != [ndim, ndim]:
            raise FormatError(f"{where}: extents that do not fit {ndim} dimensions")
        extents = tuple(zip(*boxes, strict=True))
        if any(low >= high for low, high in extents):
            raise FormatError(f"{where}: extents without a chunk in them")
    return ManifestRef(ManifestId(decode_id(fields["object_id"], where=where)), extents)
