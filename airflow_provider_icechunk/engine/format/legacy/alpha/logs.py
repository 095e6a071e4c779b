"""Transaction logs of `alpha`: eight items with a leading version, then seven without.

The log names nodes whose attributes changed without saying which are groups and which are arrays.
Such a node is put into both sets of the model unless the log itself shows it to be an array; ids
are unique, so looking up an id in either set gives the right answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import sort_keys
from airflow_provider_icechunk.engine.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Coordinates, TransactionLog
from airflow_provider_icechunk.engine.format.wire.messagepack import (
    Array,
    Reader,
    array_header,
    pack_array,
    pack_map,
)
from airflow_provider_icechunk.exceptions import FormatError

from .manifests import numbers, typed
from .pack import pack_coordinates
from .scalars import check_version, decode_node_id, encode_id

_ID_MEMORY = 200
_COORDINATE_MEMORY = 48
"""Minimum bytes of an id, and of the coordinates of a chunk."""
_FEW = 16
_ARRAY_MEMORY = 300
"""Bytes that the coordinates of an array take as Python objects, in addition to their content."""
_ROWS_AT_ONCE = 1 << 15
"""Coordinates are Python objects only for a moment: they take ten times the memory of columns."""


def decode_log(
    payload: bytes | memoryview, expected: SnapshotId, *, where: str, memory: Purse | None = None
) -> TransactionLog:
    """The log in an unpacked payload; it holds no id of its own, so it gets that of its file."""
    memory = memory or Purse(len(payload), where=where)
    memory.check(len(payload))
    with Reader(payload, where=where, memory=memory) as reader:
        count = reader.array()
        if count not in (7, 8):
            raise FormatError(f"{where}: the transaction log has {count} items, expected 7 or 8")
        for _ in range(count - 7):
            check_version(reader.value(), where=where)
        new_groups, new_arrays, deleted_groups, deleted_arrays, attributes, zarr = (
            _read_ids(reader, where) for _ in range(6)
        )
        chunks = _read_chunks(reader, where)
    updated = (attributes | zarr) - new_groups - new_arrays
    return TransactionLog(
        id=expected,
        new_groups=new_groups,
        new_arrays=new_arrays,
        deleted_groups=deleted_groups,
        deleted_arrays=deleted_arrays,
        updated_groups=updated - zarr - deleted_arrays - chunks.keys(),
        updated_arrays=updated - deleted_groups,
        updated_chunks=chunks,
    )


def encode_log(log: TransactionLog) -> bytes:
    """A payload in the last shape; attribute updates list new nodes too, as its writers did."""
    attributes = log.updated_groups | log.updated_arrays | log.new_groups | log.new_arrays
    groups = (log.new_groups, log.new_arrays, log.deleted_groups, log.deleted_arrays, attributes)
    chunks = [
        (encode_id(node), array_header(len(rows)) + pack_coordinates(rows))
        for node, rows in sorted(log.updated_chunks.items())
    ]
    return pack_array([*map(_pack_ids, groups), _pack_ids(log.updated_arrays), pack_map(chunks)])


def _read_ids(reader: Reader, where: str) -> frozenset[NodeId]:
    return frozenset(
        decode_node_id(reader.value(), where=where) for _ in range(reader.array(_ID_MEMORY))
    )


def _pack_ids(nodes: frozenset[NodeId]) -> bytes:
    return pack_array([encode_id(node) for node in sorted(nodes)])


def _read_chunks(reader: Reader, where: str) -> dict[NodeId, Coordinates]:
    chunks: dict[NodeId, Coordinates] = {}
    for _ in range(reader.map()):
        node = decode_node_id(reader.value(), where=where)
        rows = reader.array(_COORDINATE_MEMORY)
        if rows:
            chunks[node] = _read_coordinates(reader, rows, where)
    return {node: chunks[node] for node in sorted(chunks)}


def _read_coordinates(reader: Reader, count: int, where: str) -> Coordinates:
    """Sorted coordinates. Where a writer bug mixed ranks, those of the commonest rank."""
    if count <= _FEW:
        return _read_few(reader, count, where)
    ranks: dict[int, list[Coordinates]] = {}
    for start in range(0, count, _ROWS_AT_ONCE):
        items = [reader.value() for _ in range(min(_ROWS_AT_ONCE, count - start))]
        rows: Sequence[Array] = typed(items, tuple, "a list of coordinates", where)
        for rank in sorted(set(map(len, rows))):
            flat = [number for row in rows if len(row) == rank for number in row]
            reader.memory.charge(4 * len(flat))
            index = numbers(flat, np.uint32, "a coordinate", where)
            ranks.setdefault(rank, []).append(index.reshape(-1, rank) if rank else _points(rows))
    index = np.concatenate(max(ranks.values(), key=lambda parts: sum(map(len, parts))))
    (keys,) = sort_keys(index)
    _, first = np.unique(keys, return_index=True)
    return index[first]


def _read_few(reader: Reader, count: int, where: str) -> Coordinates:
    """The same without array operations, whose setup would dominate for few chunks."""
    items = [reader.value() for _ in range(count)]
    rows: Sequence[Array] = typed(items, tuple, "a list of coordinates", where)
    flat = [number for row in rows for number in row]
    reader.memory.charge(_ARRAY_MEMORY + 4 * len(flat))
    numbers(flat, np.uint32, "a coordinate", where)
    sizes = [len(row) for row in rows]
    rank = max(sorted(set(sizes)), key=sizes.count)
    kept: list[Any] = sorted({row for row in rows if len(row) == rank})
    return np.array(kept, np.uint32).reshape(len(kept), rank)


def _points(rows: Sequence[Array]) -> Coordinates:
    """The empty coordinates among `rows`, which arrays without dimensions have."""
    return np.zeros((sum(not row for row in rows), 0), np.uint32)
