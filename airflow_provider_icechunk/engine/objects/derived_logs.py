"""The changes of a commit, derived by comparing its snapshot with the parent. Pure.

Two early generations have no transaction logs. Nodes are compared by id, path and document; a node
with a new path was deleted and created. Chunks are compared by their references in manifests that
only one side has, as columns. A chunk rewritten with the same reference, or cut off when its array
shrank, is not a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind, concatenate
from airflow_provider_icechunk.engine.format.coordinates import sort_keys
from airflow_provider_icechunk.engine.format.model import (
    Coordinates,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
    log_of_nodes,
)
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import copy_spans
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document

References = Callable[[Node, Iterable[ManifestRef]], list[ChunkRefs]]
"""Returns the references of an array in some of its manifests."""


def derive_log(before: Snapshot, after: Snapshot, references: References) -> TransactionLog:
    """The log of the commit from `before` to its child `after`."""
    old = {node.id: node for node in before.nodes.values()}
    new = {node.id: node for node in after.nodes.values()}
    kept = [(old[node_id], new[node_id]) for node_id in old.keys() & new.keys()]
    renamed = [(was, now) for was, now in kept if was.path != now.path]
    fresh = [new[node_id] for node_id in new.keys() - old.keys()]
    created = fresh + [now for _, now in renamed]
    deleted = [old[node_id] for node_id in old.keys() - new.keys()] + [was for was, _ in renamed]
    updated = [now for was, now in kept if was.user_data != now.user_data and was.path == now.path]
    chunks = {node.id: _all_rows(node, references) for node in fresh if node.array}
    chunks |= {now.id: _changed(was, now, references) for was, now in kept if was.array}
    changed = {node_id: chunks[node_id] for node_id in sorted(chunks) if len(chunks[node_id])}
    return log_of_nodes(after.id, created, deleted, updated, changed)


def changed_rows(before: ChunkRefs, after: ChunkRefs) -> Coordinates:
    """Coordinates at which two tables differ, in order."""
    old, new = sort_keys(before.index, after.index)
    _, left, right = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    same = _same(before.take(left), after.take(right))
    gone = np.ones(len(before), np.bool_)
    gone[left] = False
    fresh = np.ones(len(after), np.bool_)
    fresh[right[same]] = False
    rows = np.concatenate([before.index[gone], after.index[fresh]])
    (keys,) = sort_keys(rows)
    return rows[np.argsort(keys, kind="stable")]


def _same(one: ChunkRefs, other: ChunkRefs) -> NDArray[np.bool_]:
    """Which rows of two tables of equal length refer to the same bytes."""
    same = (one.kind == other.kind) & (one.offset == other.offset) & (one.length == other.length)
    same &= one.modified == other.modified
    native = same & (one.kind == RefKind.NATIVE)
    if native.any():
        same[native] = (one.chunk_id[native] == other.chunk_id[native]).all(axis=1)
    for name in ("span", "etag"):
        rest = np.flatnonzero(same & ~native)
        mine, theirs = getattr(one, name)[rest], getattr(other, name)[rest]
        same[rest] = _equal_bytes(one.heap, mine, other.heap, theirs)
    return np.asarray(same)


def _equal_bytes(
    heap: bytes | bytearray | memoryview,
    spans: NDArray[np.uint64],
    other_heap: bytes | bytearray | memoryview,
    other_spans: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    sizes = (spans[:, 1] - spans[:, 0]).astype(np.int64)
    equal = np.equal(sizes, (other_spans[:, 1] - other_spans[:, 0]).astype(np.int64))
    rows = np.flatnonzero(equal & (sizes > 0))
    sizes = sizes[rows]
    if not len(rows):
        return equal
    ends = np.cumsum(sizes)
    mine, theirs = (np.empty(int(ends[-1]), np.uint8) for _ in range(2))
    copy_spans(heap, spans[rows, 0].astype(np.int64), mine, ends - sizes, sizes)
    copy_spans(other_heap, other_spans[rows, 0].astype(np.int64), theirs, ends - sizes, sizes)
    equal[rows] = np.logical_and.reduceat(mine == theirs, ends - sizes)
    return equal


def _changed(was: Node, now: Node, references: References) -> Coordinates:
    if was.array is None or now.array is None or len(was.array.shape) != len(now.array.shape):
        return _all_rows(now, references) if now.array else np.zeros((0, 0), np.uint32)
    ndim = len(now.array.shape)
    common = {ref.id for ref in was.array.manifests} & {ref.id for ref in now.array.manifests}
    grid = tuple((0, count) for count in array_document(now).num_chunks)
    before, after = (
        _joined(references(node, (ref for ref in refs if ref.id not in common)), ndim)
        for node, refs in ((was, was.array.manifests), (now, now.array.manifests))
    )
    return changed_rows(before.take(before.inside(grid)), after.take(after.inside(grid)))


def _all_rows(node: Node, references: References) -> Coordinates:
    assert node.array is not None
    rows = _joined(references(node, node.array.manifests), len(node.array.shape))
    return rows.take(rows.inside(tuple((0, n) for n in array_document(node).num_chunks))).index


def _joined(parts: list[ChunkRefs], ndim: int) -> ChunkRefs:
    filled = [part for part in parts if len(part)]
    return ChunkRefs.of(concatenate(filled)) if filled else ChunkRefs.empty(ndim)
