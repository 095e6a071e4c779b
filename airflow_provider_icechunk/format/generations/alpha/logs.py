"""Transaction logs of `alpha`: eight items with a leading version, then seven without.

The log names nodes whose attributes changed without saying which are groups and which are arrays.
Such a node is put into both sets of the model unless the log itself shows it to be an array; ids
are unique, so asking either set by id gives the right answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from airflow_provider_icechunk.format.generations.alpha.columns import numbers, typed
from airflow_provider_icechunk.format.generations.alpha.rows import pack_coordinates
from airflow_provider_icechunk.format.generations.alpha.scalars import (
    check_version,
    decode_node_id,
    encode_id,
)
from airflow_provider_icechunk.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.format.references import sort_keys
from airflow_provider_icechunk.format.transactions import Coordinates, TransactionLog
from airflow_provider_icechunk.format.wire.messagepack import (
    Array,
    Value,
    array_header,
    as_array,
    as_pairs,
    pack_array,
    pack_map,
    unpack,
)


def decode_log(payload: bytes | memoryview, expected: SnapshotId, *, where: str) -> TransactionLog:
    """The log in an unpacked payload; it holds no id of its own, so it gets that of its file."""
    value = unpack(payload, where=where)
    record = as_array(value, "the transaction log", where=where, sizes=(7, 8))
    items = record[-7:]
    if len(record) > len(items):
        check_version(record[0], where=where)
    new_groups, new_arrays, deleted_groups, deleted_arrays, attributes, zarr = (
        _read_ids(item, where) for item in items[:6]
    )
    chunks = _read_chunks(items[6], where)
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


def _read_ids(value: Value, where: str) -> frozenset[NodeId]:
    items = as_array(value, "a list of nodes", where=where)
    return frozenset(decode_node_id(item, where=where) for item in items)


def _pack_ids(nodes: frozenset[NodeId]) -> bytes:
    return pack_array([encode_id(node) for node in sorted(nodes)])


def _read_chunks(value: Value, where: str) -> dict[NodeId, Coordinates]:
    chunks = {
        decode_node_id(node, where=where): _read_coordinates(rows, where)
        for node, rows in as_pairs(value, "the updated chunks", where=where)
        if rows != ()
    }
    return {node: chunks[node] for node in sorted(chunks)}


def _read_coordinates(value: Value, where: str) -> Coordinates:
    """Sorted coordinates. Where a writer bug mixed ranks, those of the commonest rank."""
    items = as_array(value, "the updated chunks of an array", where=where)
    rows: Sequence[Array] = typed(items, tuple, "a list of coordinates", where)
    ((rank, count),) = Counter(map(len, rows)).most_common(1)
    flat = [number for row in rows if len(row) == rank for number in row]
    index = numbers(flat, np.uint32, "a coordinate", where).reshape(count, rank)
    (keys,) = sort_keys(index)
    _, first = np.unique(keys, return_index=True)
    return index[first]
