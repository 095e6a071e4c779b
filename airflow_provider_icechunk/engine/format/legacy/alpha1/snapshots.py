"""Snapshots of `alpha1` as the documents of its schema, with a history of the nearest ancestors.

The model knows only a parent, the document lists some generations of them and counts all. `Past` is
what a child needs to know of its parent for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
)
from airflow_provider_icechunk.format.generations.alpha.scalars import decode_time, encode_time
from airflow_provider_icechunk.format.generations.alpha1.layout import decode_id
from airflow_provider_icechunk.format.generations.alpha1.zarr_documents import (
    from_zarr_json,
    to_zarr_json,
)
from airflow_provider_icechunk.format.generations.attributes import (
    AttributesRef,
    Reading,
    Rows,
    Writing,
    checked_rows,
)
from airflow_provider_icechunk.format.ids import (
    NODE_ID_SIZE,
    AttributesId,
    ManifestId,
    NodeId,
    SnapshotId,
    encode_base32,
)
from airflow_provider_icechunk.format.names import check_node_path
from airflow_provider_icechunk.format.references import Extents
from airflow_provider_icechunk.format.snapshot import (
    ArrayData,
    Dimension,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.format.wire import json_text as js
from airflow_provider_icechunk.format.zarr_metadata import MAX_RANK

HISTORY = 100
"""How many ancestors a snapshot lists; the count of all of them goes on."""

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
    """A snapshot with what came before it."""

    own: Ancestor
    history: tuple[Ancestor, ...] = ()
    """Newest first, not all of them."""
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
    """The document of a snapshot; `outside` says which attributes go to files of their own."""
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


def read_snapshot(document: object, *, where: str, outside: Reading) -> tuple[Snapshot, Past]:
    """The snapshot in a document and its past, everything checked.

    `outside` has the attributes that are in files of their own.
    """
    fields = js.as_object(document, "the snapshot", where=where, required=_REQUIRED)
    _check_depth(fields, where)
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
    """Only identity and history of a snapshot."""
    fields = js.as_object(document, "the snapshot", where=where, required=_REQUIRED)
    return _read_past(fields, where)


def check_node(node: Node) -> None:
    """Refuse a node that the documents have no place for."""
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


def _check_depth(fields: js.Object, where: str) -> None:
    try:
        js.check_depth(fields)
    except ValueError:
        raise FormatError(f"{where}: nested deeper than {js.MAX_DEPTH} levels") from None


def _read_past(fields: js.Object, where: str) -> Past:
    """Identity and history; the parent is the youngest ancestor, wherever it stands."""
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


def _read_node(path: str, value: object, where: str, outside: Reading) -> Node:
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


def _read_attributes(value: object, where: str, outside: Reading) -> js.Object | None:
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
    """Where the box is unknown it stays unknown: an empty list."""
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
