"""Snapshot files of generation `1` and the values of their metadata.

Nodes are written in the order of their paths' raw bytes, because official readers search in it;
releases before 1.1.3 wrote another order, so reading builds a dictionary. Two unreleased versions
of February 2025 are read as well: they have slot 7 in the root, and the older one stores Zarr
metadata as eight items.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import Extents
from airflow_provider_icechunk.engine.format.ids import (
    NODE_ID_SIZE,
    OBJECT_ID_SIZE,
    ManifestId,
    NodeId,
    SnapshotId,
)
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Deferred,
    Dimension,
    ManifestFile,
    ManifestRef,
    Metadata,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.node_table import EditedNodes, NodeTable, StoredNodes
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, Table, batches
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import PayloadWriter, Shape
from airflow_provider_icechunk.engine.format.wire.messagepack import measure
from airflow_provider_icechunk.engine.format.wire.nested import positions
from airflow_provider_icechunk.engine.format.zarr_metadata import (
    MAX_RANK,
    GroupDocument,
    parse_node,
    rebuild_document,
)
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)

from .node_index import LazyNodes, check_paths

MAX_VALUE = 1 << 20
"""Maximum size of an encoded value."""
MAX_DEPTH = 32


def decode_value(data: bytes, where: str, memory: Purse | None = None) -> Any:
    """The JSON value in `data`."""
    if len(data) > MAX_VALUE:
        raise FormatError(f"{where}: a metadata value has {len(data)} bytes, too many")
    try:
        measure(data, memory, where=f"{where}: a metadata value")
        value = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException):
        raise FormatError(f"{where}: a metadata value is not one MessagePack value") from None
    if not _is_json(value, MAX_DEPTH):
        raise FormatError(
            f"{where}: a metadata value is not a JSON value, or nested more than {MAX_DEPTH} deep"
        )
    return value


def encode_value(name: str, value: Any) -> bytes:
    """`value` as MessagePack; raises for what JSON cannot express."""
    problem = "it is not a JSON value (null, boolean, 64-bit number, text, list, object)"
    try:
        if _is_json(value, MAX_DEPTH):
            data: bytes = msgpack.packb(value)
            if len(data) <= MAX_VALUE:
                return data
            problem = f"it has {len(data)} bytes, more than {MAX_VALUE}"
    except (ValueError, TypeError, OverflowError):
        pass
    raise InvalidInputError(
        f"the metadata value {name[:80]!r} cannot be stored: {problem}", kind=Kind.INVALID_METADATA
    )


def _is_json(value: Any, depth: int) -> bool:
    if depth < 0:
        return False
    match value:
        case None | bool() | int() | float() | str():
            return True
        case list() | tuple():
            return all(_is_json(item, depth - 1) for item in value)
        case dict():
            return all(
                isinstance(key, str) and _is_json(item, depth - 1) for key, item in value.items()
            )
        case _:
            return False


IDENTIFIER = b"Ichk"

MAX_COUNT = (1 << 32) - 1
_FILE_MEMORY = 400
_NODE_MEMORY = 400
"""Memory of a manifest file and a node as Python objects, beside their content."""
_ARRAY, _GROUP = 1, 2
_INLINE_ATTRIBUTES = 1

_MANIFEST_FILE = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": [f"V{OBJECT_ID_SIZE}", "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)

_FIRST = Shape(40, (28, 0, 4, 8, 16, 20, 24))
_LATER = Shape(52, (28, 40, 4, 8, 16, 20, 24))
_NODE = Shape(28, (16, 4, 8, 24, 12))
_EMPTY = Shape(4, ())
"""A group's data, or the name of a dimension that has none."""
_ARRAY_DATA = Shape(16, (4, 0, 12))
_NAMED_ARRAY_DATA = Shape(16, (4, 8, 12))
_NAME = Shape(8, (4,))
_MANIFEST_REF = Shape(20, (8, 4))
_METADATA_ITEM = Shape(12, (4, 8))
_NEWER = Shape(44, (28, 0, 4, 8, 16, 20, 24, 40))
_NEWER_ARRAY_DATA = Shape(20, (4, 0, 12, 16))
_NEWER_NAMED_ARRAY_DATA = Shape(20, (4, 8, 12, 16))
_SIDE = Shape(20, (8, 16))
_MANIFEST_INFO = Shape(28, (16, 8, 4))
_FIRST_EXTRA = Shape(44, (28, 0, 4, 8, 16, 20, 24, 0, 40))
_LATER_EXTRA = Shape(56, (28, 40, 4, 8, 16, 20, 24, 0, 52))
_NEWER_EXTRA = Shape(48, (28, 0, 4, 8, 16, 20, 24, 40, 44))
_NODE_EXTRA = Shape(32, (16, 4, 8, 24, 12, 28))
_MANIFEST_INFO_EXTRA = Shape(32, (16, 8, 4, 28))
"""The same with a field that official schemas reserve for later releases."""
_SHAPES = (
    _FIRST_EXTRA,
    _LATER_EXTRA,
    _NEWER_EXTRA,
    _NODE_EXTRA,
    _MANIFEST_INFO_EXTRA,
    _FIRST,
    _LATER,
    _NEWER,
    _NEWER_ARRAY_DATA,
    _NEWER_NAMED_ARRAY_DATA,
    _SIDE,
    _MANIFEST_INFO,
    _NODE,
    _EMPTY,
    _ARRAY_DATA,
    _NAMED_ARRAY_DATA,
    _NAME,
    _MANIFEST_REF,
    _METADATA_ITEM,
)


