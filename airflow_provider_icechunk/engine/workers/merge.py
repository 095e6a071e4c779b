"""Merge the results of workers into the session that handed the work out.

Pure. Forks and fragments are based on a *staged* snapshot: the base of the coordinating session
with its changes so far. Later changes by the coordinator, and earlier merges, count as ours. If two
forks wrote a chunk, the later merge wins, as in the official library; with two fragments it is an
error unless the caller says otherwise. Everything else that both sides changed differently is
refused, because one of them would be silently lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, concatenate, sort_keys
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    NodeId,
    SnapshotId,
    format_id,
    format_node_id,
)
from airflow_provider_icechunk.engine.format.model import Node, Snapshot
from airflow_provider_icechunk.engine.format.names import ROOT, is_below
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.tree.boxes import Boxes, joined
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.engine.tree.tree import nearest_ancestor, node_at, nodes_below
from airflow_provider_icechunk.exceptions import FragmentError, Kind

from .codec import Fragment


@dataclass(frozen=True, slots=True)
class Handed:
    """The input of a fork."""

    base: SnapshotId
    """The base snapshot of the coordinator."""
    staged: Snapshot
    changes: ChangeSet
    """The coordinator's changes at that moment, which `staged` contains. Never edited."""


def merge_changes(
    ours: ChangeSet, theirs: ChangeSet, *, base: Snapshot, handed: Handed
) -> ChangeSet:
    """Our changes with those of a fork; `FragmentError` if they contradict each other.

    :param ours: changes on `base`; they are not edited.
    :param theirs: changes of the fork on `handed.staged`.
    """
    merge = _ChangeMerge(ours.copy(), base, handed, _touched(ours, handed.changes))
    merge.delete(theirs)
    merge.update(theirs)
    same = merge.create(theirs)
    merge.write(theirs, same)
    return merge.merged


def unfilled(changes: ChangeSet, base: Snapshot) -> list[str]:
    """Arrays with cells that the changes create or enlarge without a single chunk, by path."""
    filled = {node_id for node_id, _ in changes.edited()}
    before = {node.id: _cells(node) for node in base.nodes.values() if node.id in changes.updated}
    return sorted(
        node.path
        for node in (*changes.created.values(), *changes.updated.values())
        if node.id not in filled and _cells(node) > before.get(node.id, 0)
    )


def _cells(node: Node) -> int:
    return 0 if node.array is None else prod(side.length for side in node.array.shape)


def _touched(ours: ChangeSet, before: ChangeSet) -> frozenset[NodeId]:
    """Arrays whose chunks we have edited since."""
    known = {node_id: edits.revision for node_id, edits in before.chunks.items()}
    return frozenset(n for n, edits in ours.chunks.items() if known.get(n) != edits.revision)


@dataclass(slots=True)
class _ChangeMerge:
    merged: ChangeSet
    base: Snapshot
    handed: Handed
    touched: frozenset[NodeId]

    def delete(self, theirs: ChangeSet) -> None:
        now, before = self._now(), self._before()
        created = [node.path for node in now.values() if node.id not in before]
        for node_id, node in theirs.deleted.items():
            current = now.get(node_id)
            if current is None:
                continue
            if node_id in self.touched or current.user_data != before[node_id].user_data:
                raise _refused(node, "one side deleted it while the other changed it")
            if any(is_below(path, node.path) for path in created):
                raise _refused(node, "one side deleted it while the other created nodes below it")
            self.merged.delete(current)

    def update(self, theirs: ChangeSet) -> None:
        now, before = self._now(), self._before()
        for node_id, node in theirs.updated.items():
            current = now.get(node_id)
            if current is None:
                raise _refused(node, "one side changed it while the other deleted it")
            if current.user_data not in {before[node_id].user_data, node.user_data}:
                raise _refused(node, "both sides changed its `zarr.json`, to different documents")
            self.merged.update(_on_manifests_of(current, node))

    def create(self, theirs: ChangeSet) -> dict[NodeId, NodeId]:
        """Add their nodes; returns those that are the same as one of ours, by id."""
        same: dict[NodeId, NodeId] = {}
        before = self._before()
        for path, node in sorted(theirs.created.items()):
            existing = node_at(self.base, self.merged, path)
            if existing is None:
                self._check_place(node)
                self.merged.create(node)
            elif existing.id not in before and existing.user_data == node.user_data:
                same[node.id] = existing.id
            else:
                raise _refused(node, "both sides created it, with different documents")
        return same

    def write(self, theirs: ChangeSet, same: Mapping[NodeId, NodeId]) -> None:
        now = self._now()
        for node_id, refs in theirs.edited():
            node = now.get(same.get(node_id, node_id))
            if node is None:
                gone = self._before()[node_id]
                raise _refused(gone, "one side wrote chunks of it while the other deleted it")
            if node.array is None or len(node.array.shape) != refs.ndim:
                raise _refused(node, "one side wrote chunks, the other changed its dimensions")
            self.merged.edits(node).set_many(refs, theirs.chunks[node_id].boxes)
        self.merged.add_labels(theirs.labels)
        self.merged.add_appends(theirs.appends)

    def _check_place(self, node: Node) -> None:
        above = nearest_ancestor(self.base, self.merged, node.path)
        if above is not None and not above.is_group:
            raise _refused(node, f"it would lie below the array {above.path}")
        for path in self.handed.staged.nodes:
            if is_below(node.path, path) and node_at(self.base, self.merged, path) is None:
                raise _refused(node, f"one side created it while the other deleted {path} above")

    def _now(self) -> dict[NodeId, Node]:
        return {node.id: node for node in nodes_below(self.base, self.merged, ROOT)}

    def _before(self) -> dict[NodeId, Node]:
        return {node.id: node for node in self.handed.staged.nodes.values()}


