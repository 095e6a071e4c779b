"""Snapshots of `alpha`: three record shapes are read, the last one is written.

Zarr metadata is stored in separate fields, so every `zarr.json` is rebuilt when read and split when
written, which refuses members that the shape has no field for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import Extents
from airflow_provider_icechunk.engine.format.ids import (
    AttributesId,
    ManifestId,
    SnapshotId,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.attributes import (
    AttributeReading,
    AttributesRef,
    Rows,
    Writing,
)
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    ManifestFile,
    ManifestRef,
    Metadata,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.wire.messagepack import (
    Array,
    Value,
    as_array,
    as_index,
    as_json,
    as_members,
    as_number,
    as_numbers,
    as_text,
    as_variant,
    pack,
    pack_array,
    pack_map,
    pack_single,
    pack_variant,
    unpack,
)
from airflow_provider_icechunk.engine.format.zarr_metadata import rebuild_document, split_document
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .scalars import (
    check_flags,
    check_version,
    decode_manifest_id,
    decode_node_id,
    decode_snapshot_id,
    decode_time,
    encode_id,
    encode_time,
)

_FIRST, _SECOND, _LAST = 11, 9, 8
"""Items of the snapshot record in the three shapes."""
_NIL = b"\xc0"
_U16, _U32 = (1 << 16) - 1, (1 << 32) - 1
_SINGLE_FLOATS = ("Float16", "Float32", "Complex64")


@dataclass(frozen=True, slots=True)
class _Record:
    """The common fields of the three shapes."""

    id: SnapshotId
    parent: SnapshotId | None
    flushed_at: int
    message: str
    metadata: Metadata
    manifest_files: tuple[ManifestFile, ...]
    attribute_files: frozenset[AttributesId]
    nodes: Value
    may_be_misnamed: bool
    """Early writers stored the first snapshot under a different id from the one inside."""


def decode_snapshot(
    payload: bytes | memoryview, expected: SnapshotId, *, where: str, outside: AttributeReading
) -> Snapshot:
    """The snapshot in an unpacked payload; it gets the id of its file name.

    `outside` has the attributes that are in separate files.
    """
    record = _read_record(payload, where, outside.memory)
    if record.id != expected and not record.may_be_misnamed:
        raise FormatError(f"{where}: says it is snapshot {encode_base32(record.id)}")
    nodes = _read_nodes(record.nodes, where, outside)
    return Snapshot(
        id=expected,
        parent_id=record.parent,
        flushed_at=record.flushed_at,
        message=record.message,
        metadata=record.metadata,
        nodes=in_order(nodes),
        manifest_files=_all_manifests(record.manifest_files, nodes),
        attribute_files=record.attribute_files | outside.files,
    )


def embedded_id(payload: bytes | memoryview, *, where: str, memory: Purse) -> SnapshotId:
    """The id that is written inside a snapshot, whatever its file is called."""
    return _read_record(payload, where, memory).id


def encode_snapshot(snapshot: Snapshot, outside: Writing) -> bytes:
    """A payload in the last shape; `outside` says which attributes go to separate files."""
    nodes = sorted(snapshot.nodes.values(), key=lambda node: _by_component(node.path))
    files = [
        pack_array([encode_id(file.id), pack(file.size_bytes), pack(file.num_chunk_refs)])
        for file in snapshot.manifest_files.values()
    ]
    packed = pack_map([(pack(node.path), _pack_node(node, outside)) for node in nodes])
    return pack_array(
        [
            encode_id(snapshot.id),
            _NIL if snapshot.parent_id is None else encode_id(snapshot.parent_id),
            pack(encode_time(snapshot.flushed_at)),
            pack(snapshot.message),
            pack(dict(snapshot.metadata)),
            pack_array(files),
            pack_array([pack_array([encode_id(file)]) for file in outside.files]),
            packed,
        ]
    )


def _read_record(payload: bytes | memoryview, where: str, memory: Purse) -> _Record:
    value = unpack(payload, where=where, memory=memory)
    record = as_array(value, "the snapshot", where=where, sizes=(_LAST, _SECOND, _FIRST))
    if len(record) == _LAST:
        return _read_last(record, where)
    first_shape = len(record) == _FIRST
    if first_shape:
        check_version(record[0], where=where)
        check_flags(record[1], where=where)
    return _read_with_history(record[-_SECOND:], where, first_shape=first_shape)


def _read_last(record: Array, where: str) -> _Record:
    identity, parent, flushed_at, message, metadata, files, attribute_files, nodes = record
    return _Record(
        id=decode_snapshot_id(identity, where=where),
        parent=None if parent is None else decode_snapshot_id(parent, where=where),
        flushed_at=decode_time(flushed_at, where=where),
        message=as_text(message, "the message", where=where),
        metadata=_metadata(metadata, where),
        manifest_files=_read_files(files, where, sized=True),
        attribute_files=_attribute_files(attribute_files, where),
        nodes=nodes,
        may_be_misnamed=False,
    )


def _read_with_history(record: Array, where: str, *, first_shape: bool) -> _Record:
    files, attribute_files, total, short_term, history, own, started_at, metadata, nodes = record
    entries = as_array(history, "the history", where=where)
    ancestors = [_read_ancestor(entry, where) for entry in entries]
    identity, flushed_at, message = _read_ancestor(own, where)
    listed = as_number(short_term, "the number of ancestors listed", where=where, most=_U16)
    counted = as_number(total, "the number of ancestors", where=where, most=_U32)
    if listed != len(ancestors) or counted < listed:
        raise FormatError(
            f"{where}: {len(ancestors)} ancestors are listed, {listed} counted, of {counted} in all"
        )
    decode_time(started_at, where=where)
    parent = ancestors[0][0] if ancestors else None
    return _Record(
        id=identity,
        parent=parent,
        flushed_at=flushed_at,
        message=message,
        metadata=_metadata(metadata, where),
        manifest_files=_read_files(files, where, sized=False),
        attribute_files=_attribute_files(attribute_files, where),
        nodes=nodes,
        may_be_misnamed=first_shape and parent is None,
    )


def _read_ancestor(value: Value, where: str) -> tuple[SnapshotId, int, str]:
    """Id, time and message of a snapshot."""
    identity, written_at, message = as_array(value, "a snapshot", where=where, sizes=(3,))
    return (
        decode_snapshot_id(identity, where=where),
        decode_time(written_at, where=where),
        as_text(message, "the message", where=where),
    )


def _attribute_files(value: Value, where: str) -> frozenset[AttributesId]:
    what = "the list of attribute files"
    files = [
        as_array(item, "an attribute file", where=where, sizes=(1,))
        for item in as_array(value, what, where=where)
    ]
    return frozenset(AttributesId(decode_manifest_id(file[0], where=where)) for file in files)


def _metadata(value: Value, where: str) -> Metadata:
    members = as_members(value, "the metadata", where=where)
    return {name: as_json(item, "the metadata", where=where) for name, item in members.items()}


def _read_files(value: Value, where: str, *, sized: bool) -> tuple[ManifestFile, ...]:
    files = as_array(value, "the list of manifests", where=where)
    return tuple(_read_file(file, where, sized=sized) for file in files)


def _read_file(value: Value, where: str, *, sized: bool) -> ManifestFile:
    """Three items are id, size and count in the last shape, and id, version and size before it."""
    file = as_array(value, "a manifest", where=where, sizes=(2, 3, 4))
    size: Value = 0
    count: Value = 0
    if not sized or len(file) == 4:
        check_version(file[1], where=where)
    if len(file) == 4:
        size, count = file[2:]
    elif len(file) == 3:
        size, count = file[1:] if sized else (file[2], 0)
    return ManifestFile(
        decode_manifest_id(file[0], where=where),
        as_number(size, "the size of a manifest", where=where),
        as_number(count, "the reference count of a manifest", where=where, most=(1 << 32) - 1),
    )


def _all_manifests(
    listed: tuple[ManifestFile, ...], nodes: list[Node]
) -> Mapping[ManifestId, ManifestFile]:
    files = {file.id: file for file in listed}
    for node in nodes:
        for ref in node.array.manifests if node.array else ():
            files.setdefault(ref.id, ManifestFile(ref.id, 0, 0))
    return {identity: files[identity] for identity in sorted(files)}


def _read_nodes(value: Value, where: str, outside: AttributeReading) -> list[Node]:
    nodes = as_members(value, "the nodes", where=where)
    return [_read_node(path, node, where, outside) for path, node in nodes.items()]


def _read_node(path: str, value: Value, where: str, outside: AttributeReading) -> Node:
    identity, own_path, attributes, data = as_array(value, "a node", where=where, sizes=(4,))
    try:
        check_node_path(path)
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error.message}") from None
    if own_path != path or not path:
        raise FormatError(f"{where}: the node at {path!r} says it is elsewhere")
    kind, content = as_variant(data, f"the data of node {path!r}", where=where)
    found = _read_attributes(attributes, where, outside)
    if kind == "Group" and content is None:
        array, zarr = None, None
    elif kind == "Array":
        array, zarr = _read_array(content, where)
    else:
        raise FormatError(f"{where}: node {path!r} is neither a group nor an array")
    document = rebuild_document(zarr, found, where=f"{where}, node {path!r}")
    return Node(decode_node_id(identity, where=where), path, document, array)


def _read_attributes(value: Value, where: str, outside: AttributeReading) -> dict[str, Any] | None:
    if value is None:
        return None
    kind, content = as_variant(value, "the attributes of a node", where=where)
    if kind == "Ref":
        file, row = as_array(content, "a reference to attributes", where=where, sizes=(2,))
        ref = AttributesRef(
            AttributesId(decode_manifest_id(file, where=where)),
            as_number(row, "the row of attributes", where=where, most=(1 << 32) - 1),
        )
        return outside.resolve(ref, where=where)
    if kind != "Inline":
        raise FormatError(f"{where}: the attributes of a node are neither inline nor a reference")
    members = as_members(content, "the attributes of a node", where=where)
    return {n: as_json(item, "an attribute", where=where) for n, item in members.items()}


def _read_array(value: Value, where: str) -> tuple[ArrayData, list[Any]]:
    zarr, refs = as_array(value, "an array", where=where, sizes=(2,))
    items = as_array(zarr, "the Zarr metadata of an array", where=where, sizes=(8,))
    shape = as_numbers(items[0], "a shape", where=where, most=(1 << 63) - 1)
    chunks = as_numbers(items[2], "a chunk shape", where=where, most=(1 << 63) - 1)
    if len(shape) != len(chunks) or 0 in chunks:
        raise FormatError(f"{where}: shape {shape} and chunk shape {chunks} do not fit")
    fields: list[Any] = as_json(items, "the Zarr metadata of an array", where=where)
    array = ArrayData(
        shape=tuple(map(Dimension, shape, chunks)),
        dimension_names=_dimension_names(items[7], len(shape), where),
        manifests=tuple(
            _read_manifest_ref(ref, len(shape), where)
            for ref in as_array(refs, "the manifests of an array", where=where)
        ),
    )
    return array, fields


def _dimension_names(value: Value, ndim: int, where: str) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    names = as_array(value, "the dimension names", where=where, sizes=(ndim,))
    return tuple(
        None if name is None else as_text(name, "a dimension name", where=where) for name in names
    )


def _read_manifest_ref(value: Value, ndim: int, where: str) -> ManifestRef:
    identity, box = as_array(value, "a manifest reference", where=where, sizes=(2,))
    corners = as_array(box, "the extents of a manifest", where=where, sizes=(0, 2))
    extents: Extents | None = None
    if corners:
        low, high = (as_index(corner, "an extent", where=where) for corner in corners)
        if len(low) != ndim or len(high) != ndim:
            raise FormatError(f"{where}: extents {low}, {high} of an array of {ndim} dimensions")
        extents = tuple(zip(low, high, strict=True))
    return ManifestRef(decode_manifest_id(identity, where=where), extents)


def _by_component(path: str) -> list[bytes]:
    return [part for part in path.encode().split(b"/") if part]


def encode_attributes(identity: AttributesId, rows: Rows) -> bytes:
    """The payload of an attributes file."""
    return pack_array([encode_id(identity), pack_array([pack(row) for row in rows])])


def decode_attributes(
    payload: bytes | memoryview, expected: AttributesId, where: str, memory: Purse
) -> Rows:
    """The rows of an attributes file."""
    value = unpack(payload, where=where, memory=memory)
    identity, rows = as_array(value, "the attributes file", where=where, sizes=(2,))
    if AttributesId(decode_manifest_id(identity, where=where)) != expected:
        raise FormatError(f"{where}: says it is another file")
    members = [
        as_members(row, "a row", where=where) for row in as_array(rows, "the rows", where=where)
    ]
    return tuple(
        {name: as_json(item, "an attribute", where=where) for name, item in row.items()}
        for row in members
    )


def _pack_node(node: Node, outside: Writing) -> bytes:
    zarr, attributes = split_document(node.user_data)
    if (zarr is None) != (node.array is None):
        raise InvalidInputError(f"node {node.path!r} and its `zarr.json` are of different kinds")
    if zarr is None or node.array is None:
        data = pack("Group")
    else:
        refs = pack_array([_pack_manifest_ref(ref, node.array) for ref in node.array.manifests])
        data = pack_variant("Array", pack_array([_pack_zarr(zarr), refs]))
    return pack_array(
        [encode_id(node.id), pack(node.path), _pack_attributes(attributes, outside), data]
    )


def _pack_attributes(attributes: dict[str, Any] | None, outside: Writing) -> bytes:
    if attributes is None:
        return _NIL
    ref = outside.place(attributes)
    if ref is None:
        return pack_variant("Inline", pack(attributes))
    return pack_variant("Ref", pack_array([encode_id(ref.file), pack(ref.row)]))


def _pack_zarr(zarr: tuple[Any, ...]) -> bytes:
    shape, data_type, chunk_shape, encoding, fill, codecs, transformers, names = zarr
    before = [pack(item) for item in (shape, data_type, chunk_shape, encoding)]
    after = [pack(item) for item in (codecs, transformers, names)]
    return pack_array([*before, _pack_fill(fill), *after])


def _pack_fill(fill: Mapping[str, Any]) -> bytes:
    ((variant, value),) = fill.items()
    if variant not in _SINGLE_FLOATS:
        return pack_variant(variant, pack(value))
    if variant == "Complex64":
        return pack_variant(variant, pack_array([pack_single(part) for part in value]))
    return pack_variant(variant, pack_single(value))


def _pack_manifest_ref(ref: ManifestRef, array: ArrayData) -> bytes:
    """If the box is unknown, the whole grid is written: a box that is too large is harmless."""
    extents = ref.extents
    if extents is None:
        extents = tuple((0, -(-side.length // side.chunk_length)) for side in array.shape)
    low = [start for start, _ in extents]
    high = [stop for _, stop in extents]
    return pack_array([encode_id(ref.id), pack([low, high])])
