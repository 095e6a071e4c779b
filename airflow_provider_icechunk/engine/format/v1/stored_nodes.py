"""All nodes of a snapshot file: ids, paths and kinds as columns, without decoding the nodes.

A tree of 10,000 arrays takes half a second to decode, and a session or a page uses few of them.
Nodes are tables with few layouts, so their columns are read for all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.ids import NODE_ID_SIZE, OBJECT_ID_SIZE
from airflow_provider_icechunk.engine.format.model import Node, in_order
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.node_table import NodeTable, StoredNodes
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, Table, batches
from airflow_provider_icechunk.engine.format.wire.nested import positions
from airflow_provider_icechunk.exceptions import InvalidInputError

from . import snapshot_layout as layout
from .nodes import read_node
from .snapshot_layout import Dialect

_FEW_NODES = 256
_NODE_MEMORY = 400
"""Memory of a node as Python objects, in addition to its content."""
_USUAL_PATH = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The file that nodes were found in."""

    buffer: Buffer
    dialect: Dialect
    root: int
    links: int
    """Position of the links to the nodes."""
    at: NDArray[np.int64]
    """Positions of the nodes."""


def read_nodes(root: Table, dialect: Dialect) -> Mapping[str, Node]:
    """The nodes of a file; a few are decoded immediately, many only when used."""
    buffer = root.buffer
    if root.has(7) and not dialect.newer:
        early = [read_node(table, unreleased=True) for table in root.tables(2)]
        by_path = in_order(early)
        if len(by_path) != len(early) or len({node.id for node in early}) != len(early):
            buffer.fail("two nodes have the same path or the same id")
        return by_path
    start, count = root.links(2)
    buffer.hold(count * _NODE_MEMORY)
    at = positions(buffer, [(start, count)])
    ids = np.zeros((count, NODE_ID_SIZE), np.uint8)
    spans = np.zeros((count, 2), np.int64)
    kinds = np.zeros(count, np.uint8)
    for batch in batches(buffer, at):
        ids[batch.rows] = batch.fixed(0, NODE_ID_SIZE)
        spans[batch.rows] = batch.spans(1, text=True)
        kinds[batch.rows] = batch.numbers(3, 1)
    unknown = kinds[(kinds != layout.ARRAY) & (kinds != layout.GROUP)].tolist()
    if unknown:
        buffer.fail(f"a node is of unknown type {unknown[0]}")
    buffer.spend(int((spans[:, 1] - spans[:, 0]).sum()))
    stored = StoredNodes(
        _paths(buffer, spans),
        ids,
        kinds == layout.ARRAY,
        lambda row: read_node(buffer.table(int(at[row]), root.depth + 1), unreleased=False),
        lambda: _manifests_named(buffer, at),
        Source(buffer, dialect, root.at, start, at),
        buffer.memory,
    )
    try:
        nodes = NodeTable(stored)
    except ValueError as error:
        return buffer.fail(str(error))
    if count <= _FEW_NODES:
        # Damage is reported at once if detecting it costs almost nothing.
        nodes.decode_all()
    return nodes


def _paths(buffer: Buffer, spans: NDArray[np.int64]) -> list[str]:
    data = buffer.data
    try:
        paths = [data[start:stop].decode() for start, stop in spans.tolist()]
    except UnicodeDecodeError:
        return buffer.fail("a string is not UTF-8")
    _check_paths(buffer, paths)
    return paths


def _manifests_named(
    buffer: Buffer, at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[bytes]]:
    """Rows of arrays, and the manifests that they name."""
    rows, data = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    every = np.arange(len(at), dtype=np.int64)
    for batch in batches(buffer, at):
        arrays = batch.numbers(3, 1) == layout.ARRAY
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


def _check_paths(buffer: Buffer, paths: Iterable[str]) -> None:
    """Refuse a file with a path that no node can have: a damaged path must not count as missing."""
    try:
        for path in paths:
            if not _USUAL_PATH.fullmatch(path):
                check_node_path(path)
    except InvalidInputError as error:
        buffer.fail(error.message)