_START = IDENTIFIER + b"".join(shape.vtable() for shape in _SHAPES)
"""How files of this package begin, behind the position of the root."""
_MARKS_AT = 4 + len(_START)
_MARKS = struct.Struct("<II")
_MOST_WASTE = 1 << 16
_FEW_NODES = 256


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the snapshot files of generations `1` and `2`."""

    decode_value: Callable[[bytes, str, Purse | None], Any]
    encode_value: Callable[[str, Any], bytes]
    newer: bool
    """Generation `2`: no parent, shapes and manifest files in separate tables."""


DIALECT = Dialect(decode_value, encode_value, newer=False)


def decode(
    payload: bytes,
    *,
    where: str,
    dialect: Dialect = DIALECT,
    glance: bool = False,
    memory: Purse | None = None,
) -> Snapshot:
    """The snapshot in a payload; with `glance` its tree is decoded on first access."""
    buffer = Buffer(payload, where=where, memory=memory)
    root = buffer.root(IDENTIFIER)
    parent = None if dialect.newer else root.fixed_or_none(1, OBJECT_ID_SIZE)
    nodes: Mapping[str, Node]
    files: Mapping[ManifestId, ManifestFile]
    if glance:
        unreleased = root.has(7) and not dialect.newer
        nodes = LazyNodes(
            root, 2, lambda: _nodes(root, dialect), lambda table: _node(table, unreleased), memory
        )
        files = Deferred(
            root.count(_files_slot(root, dialect)), lambda: _manifest_files(root, dialect), memory
        )
    else:
        nodes, files = _nodes(root, dialect), _manifest_files(root, dialect)
    return Snapshot(
        id=SnapshotId(root.fixed(0, OBJECT_ID_SIZE)),
        parent_id=None if parent is None else SnapshotId(parent),
        flushed_at=root.u64(3),
        message=root.text(4),
        metadata=_metadata(root, where, dialect, memory),
        nodes=nodes,
        manifest_files=files,
        extra=root.blob(8) if root.has(8) else None,
    )


def encode(snapshot: Snapshot, *, dialect: Dialect = DIALECT) -> bytearray:
    """The payload of a snapshot: nodes that were not changed are copied where that is possible."""
    return _encode_edited(snapshot, dialect) or _encode_all(snapshot, dialect)


def _encode_all(snapshot: Snapshot, dialect: Dialect) -> bytearray:
    writer = PayloadWriter(IDENTIFIER, _SHAPES)
    marks = len(writer.data)
    writer.data += bytes(_MARKS.size)
    shape = _root_shape(snapshot, dialect)
    root = writer.root(shape, align=8)
    if snapshot.extra is not None:
        writer.blob(root + shape.slots[8], snapshot.extra)
    nodes = in_order(snapshot.nodes.values())
    for link, node in zip(writer.references(root + 4, len(nodes)), nodes.values(), strict=True):
        _write_node(writer, link, node, dialect)
    end = len(writer.data)
    _MARKS.pack_into(writer.data, marks, end, end)
    return _finish(writer, root, snapshot, dialect)


def _encode_edited(snapshot: Snapshot, dialect: Dialect) -> bytearray | None:
    """The stored nodes with the changed ones behind them; `None` if all have to be written.

    What a changed node was stays in the file without a use, until that is a quarter of it.
    """
    nodes = snapshot.nodes
    if not isinstance(nodes, EditedNodes):
        return None
    source, shape = nodes.table.stored.source, _root_shape(snapshot, dialect)
    if not isinstance(source, _Source) or source.reusable(shape, dialect) is None:
        return None
    whole, end = source.marks
    writer = PayloadWriter.onto(bytearray(source.buffer.data[:end]), _SHAPES)
    for path, node in nodes.changed.items():
        _write_node(writer, source.links + 4 * nodes.table.row(path), node, dialect)
    end = len(writer.data)
    if end > whole + whole // 4 + _MOST_WASTE:
        return None
    _MARKS.pack_into(writer.data, _MARKS_AT, whole, end)
    return _finish(writer, source.root, snapshot, dialect)


def _finish(writer: PayloadWriter, root: int, snapshot: Snapshot, dialect: Dialect) -> bytearray:
    """The payload with all that follows the nodes."""
    if dialect.newer:
        writer.blob(root + 24, b"", align=8)
        _write_manifest_infos(writer, root + 40, snapshot)
    else:
        if snapshot.parent_id is not None:
            writer.put(root + 40, snapshot.parent_id)
        _write_manifest_files(writer, root + 24, snapshot)
    writer.put(root + 28, snapshot.id)
    writer.number(root + 8, "Q", snapshot.flushed_at)
    writer.text(root + 16, snapshot.message)
    _write_metadata(writer, root + 20, snapshot.metadata, dialect)
    return writer.finish()


def _root_shape(snapshot: Snapshot, dialect: Dialect) -> Shape:
    plain, extended = (_LATER, _LATER_EXTRA)
    if dialect.newer:
        plain, extended = (_NEWER, _NEWER_EXTRA)
    elif snapshot.parent_id is None:
        plain, extended = (_FIRST, _FIRST_EXTRA)
    return plain if snapshot.extra is None else extended


@dataclass(frozen=True, slots=True)
class _Source:
    """The file that nodes were found in."""

    buffer: Buffer
    dialect: Dialect
    root: int
    slots: tuple[int, ...]
    links: int
    """Position of the links to the nodes."""
    last: int
    """Position of the last node."""

    @property
    def marks(self) -> tuple[int, int]:
        """Where nodes ended when all of them were written, and where they end now."""
        whole, end = _MARKS.unpack_from(self.buffer.data, _MARKS_AT)
        return whole, end

    def reusable(self, shape: Shape, dialect: Dialect) -> int | None:
        """Where the nodes end, if this package wrote the file in the present layout."""
        data = self.buffer.data
        if self.dialect is not dialect or self.slots != shape.slots or shape.slots[8:]:
            return None
        if data[4:_MARKS_AT] != _START or not self.last < self.marks[1] <= len(data):
            return None
        return self.marks[1]


def _nodes(root: Table, dialect: Dialect) -> Mapping[str, Node]:
    buffer = root.buffer
    if root.has(7) and not dialect.newer:
        early = [_node(table, unreleased=True) for table in root.tables(2)]
        by_path = in_order(early)
        if len(by_path) != len(early) or len({node.id for node in early}) != len(early):
            buffer.fail("two nodes have the same path or the same id")
        return by_path
    start, count = root.links(2)
    buffer.hold(count * _NODE_MEMORY)
    at = positions(buffer, [(start, count)])
    ids = np.zeros((count, NODE_ID_SIZE), np.uint8)
    spans = np.zeros((count, 2), np.int64)
    for batch in batches(buffer, at):
        ids[batch.rows] = batch.fixed(0, NODE_ID_SIZE)
        spans[batch.rows] = batch.spans(1, text=True)
    buffer.spend(int((spans[:, 1] - spans[:, 0]).sum()))
    last = int(at.max()) if count else 0
    source = _Source(buffer, dialect, root.at, root.slots, start, last)
    stored = StoredNodes(
        _paths(buffer, spans),
        ids,
        lambda row: _node(buffer.table(int(at[row]), root.depth + 1), unreleased=False),
        lambda: _manifests_named(buffer, at),
        source,
        buffer.memory,
    )
    try:
        nodes = NodeTable(stored)
    except ValueError as error:
        return buffer.fail(str(error))
    if count <= _FEW_NODES:
        # Damage is told at once where looking for it costs next to nothing.
        nodes.decode_all()
    return nodes


def _paths(buffer: Buffer, spans: NDArray[np.int64]) -> list[str]:
    data = buffer.data
    try:
        paths = [data[start:stop].decode() for start, stop in spans.tolist()]
    except UnicodeDecodeError:
        return buffer.fail("a string is not UTF-8")
    check_paths(buffer, paths)
    return paths


def _manifests_named(
    buffer: Buffer, at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[bytes]]:
    """Rows of arrays, and the manifests that they name."""
    rows, data = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    every = np.arange(len(at), dtype=np.int64)
    for batch in batches(buffer, at):
        arrays = batch.numbers(3, 1) == _ARRAY
        rows.append(every[batch.rows][arrays])
        data.append(batch.targets(4)[arrays])
    owners, tables = np.concatenate(rows), np.concatenate(data)
    starts, counts = np.zeros_like(tables), np.zeros_like(tables)
    for batch in batches(buffer, tables):
        starts[batch.rows], counts[batch.rows] = batch.vectors(2, 4)
    named = positions(buffer, list(zip(starts.tolist(), counts.tolist(), strict=True)))
    ids = np.zeros((len(named), OBJECT_ID_SIZE), np.uint8)
    for batch in batches(buffer, named):
        ids[batch.rows] = batch.fixed(0, OBJECT_ID_SIZE)
    whole, size = ids.tobytes(), OBJECT_ID_SIZE
    found = [whole[place : place + size] for place in range(0, len(whole), size)]
    return np.repeat(owners, counts), found


def _metadata(root: Table, where: str, dialect: Dialect, memory: Purse | None) -> Metadata:
    items = root.tables(5)
    return {item.text(0): dialect.decode_value(item.blob(1), where, memory) for item in items}


def _files_slot(root: Table, dialect: Dialect) -> int:
    return 7 if dialect.newer and root.has(7) else 6


def _manifest_files(root: Table, dialect: Dialect) -> dict[ManifestId, ManifestFile]:
    if _files_slot(root, dialect) == 7:
        infos = [
            ManifestFile(
                ManifestId(info.fixed(0, OBJECT_ID_SIZE)),
                info.u64(1),
                info.u32(2),
                info.blob(3) if info.has(3) else None,
            )
            for info in root.tables(7)
        ]
        files = sorted(infos, key=lambda file: file.id)
        root.buffer.hold(len(files) * _FILE_MEMORY)
    else:
        rows = root.structs(6, _MANIFEST_FILE, 8)
        root.buffer.hold(len(rows) * _FILE_MEMORY)
        columns = zip(
            (ManifestId(bytes(identity)) for identity in rows["id"]),
            rows["size_bytes"].tolist(),
            rows["num_chunk_refs"].tolist(),
            strict=True,
        )
        files = [ManifestFile(*row) for row in sorted(columns)]
    found = {file.id: file for file in files}
    if len(found) != len(files):
        root.buffer.fail("a manifest file is listed twice")
    return found


def _node(table: Table, unreleased: bool) -> Node:
    identity = NodeId(table.fixed(0, NODE_ID_SIZE))
    path = table.text(1)
    try:
        check_node_path(path)
    except InvalidInputError as error:
        table.buffer.fail(error.message)
    kind = table.u8(3)
    if unreleased and table.has(5) and kind not in (_ARRAY, _GROUP):
        # There slot 3 is a reference, which is never as short as 1 or 2.
        return _unreleased_node(table, identity, path)
    data = _node_data(table, kind, 4)
    array = _array_data(data) if kind == _ARRAY else None
    extra = table.blob(5) if table.has(5) else None
    return Node(identity, path, table.blob(2), array, extra)


def _node_data(table: Table, kind: int, slot: int) -> Table:
    if kind not in (_ARRAY, _GROUP):
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
    if kind == _GROUP:
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


def _write_metadata(writer: PayloadWriter, at: int, metadata: Metadata, dialect: Dialect) -> None:
    items = sorted(metadata.items(), key=lambda item: item[0].encode())
    for link, (name, value) in zip(writer.references(at, len(items)), items, strict=True):
        writer.align(4)
        writer.link(link)
        item = writer.table(_METADATA_ITEM)
        writer.text(item + 4, name)
        writer.blob(item + 8, dialect.encode_value(name, value))


def _write_manifest_files(writer: PayloadWriter, at: int, snapshot: Snapshot) -> None:
    files = sorted(snapshot.manifest_files.values(), key=lambda file: file.id)
    rows = np.zeros(len(files), _MANIFEST_FILE)
    if files:
        rows["id"] = [np.void(file.id) for file in files]
        rows["size_bytes"] = [file.size_bytes for file in files]
        rows["num_chunk_refs"] = [file.num_chunk_refs for file in files]
    writer.blob(at, rows.tobytes(), count=len(files), align=8)


def _write_manifest_infos(writer: PayloadWriter, at: int, snapshot: Snapshot) -> None:
    files = sorted(snapshot.manifest_files.values(), key=lambda file: file.id)
    for link, file in zip(writer.references(at, len(files)), files, strict=True):
        writer.align(8)
        writer.link(link)
        plain = file.extra is None
        info = writer.table(_MANIFEST_INFO if plain else _MANIFEST_INFO_EXTRA, align=8)
        if file.extra is not None:
            writer.blob(info + 28, file.extra)
        writer.put(info + 16, file.id)
        writer.number(info + 8, "Q", file.size_bytes)
        writer.number(info + 4, "I", file.num_chunk_refs)


def _write_node(writer: PayloadWriter, link: int, node: Node, dialect: Dialect) -> None:
    writer.align(4)
    writer.link(link)
    at = writer.table(_NODE if node.extra is None else _NODE_EXTRA)
    if node.extra is not None:
        writer.blob(at + 28, node.extra)
    writer.put(at + 16, node.id)
    writer.number(at + 24, "B", _GROUP if node.array is None else _ARRAY)
    writer.text(at + 4, node.path)
    writer.blob(at + 8, node.user_data)
    writer.align(4)
    writer.link(at + 12)
    if node.array is None:
        writer.table(_EMPTY)
    else:
        _write_array_data(writer, node, node.array, dialect)


def _write_array_data(
    writer: PayloadWriter, node: Node, array: ArrayData, dialect: Dialect
) -> None:
    names = array.dimension_names
    if dialect.newer:
        at = writer.table(_NEWER_ARRAY_DATA if names is None else _NEWER_NAMED_ARRAY_DATA)
        writer.blob(at + 4, b"", align=8)
        _write_sides(writer, at + 16, node, array)
    else:
        at = writer.table(_ARRAY_DATA if names is None else _NAMED_ARRAY_DATA)
        sides = [struct.pack("<QQ", side.length, side.chunk_length) for side in array.shape]
        writer.blob(at + 4, b"".join(sides), count=len(sides), align=8)
    if names is not None:
        for link, name in zip(writer.references(at + 8, len(names)), names, strict=True):
            writer.align(4)
            writer.link(link)
            table = writer.table(_NAME if name else _EMPTY)
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
        table = writer.table(_SIDE, align=8)
        writer.number(table + 8, "Q", side.length)
        writer.number(table + 16, "I", min(count or 0, MAX_COUNT))


def _write_manifest_ref(writer: PayloadWriter, link: int, ref: ManifestRef, rank: int) -> None:
    if ref.extents is None or len(ref.extents) != rank:
        raise InvalidInputError("a manifest reference has no extents, which this generation needs")
    writer.align(4)
    writer.link(link)
    at = writer.table(_MANIFEST_REF)
    writer.put(at + 8, ref.id)
    box = b"".join(struct.pack("<II", low, high) for low, high in ref.extents)
    writer.blob(at + 4, box, count=len(ref.extents), align=4)
