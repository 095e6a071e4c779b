"""Transaction log files of generation `1`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.ids import NODE_ID_SIZE, OBJECT_ID_SIZE, NodeId, SnapshotId
from airflow_provider_icechunk.format.names import check_node_path
from airflow_provider_icechunk.format.references import sort_keys
from airflow_provider_icechunk.format.transactions import (
    Coordinates,
    Move,
    TransactionLog,
    in_target_order,
)
from airflow_provider_icechunk.format.wire.columns import batches
from airflow_provider_icechunk.format.wire.distinct import first_rows
from airflow_provider_icechunk.format.wire.flatbuffers import Buffer, Table
from airflow_provider_icechunk.format.wire.layout import Shape, Writer, check_size
from airflow_provider_icechunk.format.wire.vectors import Vectors
from airflow_provider_icechunk.format.zarr_metadata import MAX_RANK

IDENTIFIER = b"Ichk"
_FEW = 8

_ROOT = Shape(44, (32, 4, 8, 12, 16, 20, 24, 28))
_NEWER = Shape(48, (32, 4, 8, 12, 16, 20, 24, 28, 44))
_MOVE = Shape(24, (4, 8, 12, 20))
_ARRAY_CHUNKS = Shape(16, (8, 4))
_INDICES = Shape(8, (4,))


def decode(payload: bytes, *, where: str, memory: Purse | None = None) -> TransactionLog:
    """The log in a payload."""
    buffer = Buffer(payload, where=where, memory=memory)
    root = buffer.root(IDENTIFIER)
    chunks: dict[NodeId, Coordinates] = {}
    for table in root.tables(7):
        identity = NodeId(table.fixed(0, NODE_ID_SIZE))
        if identity in chunks:
            buffer.fail("an array is listed twice among the updated chunks")
        chunks[identity] = _coordinates(table)
    return TransactionLog(
        id=SnapshotId(root.fixed(0, OBJECT_ID_SIZE)),
        new_groups=_ids(root, 1),
        new_arrays=_ids(root, 2),
        deleted_groups=_ids(root, 3),
        deleted_arrays=_ids(root, 4),
        updated_arrays=_ids(root, 5),
        updated_groups=_ids(root, 6),
        updated_chunks=dict(sorted(chunks.items())),
        moves=tuple(_move(table) for table in root.tables(8)) if root.has(8) else (),
    )


def encode(log: TransactionLog, *, newer: bool = False) -> bytearray:
    """The payload of a log; only the files of generation `2`, the newer one, can say moves."""
    if log.moves and not newer:
        raise InvalidInputError("nodes can be moved in repositories of generation `2` only")
    writer = Writer(IDENTIFIER, (_ROOT, _NEWER, _MOVE, _ARRAY_CHUNKS, _INDICES))
    root = writer.root(_NEWER if newer else _ROOT)
    if newer:
        _write_moves(writer, root + 44, log.moves)
    writer.put(root + 32, log.id)
    sets = (
        log.new_groups,
        log.new_arrays,
        log.deleted_groups,
        log.deleted_arrays,
        log.updated_arrays,
        log.updated_groups,
    )
    for slot, ids in enumerate(sets):
        writer.blob(root + 4 + 4 * slot, b"".join(sorted(ids)), count=len(ids))
    arrays = sorted(log.updated_chunks.items())
    ranks: dict[int, list[tuple[int, Coordinates]]] = {}
    for link, (identity, coordinates) in zip(
        writer.references(root + 28, len(arrays)), arrays, strict=True
    ):
        writer.align(4)
        writer.link(link)
        at = writer.table(_ARRAY_CHUNKS)
        writer.put(at + 8, identity)
        if coordinates.ndim != 2:
            raise InvalidInputError("chunk coordinates must have two axes: chunks and dimensions")
        ranks.setdefault(coordinates.shape[1], []).append((at + 4, in_order(coordinates)))
    for _, same in sorted(ranks.items()):
        _write_coordinates(writer, [link for link, _ in same], [index for _, index in same])
    return writer.finish()


def _ids(root: Table, slot: int) -> frozenset[NodeId]:
    return frozenset(map(NodeId, root.fixed_items(slot, NODE_ID_SIZE)))


def _move(table: Table) -> Move:
    source, target = table.text(0), table.text(1)
    try:
        check_node_path(source)
        check_node_path(target)
    except InvalidInputError as error:
        table.buffer.fail(error.message)
    kind = table.u8(3)
    if kind > 1:
        table.buffer.fail(f"a moved node is of unknown type {kind}")
    return Move(NodeId(table.fixed(2, NODE_ID_SIZE)), kind == 1, source, target)


def _write_moves(writer: Writer, at: int, moves: tuple[Move, ...]) -> None:
    ordered = in_target_order(moves)
    for link, move in zip(writer.references(at, len(ordered)), ordered, strict=True):
        writer.align(4)
        writer.link(link)
        table = writer.table(_MOVE)
        writer.put(table + 12, move.node_id)
        writer.number(table + 20, "B", move.is_array)
        writer.text(table + 4, move.source)
        writer.text(table + 8, move.target)


def _coordinates(table: Table) -> Coordinates:
    """Coordinates of one array, put in order: nothing searches them on disk."""
    parts = _few(table) if table.count(1) <= _FEW else _many(table)
    if not parts:
        return np.zeros((0, 0), np.uint32)
    if len({part.shape[1] for part in parts}) != 1:
        table.buffer.fail("chunk coordinates of one array have different lengths")
    index = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return in_order(index)


def _many(table: Table) -> list[Coordinates]:
    found = batches(table.buffer, table.offsets(1))
    return [batch.coordinates(0, most=MAX_RANK) for batch in found]


def _few(table: Table) -> list[Coordinates]:
    """Most commits write few chunks: then setting up array operations takes the longest."""
    rows = [item.numbers(0, "I") for item in table.tables(1)]
    if any(len(row) > MAX_RANK for row in rows):
        table.buffer.fail(f"chunk coordinates have more than {MAX_RANK} numbers")
    if len({len(row) for row in rows}) > 1:
        table.buffer.fail("chunk coordinates of one array have different lengths")
    return [np.array(rows, np.uint32).reshape(len(rows), -1)] if rows else []


def in_order(index: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Rows sorted, each once."""
    if len(index) < 2:
        return index
    (keys,) = sort_keys(index)
    if bool(np.all(np.less(keys[:-1], keys[1:]))):
        return index
    return index[first_rows(keys)]


def _write_coordinates(writer: Writer, links: list[int], parts: list[Coordinates]) -> None:
    """Coordinates of arrays of one rank: their vectors, then the records of all together."""
    index = parts[0] if len(parts) == 1 else np.concatenate(parts)
    vectors = Vectors.link(writer, links, [len(part) for part in parts])
    rows, rank = index.shape
    stride = 12 + 4 * rank
    check_size(vectors.end + stride * rows)
    at = vectors.end + stride * np.arange(rows, dtype=np.int64)
    words = np.empty(vectors.words, "<u4")
    vectors.render(words, at)
    writer.data += words.data
    records = np.empty((rows, 3 + rank), "<u4")
    records[:, 0] = at - writer.vtable(_INDICES)
    records[:, 1] = 4
    records[:, 2] = rank
    records[:, 3:] = index
    writer.data += records.data
