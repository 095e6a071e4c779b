"""Transaction log files of generation `1`."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import sort_keys
from airflow_provider_icechunk.engine.format.coordinates import first_rows
from airflow_provider_icechunk.engine.format.ids import (
    NODE_ID_SIZE,
    OBJECT_ID_SIZE,
    NodeId,
    SnapshotId,
)
from airflow_provider_icechunk.engine.format.model import (
    Coordinates,
    Move,
    TransactionLog,
    in_target_order,
)
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, Table, batches
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import (
    PayloadWriter,
    Shape,
    Vectors,
    check_size,
)
from airflow_provider_icechunk.engine.format.wire.nested import increasing, together
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_RANK
from airflow_provider_icechunk.exceptions import InvalidInputError

IDENTIFIER = b"Ichk"
_FEW = 40
"""Up to this many chunks, reading one by one is faster than array operations."""
_ARRAY_MEMORY = 300
"""Memory of the coordinates of an array as Python objects, in addition to their content."""

_ROOT = Shape(44, (32, 4, 8, 12, 16, 20, 24, 28))
_NEWER = Shape(48, (32, 4, 8, 12, 16, 20, 24, 28, 44))
_MOVE = Shape(24, (4, 8, 12, 20))
_ARRAY_CHUNKS = Shape(16, (8, 4))
_INDICES = Shape(8, (4,))


def decode(payload: bytes, *, where: str, memory: Purse | None = None) -> TransactionLog:
    """The log in a payload."""
    buffer = Buffer(payload, where=where, memory=memory)
    root = buffer.root(IDENTIFIER)
    tables = root.tables(7)
    ids = [NodeId(table.fixed(0, NODE_ID_SIZE)) for table in tables]
    if len(set(ids)) != len(ids):
        buffer.fail("an array is listed twice among the updated chunks")
    chunks = zip(ids, _coordinates(buffer, tables), strict=True)
    return TransactionLog(
        id=SnapshotId(root.fixed(0, OBJECT_ID_SIZE)),
        new_groups=_ids(root, 1),
        new_arrays=_ids(root, 2),
        deleted_groups=_ids(root, 3),
        deleted_arrays=_ids(root, 4),
        updated_arrays=_ids(root, 5),
        updated_groups=_ids(root, 6),
        updated_chunks=dict(sorted(chunks, key=itemgetter(0))),
        moves=tuple(_move(table) for table in root.tables(8)) if root.has(8) else (),
    )


def encode(log: TransactionLog, *, newer: bool = False) -> bytearray:
    """The payload of a log; only files of generation `2` (`newer`) can contain moves."""
    if log.moves and not newer:
        raise InvalidInputError("nodes can be moved in repositories of generation `2` only")
    writer = PayloadWriter(IDENTIFIER, (_ROOT, _NEWER, _MOVE, _ARRAY_CHUNKS, _INDICES))
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


def _write_moves(writer: PayloadWriter, at: int, moves: tuple[Move, ...]) -> None:
    ordered = in_target_order(moves)
    for link, move in zip(writer.references(at, len(ordered)), ordered, strict=True):
        writer.align(4)
        writer.link(link)
        table = writer.table(_MOVE)
        writer.put(table + 12, move.node_id)
        writer.number(table + 20, "B", move.is_array)
        writer.text(table + 4, move.source)
        writer.text(table + 8, move.target)


def _coordinates(buffer: Buffer, tables: list[Table]) -> list[Coordinates]:
    """Sorted coordinates of each array; their order on disk does not matter."""
    if len(tables) <= _FEW and sum(table.count(1) for table in tables) <= _FEW:
        return [_few(table) for table in tables]
    buffer.hold(len(tables) * _ARRAY_MEMORY)
    found: list[Coordinates] = [np.zeros((0, 0), np.uint32)] * len(tables)
    vectors = [table.links(1) for table in tables]
    for rows, at in together(buffer, vectors, 0, most=MAX_RANK):
        counts = np.array([vectors[row][1] for row in rows], np.int64)
        index, counts = _in_order(_index(buffer, at), counts)
        for row, part in zip(rows, np.split(index, np.cumsum(counts)[:-1]), strict=True):
            found[row] = part
    return found


def _index(buffer: Buffer, at: NDArray[np.int64]) -> Coordinates:
    """The coordinates in tables, all of which must have the same number."""
    parts = [(batch.rows, batch.coordinates(0, most=MAX_RANK)) for batch in batches(buffer, at)]
    if len(parts) == 1:
        return parts[0][1]
    rank = parts[0][1].shape[1]
    index = np.empty((len(at), rank), np.uint32)
    for rows, part in parts:
        if part.shape[1] != rank:
            buffer.fail("chunk coordinates of one array have different lengths")
        index[rows] = part
    return index


def _in_order(
    index: Coordinates, counts: NDArray[np.int64]
) -> tuple[Coordinates, NDArray[np.int64]]:
    """Sorted distinct rows of each of several arrays, and their counts."""
    (keys,) = sort_keys(index)
    if increasing(keys, counts):
        return index, counts
    array = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
    (keys,) = sort_keys(np.column_stack([array, index]))
    rows = first_rows(keys)
    return index[rows], np.bincount(array[rows], minlength=len(counts))


def _few(table: Table) -> Coordinates:
    """For the few chunks of most commits, array operations would take longer."""
    rows = [item.numbers(0, "I") for item in table.tables(1)]
    if any(len(row) > MAX_RANK for row in rows):
        table.buffer.fail(f"chunk coordinates have more than {MAX_RANK} numbers")
    if len({len(row) for row in rows}) > 1:
        table.buffer.fail("chunk coordinates of one array have different lengths")
    return in_order(np.array(rows, np.uint32).reshape(len(rows), len(rows[0]) if rows else 0))


def in_order(index: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sorted distinct rows."""
    if len(index) < 2:
        return index
    (keys,) = sort_keys(index)
    if bool(np.all(np.less(keys[:-1], keys[1:]))):
        return index
    return index[first_rows(keys)]


def _write_coordinates(writer: PayloadWriter, links: list[int], parts: list[Coordinates]) -> None:
    """Write coordinates of arrays of one rank: their vectors, then all records."""
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
