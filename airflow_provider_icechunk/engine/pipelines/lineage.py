"""What a commit wrote, array by array, for tracking data between systems."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.coordinates import sort_keys
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument, parse_node

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
    from airflow_provider_icechunk.engine.repository import Repository


@dataclass(frozen=True, slots=True)
class ArraySchema:
    """An array of a version."""

    path: str
    data_type: str
    dimensions: tuple[str, ...]
    """Each dimension with its length, such as `time: 365`."""


@dataclass(frozen=True, slots=True)
class CommitLineage:
    """A version, and what its commit changed."""

    snapshot_id: str
    parent_id: str | None
    arrays: tuple[ArraySchema, ...]
    """All arrays of the version."""
    continued: tuple[str, ...]
    """Changed arrays that the parent has too, from which unwritten cells come."""
    created: tuple[str, ...]
    chunks: int
    """Chunks written."""
    bytes: int
    """Their size as stored; chunks of foreign files included."""
    cells: int
    """The cells in them, at most: a chunk may be partly written."""


def lineage_of_commit(repository: Repository, snapshot_id: str) -> CommitLineage:
    """What the commit of a snapshot wrote. Reads its log and the manifests of changed arrays."""
    info = repository.lookup_snapshot(snapshot_id)
    tree = repository.readonly_session(snapshot_id=info.id).tree
    documents = {
        node.path: (node, parsed, json.loads(node.user_data))
        for node in tree.nodes("/")
        if isinstance(parsed := parse_node(node.user_data, rectilinear=True), ArrayDocument)
    }
    created: set[str] = set()
    changed: set[str] = set()
    chunks = size = cells = 0
    if info.parent_id is not None:
        diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
        created = diff.new_arrays & documents.keys()
        changed = (diff.updated_arrays | diff.chunk_columns.keys()) & documents.keys()
        for path, rows in diff.chunk_columns.items():
            if path not in documents or not len(rows):
                continue
            node, document, _ = documents[path]
            there = _written(tree.references(node), rows)
            chunks += len(there)
            size += int(there.length.sum())
            cells += _cells(there.index, document)
    return CommitLineage(
        info.id,
        info.parent_id,
        tuple(_array(path, parsed, raw) for path, (_, parsed, raw) in sorted(documents.items())),
        tuple(sorted(changed - created)),
        tuple(sorted(created)),
        chunks,
        size,
        cells,
    )


def _written(refs: ChunkRefs, rows: NDArray[np.uint32]) -> ChunkRefs:
    """Those references whose coordinates are among the rows; a deleted chunk has none."""
    there, wanted = sort_keys(refs.index, rows)
    return refs.take(np.flatnonzero(np.isin(there, wanted)))


def _cells(index: NDArray[np.uint32], document: ArrayDocument) -> int:
    """Cells of chunks, without those beyond the end of the array."""
    if document.chunk_counts is not None:
        return len(index) * math.prod(document.chunk_shape)
    if not document.shape:
        return len(index)
    shape = np.array(document.shape, dtype=np.int64)
    chunk = np.array(document.chunk_shape, dtype=np.int64)
    left = shape - index.astype(np.int64) * chunk
    return int(np.minimum(chunk, left.clip(min=0)).prod(axis=1).sum())


def _array(path: str, document: ArrayDocument, raw: Mapping[str, object]) -> ArraySchema:
    given = raw.get("data_type")
    name = given.get("name") if isinstance(given, Mapping) else given
    names = document.dimension_names or (None,) * len(document.shape)
    sides = zip(names, document.shape, strict=True)
    return ArraySchema(
        path,
        str(name),
        tuple(f"{side}: {length}" if side else str(length) for side, length in sides),
    )
