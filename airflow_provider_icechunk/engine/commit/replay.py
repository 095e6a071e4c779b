"""Stored snapshots as change sets: commits for another branch to take, staged work to resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId, format_id
from airflow_provider_icechunk.engine.format.model import (
    Coordinates,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.engine.history.ancestry import commits_between, logs_since_parent
from airflow_provider_icechunk.engine.history.diff import merge_logs
from airflow_provider_icechunk.engine.tree.changes import ArrayEdits, ChangeSet
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, SessionError

from .records import take_over


def changes_between(core: Core, older: SnapshotId, newer: SnapshotId) -> ChangeSet:
    """What the commits after `older` up to `newer` changed, on top of `older`.

    Commits that moved nodes cannot be expressed as changes and are refused.
    """
    commits = commits_between(core.objects, older, newer)
    if not commits:
        raise InvalidInputError(
            f"{core.format_id(older)} is not an ancestor of {core.format_id(newer)}: the changes "
            "between them are undefined"
        )
    logs_of = [(commit, logs_since_parent(core.objects, commit)) for commit in commits]
    logs = [log for _, found in logs_of for log in found]
    if any(log.moves_nodes for log in logs):
        raise SessionError(
            "commits that moved nodes cannot be repeated on another branch; fast-forward that "
            "branch to them before it moves"
        )
    reader = WorkingTree(core, commits[-1], read_only=True)
    changes = changes_of_staged(
        core.objects.snapshot(older),
        commits[-1],
        reduce(merge_logs, logs),
        reader.references,
        core.generation,
    )
    take_over(changes, logs_of)
    return changes


def changes_of_staged(
    base: Snapshot,
    staged: Snapshot,
    log: TransactionLog,
    references: Callable[[Node], ChunkRefs],
    generation: Generation,
) -> ChangeSet:
    """The change set that turns `base` into `staged`; the inverse of staging. Pure.

    :param references: all chunk references of an array of `staged`.
    """
    by_id = {node.id: node for node in staged.nodes.values()}
    before = {node.id: node for node in base.nodes.values()}
    try:
        created = [by_id[node_id] for node_id in log.new_groups | log.new_arrays]
        updated = {n: by_id[n] for n in log.updated_groups | log.updated_arrays}
        deleted = {n: before[n] for n in log.deleted_groups | log.deleted_arrays}
        arrays = {node_id: by_id[node_id] for node_id in log.updated_chunks}
    except KeyError:
        raise FormatError(
            f"the staged snapshot {format_id(generation, staged.id)} and its log do not match"
        ) from None
    changes = ChangeSet(
        created={node.path: _without_manifests(node) for node in created},
        updated=updated,
        deleted=deleted,
    )
    for node_id, touched in log.updated_chunks.items():
        changes.chunks[node_id] = _edits(references(arrays[node_id]), touched)
    return changes


def _edits(refs: ChunkRefs, touched: Coordinates) -> ArrayEdits:
    """References at the touched places; places without one were erased."""
    edits = ArrayEdits(refs.ndim)
    edits.set_many(ChunkRefs.blank(touched).overlay(refs.without(_others(refs, touched))))
    return edits


def _others(refs: ChunkRefs, touched: Coordinates) -> Coordinates:
    return refs.without(touched).index


def _without_manifests(node: Node) -> Node:
    if node.array is None:
        return node
    return replace(node, array=replace(node.array, manifests=()))
