"""What changed between two snapshots: transaction logs, combined and merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_provider_icechunk.engine.display import Shown, as_tree
from airflow_provider_icechunk.engine.format.chunk_refs import sort_keys
from airflow_provider_icechunk.engine.format.coordinates import first_rows
from airflow_provider_icechunk.engine.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    Coordinates,
    Move,
    Snapshot,
    TransactionLog,
    in_target_order,
)
from airflow_provider_icechunk.engine.format.node_table import paths_by_id
from airflow_provider_icechunk.engine.format.v1.logs import in_order
from airflow_provider_icechunk.engine.objects.objects import Objects
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.engine.tree.moves import net_moves
from airflow_provider_icechunk.exceptions import InvalidInputError

from .ancestry import commits_between, logs_since_parent


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Shown):
    """Paths and chunks that changed."""

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)
    """Old and new path of each moved node, in the order of the moves.

    Where logs record no moves: of each node that ended up elsewhere, sorted by new path segments.
    """
    chunk_columns: Mapping[str, Coordinates] = field(default_factory=dict, compare=False)
    """Changed chunks of each array as `(n, d)` columns; `updated_chunks` makes lists of them."""

    @property
    def updated_chunks(self) -> dict[str, list[list[int]]]:
        """Changed chunks of each array, in order."""
        return {path: rows.tolist() for path, rows in self.chunk_columns.items()}

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        sets = any(getattr(self, name) for name, _ in _TITLES)
        return not (sets or self.chunk_columns or self.moved_nodes)

    def shown_facts(self) -> Mapping[str, object]:
        """As a tree: each path with its change and the number of its changed chunks."""
        happened: dict[str, list[str]] = {}
        for name, title in _TITLES:
            kind, what = title.split(" ", 1)
            for path in getattr(self, name):
                happened.setdefault(path, []).append(f"{kind.removesuffix('s').lower()} {what}")
        for path, rows in self.chunk_columns.items():
            chunks = "chunk" if len(rows) == 1 else "chunks"
            happened.setdefault(path, []).append(f"{len(rows):,} {chunks} written")
        for source, target in self.moved_nodes:
            happened.setdefault(target, []).append(f"moved from {source}")
        return {path: ", ".join(said) for path, said in sorted(happened.items())}

    def _repr_html_(self) -> str:
        return as_tree(self.shown_name(), self.shown_facts())

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        blocks = [
            "\n".join([f"{title}:", *(f"    {path}" for path in sorted(getattr(self, name))), "\n"])
            for name, title in _TITLES
            if getattr(self, name)
        ]
        if self.chunk_columns:
            lines = ["Chunks updated:"]
            for path, rows in sorted(self.chunk_columns.items()):
                lines.append(f"    {path}:")
                lines += [f"        {row}" for row in rows[:10].tolist()]
                if len(rows) > 10:
                    lines.append(f"        ... {len(rows) - 10} more")
            blocks.append("\n".join([*lines, ""]))
        if self.moved_nodes:
            moves = [f"    {source} -> {target}" for source, target in self.moved_nodes]
            blocks.append("\n".join(["Nodes moved/renamed:", *moves, "", ""]))
        return "".join(blocks)


_TITLES = (
    ("new_groups", "Groups created"),
    ("new_arrays", "Arrays created"),
    ("updated_groups", "Group definitions updated"),
    ("updated_arrays", "Array definitions updated"),
    ("deleted_groups", "Groups deleted"),
    ("deleted_arrays", "Arrays deleted"),
)


def diff_between(objects: Objects, older: SnapshotId, newer: SnapshotId) -> Diff:
    """What the commits after `older` up to `newer` changed."""
    commits = commits_between(objects, older, newer)
    if commits is None:
        raise InvalidInputError(
            f"{objects.format_id(older)} is not an ancestor of {objects.format_id(newer)}, whose "
            "history doesn't include it: a diff follows one line of history, from the older to "
            "the newer snapshot"
        )
    logs = [log for commit in commits for log in logs_since_parent(objects, commit)]
    return combine(logs, objects.snapshot_header(older), objects.snapshot_header(newer))


def combine(logs: Iterable[TransactionLog], before: Snapshot, after: Snapshot) -> Diff:
    """One difference from several logs; nodes that exist on neither side are left out."""
    changes = list(logs)
    old, new = paths_by_id(before.nodes), paths_by_id(after.nodes)
    renamed = {node_id for log in changes for node_id in log.renamed}
    if not renamed:
        return combine_paths(changes, old | new)
    moves = [move for move in net_moves(before.nodes, after.nodes) if move.node_id in renamed]
    plain = [_without(log, renamed, old.keys(), new.keys()) for log in changes]
    diff = combine_paths(plain, old | new)
    ended = [(move.source, move.target) for move in moves]
    return replace(diff, moved_nodes=diff.moved_nodes + ended)


def _without(
    log: TransactionLog, renamed: Set[NodeId], old: Set[NodeId], new: Set[NodeId]
) -> TransactionLog:
    """The log without the paths of renamed nodes."""
    made, gone = renamed & old, renamed & new
    return replace(
        log,
        new_groups=log.new_groups - made,
        new_arrays=log.new_arrays - made,
        deleted_groups=log.deleted_groups - gone,
        deleted_arrays=log.deleted_arrays - gone,
        moves=tuple(move for move in log.moves if move.node_id not in renamed),
    )


def diff_of_changes(base: Snapshot, changes: ChangeSet) -> Diff:
    """What a session changed on top of its base."""
    paths = {node.id: path for path, node in base.nodes.items()}
    paths |= {node.id: path for path, node in changes.created.items()}
    return combine_paths([changes.log(base.id)], paths)


def combine_paths(logs: list[TransactionLog], paths: Mapping[NodeId, str]) -> Diff:
    """One difference from several logs, given the paths of the nodes that matter."""
    touched: dict[NodeId, list[Coordinates]] = {}
    for log in logs:
        for node_id, rows in log.updated_chunks.items():
            touched.setdefault(node_id, []).append(rows)
    sets = {
        name: {paths[n] for log in logs for n in getattr(log, name) if n in paths}
        for name, _ in _TITLES
    }
    return Diff(
        **sets,
        moved_nodes=[(move.source, move.target) for log in logs for move in log.moves],
        chunk_columns={
            paths[node_id]: _union(parts) for node_id, parts in touched.items() if node_id in paths
        },
    )


def _union(parts: list[Coordinates]) -> Coordinates:
    """Distinct coordinates in order; parts whose rank differs from the newest are left out."""
    ndim = parts[-1].shape[1]
    rows = np.concatenate([part for part in parts if part.shape[1] == ndim])
    (keys,) = sort_keys(rows)
    return rows[first_rows(keys)]


def merge_logs(
    older: TransactionLog, newer: TransactionLog, moves: tuple[Move, ...] = ()
) -> TransactionLog:
    """The log of one commit equivalent to two.

    Nodes that the first created and the second deleted are omitted, as are chunks of deleted
    arrays.
    """
    created = older.new_groups | older.new_arrays
    gone = newer.deleted_groups | newer.deleted_arrays
    new_groups = (older.new_groups - gone) | newer.new_groups
    new_arrays = (older.new_arrays - gone) | newer.new_arrays
    settled = new_groups | new_arrays | gone
    return TransactionLog(
        id=newer.id,
        new_groups=new_groups,
        new_arrays=new_arrays,
        deleted_groups=older.deleted_groups | (newer.deleted_groups - created),
        deleted_arrays=older.deleted_arrays | (newer.deleted_arrays - created),
        updated_groups=(older.updated_groups | newer.updated_groups) - settled,
        updated_arrays=(older.updated_arrays | newer.updated_arrays) - settled,
        updated_chunks=_merge_chunks(older.updated_chunks, newer.updated_chunks, gone),
        moves=compose_moves(older.moves, moves or newer.moves),
    )


def compose_moves(older: tuple[Move, ...], newer: tuple[Move, ...]) -> tuple[Move, ...]:
    """Where nodes go from before the first to after the second; moves that end where they began
    are left out.
    """
    sources = {move.node_id: move.source for move in older}
    latest = {move.node_id: move for move in (*older, *newer)}
    return in_target_order(
        Move(node_id, move.is_array, source, move.target)
        for node_id, move in latest.items()
        if (source := sources.get(node_id, move.source)) != move.target
    )


def _merge_chunks(
    older: Mapping[NodeId, Coordinates],
    newer: Mapping[NodeId, Coordinates],
    gone: frozenset[NodeId],
) -> dict[NodeId, Coordinates]:
    merged: dict[NodeId, Coordinates] = {}
    for node_id in sorted((older.keys() - gone) | newer.keys()):
        parts = [part[node_id] for part in (older, newer) if node_id in part]
        same_rank = [part for part in parts if part.shape[1] == parts[-1].shape[1]]
        merged[node_id] = in_order(np.concatenate(same_rank))
    return merged
