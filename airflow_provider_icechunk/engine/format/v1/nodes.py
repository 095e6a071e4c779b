"""One node of a snapshot file: a table to a value, and back."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from airflow_provider_icechunk.engine.format.chunk_refs import Extents
from airflow_provider_icechunk.engine.format.ids import (
    NODE_ID_SIZE,
    OBJECT_ID_SIZE,
    ManifestId,
    NodeId,
)
from airflow_provider_icechunk.engine.format.model import ArrayData, Dimension, ManifestRef, Node
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Table
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import PayloadWriter
from airflow_provider_icechunk.engine.format.wire.messagepack import measure
from airflow_provider_icechunk.engine.format.zarr_metadata import (
    MAX_RANK,
    GroupDocument,
    parse_node,
    rebuild_document,
)
from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError

from . import snapshot_layout as layout
from .snapshot_layout import Dialect

_INLINE_ATTRIBUTES = 1
_MAX_COUNT = (1 << 32) - 1


def read_node(table: Table, *, unreleased: bool) -> Node:
    """The node in a table; `unreleased` in a file of February 2025."""
    identity = NodeId(table.fixed(0, NODE_ID_SIZE))
    path = table.text(1)
    try:
        check_node_path(path)
    except InvalidInputError as error:
        table.buffer.fail(error.message)
    kind = table.u8(3)
    if unreleased and table.has(5) and kind not in (layout.ARRAY, layout.GROUP):
        # There slot 3 is a reference, which is never as short as 1 or 2.
        return _unreleased_node(table, identity, path)
    data = _node_data(table, kind, 4)
    array = _array_data(data) if kind == layout.ARRAY else None
    extra = table.blob(5) if table.has(5) else None
    return Node(identity, path, table.blob(2), array, extra)


def _node_data(table: Table, kind: int, slot: int) -> Table:
    if kind not in (layout.ARRAY, layout.GROUP):
        table.buffer.fail(f"a node is of unknown type {kind}")
    return table.child(slot)


def _array_data(data: Table) -> ArrayData:
    shape = _shape(data)
    if len(shape) > MAX_RANK:
        data.buffer.fail(f"an array has {len(shape)} dimensions, more than {MAX_RANK}")
    names = None
    if data.has(1):
        names = tuple(name.text_or_none(0) or None for name in data.tables(1))
        if len(names) != len(shape):
            data.buffer.fail(f"an array has {len(shape)} dimensions but {len(names)} names")
    return ArrayData(shape, names, _manifest_refs(data, 2, len(shape)))


def _shape(data: Table) -> tuple[Dimension, ...]:
    """The sides of an array; files of generation `2` have numbers of chunks, not lengths."""
    if not data.has(3):
        return tuple(Dimension(length, chunk) for length, chunk in data.pairs(0, "Q"))
    sides = [(side.u64(0), side.u32(1)) for side in data.tables(3)]
    return tuple(
        Dimension(length, -(-length // count) if count else 0, count) for length, count in sides
    )


def _manifest_refs(data: Table, slot: int, rank: int) -> tuple[ManifestRef, ...]:
    return tuple(
        ManifestRef(ManifestId(ref.fixed(0, OBJECT_ID_SIZE)), _extents(ref, rank))
        for ref in data.tables(slot)
    )


def _extents(ref: Table, rank: int) -> Extents | None:
    """The extents of a manifest; official readers treat empty ones as unbounded."""
    ranges = ref.pairs(1, "I")
    if len(ranges) != rank:
        if not ranges:
            return None
        ref.buffer.fail(f"extents have {len(ranges)} dimensions, their array {rank}")
    return tuple(ranges)


def _unreleased_node(table: Table, identity: NodeId, path: str) -> Node:
    """A node of commit f1dc0bbe: attributes in slots 2 and 3, data in 4 and 5."""
    where = table.buffer.where
    attributes = None
    if table.u8(2) == _INLINE_ATTRIBUTES:
        attributes = _early_value(table.child(3).blob(0), table)
        if not isinstance(attributes, dict):
            table.buffer.fail("the attributes of a node are not a map")
    elif table.u8(2):
        table.buffer.fail("the attributes of a node are in another file, which never existed")
    kind = table.u8(4)
    data = _node_data(table, kind, 5)
    if kind == layout.GROUP:
        return Node(identity, path, rebuild_document(None, attributes, where=where))
    zarr = _early_value(data.blob(0), table)
    if not isinstance(zarr, list):
        table.buffer.fail("the Zarr metadata of an array is not a list")
    document = rebuild_document(zarr, attributes, where=where)
    try:
        facts = parse_node(document)
    except (InvalidInputError, UnsupportedError) as error:
        table.buffer.fail(error.message)
    if isinstance(facts, GroupDocument):
        return table.buffer.fail("the Zarr metadata of an array is that of a group")
    sides = zip(facts.shape, facts.chunk_shape, strict=True)
    shape = tuple(Dimension(length, chunk) for length, chunk in sides)
    names = facts.dimension_names and tuple(name or None for name in facts.dimension_names)
    manifests = _manifest_refs(data, 1, len(shape))
    return Node(identity, path, document, ArrayData(shape, names, manifests))


def _early_value(data: bytes, table: Table) -> Any:
    try:
        measure(data, table.buffer.memory, where=table.buffer.where)
        return msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException):
        return table.buffer.fail("the metadata of a node is not one MessagePack value")


def write_node(writer: PayloadWriter, link: int, node: Node, dialect: Dialect) -> None:
    """Append a node and point `link` to it."""
    writer.align(4)
    writer.link(link)
    at = writer.table(layout.NODE if node.extra is None else layout.NODE_EXTRA)
    if node.extra is not None:
        writer.blob(at + 28, node.extra)
    writer.put(at + 16, node.id)
    writer.number(at + 24, "B", layout.GROUP if node.array is None else layout.ARRAY)
    writer.text(at + 4, node.path)
    writer.blob(at + 8, node.user_data)
    writer.align(4)
    writer.link(at + 12)
    if node.array is None:
        writer.table(layout.EMPTY)
    else:
        _write_array_data(writer, node, node.array, dialect)


def _write_array_data(
    writer: PayloadWriter, node: Node, array: ArrayData, dialect: Dialect
) -> None:
    names = array.dimension_names
    if dialect.newer:
        at = writer.table(
            layout.NEWER_ARRAY_DATA if names is None else layout.NEWER_NAMED_ARRAY_DATA
        )
        writer.blob(at + 4, b"", align=8)
        _write_sides(writer, at + 16, node, array)
    else:
        at = writer.table(layout.ARRAY_DATA if names is None else layout.NAMED_ARRAY_DATA)
        sides = [struct.pack("<QQ", side.length, side.chunk_length) for side in array.shape]
        writer.blob(at + 4, b"".join(sides), count=len(sides), align=8)
    if names is not None:
        for link, name in zip(writer.references(at + 8, len(names)), names, strict=True):
            writer.align(4)
            writer.link(link)
            table = writer.table(layout.NAME if name else layout.EMPTY)
            if name:
                writer.text(table + 4, name)
    refs = writer.references(at + 12, len(array.manifests))
    for link, ref in zip(refs, array.manifests, strict=True):
        _write_manifest_ref(writer, link, ref, len(array.shape))


def _write_sides(writer: PayloadWriter, at: int, node: Node, array: ArrayData) -> None:
    counts = [side.num_chunks for side in array.shape]
    if None in counts:
        facts = parse_node(node.user_data, rectilinear=True)
        counts = [] if isinstance(facts, GroupDocument) else list(facts.num_chunks)
    for link, side, count in zip(
        writer.references(at, len(array.shape)), array.shape, counts, strict=True
    ):
        writer.align(8)
        writer.link(link)
        table = writer.table(layout.SIDE, align=8)
        writer.number(table + 8, "Q", side.length)
        writer.number(table + 16, "I", min(count or 0, _MAX_COUNT))


def _write_manifest_ref(writer: PayloadWriter, link: int, ref: ManifestRef, rank: int) -> None:
    if ref.extents is None or len(ref.extents) != rank:
        raise InvalidInputError("a manifest reference has no extents, which this generation needs")
    writer.align(4)
    writer.link(link)
    at = writer.table(layout.MANIFEST_REF)
    writer.put(at + 8, ref.id)
    box = b"".join(struct.pack("<II", low, high) for low, high in ref.extents)
    writer.blob(at + 4, box, count=len(ref.extents), align=4)
