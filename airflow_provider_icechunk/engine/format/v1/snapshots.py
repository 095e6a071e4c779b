"""Snapshot files of generation `1` and the values of their metadata.

Nodes are written in the order of their paths' raw bytes, because official readers search by it;
releases before 1.1.3 wrote another order, so reading builds a dictionary. Two unreleased versions
of February 2025 are read as well: they have slot 7 in the root, and the older one stores Zarr
metadata as eight items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.ids import OBJECT_ID_SIZE, ManifestId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    Deferred,
    ManifestFile,
    Metadata,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, Table
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import PayloadWriter
from airflow_provider_icechunk.engine.format.wire.messagepack import measure
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind, NoJsonError

from . import snapshot_layout as layout
from .node_copies import copy_nodes
from .nodes import write_node
from .snapshot_layout import Dialect
from .stored_nodes import read_nodes

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
    data: bytes | None = None
    try:
        if _is_json(value, MAX_DEPTH):
            data = msgpack.packb(value)
    except (ValueError, TypeError, OverflowError):
        pass
    refused = f"the metadata value {name[:80]!r} cannot be stored"
    if data is None:
        raise NoJsonError(
            f"{refused}: it is not a JSON value (null, boolean, 64-bit number, text, list, object)"
        )
    if len(data) > MAX_VALUE:
        raise InvalidInputError(
            f"{refused}: it has {len(data)} bytes, more than {MAX_VALUE}",
            kind=Kind.INVALID_METADATA,
        )
    return data


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


_FILE_MEMORY = 400
"""Memory of a manifest file as Python objects, in addition to its content."""

_MANIFEST_FILE = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": [f"V{OBJECT_ID_SIZE}", "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)

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
    root = buffer.root(layout.IDENTIFIER)
    parent = None if dialect.newer else root.fixed_or_none(1, OBJECT_ID_SIZE)
    nodes: Mapping[str, Node]
    files: Mapping[ManifestId, ManifestFile]
    if glance:
        nodes = Deferred(root.count(2), lambda: read_nodes(root, dialect), memory)
        files = Deferred(
            root.count(_files_slot(root, dialect)), lambda: _manifest_files(root, dialect), memory
        )
    else:
        nodes, files = read_nodes(root, dialect), _manifest_files(root, dialect)
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
    """The payload of a snapshot: unchanged nodes are copied where possible."""
    writer = copy_nodes(snapshot, dialect) or _write_nodes(snapshot, dialect)
    return _finish(writer, snapshot, dialect)


def _write_nodes(snapshot: Snapshot, dialect: Dialect) -> PayloadWriter:
    writer = PayloadWriter(layout.IDENTIFIER, layout.SHAPES)
    marks = len(writer.data)
    writer.data += bytes(layout.MARKS.size)
    shape = layout.root_shape(snapshot, dialect)
    root = writer.root(shape, align=8)
    if snapshot.extra is not None:
        writer.blob(root + shape.slots[8], snapshot.extra)
    nodes = in_order(snapshot.nodes.values())
    for link, node in zip(writer.references(root + 4, len(nodes)), nodes.values(), strict=True):
        write_node(writer, link, node, dialect)
    end = len(writer.data)
    layout.MARKS.pack_into(writer.data, marks, end, end)
    return writer


def _finish(writer: PayloadWriter, snapshot: Snapshot, dialect: Dialect) -> bytearray:
    """The payload with all that follows the nodes."""
    root = int.from_bytes(writer.data[:4], "little")
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


def _write_metadata(writer: PayloadWriter, at: int, metadata: Metadata, dialect: Dialect) -> None:
    items = sorted(metadata.items(), key=lambda item: item[0].encode())
    for link, (name, value) in zip(writer.references(at, len(items)), items, strict=True):
        writer.align(4)
        writer.link(link)
        item = writer.table(layout.METADATA_ITEM)
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
        info = writer.table(layout.MANIFEST_INFO if plain else layout.MANIFEST_INFO_EXTRA, align=8)
        if file.extra is not None:
            writer.blob(info + 28, file.extra)
        writer.put(info + 16, file.id)
        writer.number(info + 8, "Q", file.size_bytes)
        writer.number(info + 4, "I", file.num_chunk_refs)