def _on_manifests_of(current: Node, updated: Node) -> Node:
    """A fork's node names manifests of the staged snapshot; ours are those of the base."""
    if updated.array is None:
        return updated
    manifests = current.array.manifests if current.array else ()
    return replace(updated, array=replace(updated.array, manifests=manifests))


def _refused(node: Node, why: str) -> FragmentError:
    return FragmentError(
        f"the changes of a fork cannot be merged at {node.path}: {why}; nothing was merged"
    )


OnOverlap = Literal["error", "first", "last"]
"""Who wins if two fragments contain the same chunk: neither, the earlier or the later one."""


def merge_fragments(
    fragments: Sequence[Fragment],
    *,
    staged: Snapshot,
    job: str | None,
    on_overlap: OnOverlap = "error",
    generation: Generation,
) -> dict[NodeId, ChunkRefs]:
    """One set of references from many workers, or an error and nothing. Pure, in columns."""
    nodes = {node.id: node for node in staged.nodes.values() if not node.is_group}
    parts: dict[NodeId, list[tuple[int, ChunkRefs]]] = {}
    for number, fragment in enumerate(fragments):
        _check_origin(fragment, staged, job, generation)
        for node_id, refs in fragment.arrays.items():
            _check_array(fragment, node_id, refs, nodes.get(node_id))
            if len(refs):
                parts.setdefault(node_id, []).append((number, refs))
    return {
        node_id: _join(nodes[node_id].path, pieces, fragments, on_overlap)
        for node_id, pieces in parts.items()
    }


def boxes_of(fragments: Sequence[Fragment], node_id: NodeId) -> Boxes | None:
    """Where workers wrote into an array; `None` if one of them does not say."""
    boxes: Boxes = ()
    for fragment in fragments:
        if len(fragment.arrays.get(node_id, ())):
            said = fragment.boxes.get(node_id)
            if said is None:
                return None
            boxes = joined(boxes, said)
    return boxes


def _check_origin(
    fragment: Fragment, staged: Snapshot, job: str | None, generation: Generation
) -> None:
    if fragment.base != staged.id:
        raise FragmentError(
            f"the fragment of worker {fragment.worker!r} is based on snapshot "
            f"{format_id(generation, fragment.base)}, this session hands out "
            f"{format_id(generation, staged.id)}"
        )
    if job is not None and fragment.job != job:
        raise FragmentError(
            f"the fragment of worker {fragment.worker!r} belongs to job {fragment.job!r}, not to "
            f"{job!r}"
        )


def _check_array(fragment: Fragment, node_id: NodeId, refs: ChunkRefs, node: Node | None) -> None:
    who = f"the fragment of worker {fragment.worker!r}"
    if node is None:
        raise FragmentError(f"{who} has chunks of an unknown array {format_node_id(node_id)}")
    counts = array_document(node).num_chunks
    if refs.ndim != len(counts):
        raise FragmentError(
            f"{who} has chunks with {refs.ndim} coordinates for {node.path}, which has "
            f"{len(counts)} dimensions"
        )
    if not refs.inside(tuple((0, count) for count in counts)).all():
        raise FragmentError(f"{who} has chunks outside of the grid of {node.path}")


def _join(
    path: str,
    pieces: list[tuple[int, ChunkRefs]],
    fragments: Sequence[Fragment],
    on_overlap: OnOverlap,
) -> ChunkRefs:
    if on_overlap == "first":
        pieces.reverse()
    rows = concatenate([refs for _, refs in pieces])
    if on_overlap == "error":
        owners = np.repeat([number for number, _ in pieces], [len(refs) for _, refs in pieces])
        (keys,) = sort_keys(rows.index)
        order = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(np.equal(keys[order][1:], keys[order][:-1]))
        if len(twice):
            first, second = order[twice[0]], order[twice[0] + 1]
            raise FragmentError(
                f"chunk {rows.index[first].tolist()} of {path} was written by worker "
                f"{fragments[int(owners[first])].worker!r} and by worker "
                f"{fragments[int(owners[second])].worker!r} ({len(twice)} chunks overlap): give "
                "each worker whole chunks of its own; nothing was merged",
                kind=Kind.FRAGMENT_OVERLAP,
            )
        return rows.take(order)
    return ChunkRefs.of(rows)
