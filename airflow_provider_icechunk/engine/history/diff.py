"""History: ancestors, and what changed between two snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind, StorageError
from airflow_provider_icechunk.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.format.references import sort_keys
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.format.transactions import Coordinates, TransactionLog
from airflow_provider_icechunk.format.wire.distinct import first_rows
from airflow_provider_icechunk.repository.assets import Assets
from airflow_provider_icechunk.repository.moves import net_moves
from airflow_provider_icechunk.repository.world import from_micros


@dataclass(frozen=True, slots=True)
class ManifestFileInfo:
    """A manifest file that a snapshot uses."""

    id: str
    size_bytes: int
    num_chunk_refs: int


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One entry of the history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: dict[str, Any] = field(compare=False)
    manifests: list[ManifestFileInfo] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Diff:
    """Paths and chunks that changed."""

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)
    """Old and new path of each moved node, in the order of the moves.

    Where logs know no moves: of each node that ended up elsewhere, by the new paths' segments.
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
            blocks.append("\n".join(["Nodes moved/renamed:", *moves, ""]))
        return "".join(blocks)


_TITLES = (
    ("new_groups", "Groups created"),
    ("new_arrays", "Arrays created"),
    ("updated_groups", "Group definitions updated"),
    ("updated_arrays", "Array definitions updated"),
    ("deleted_groups", "Groups deleted"),
    ("deleted_arrays", "Arrays deleted"),
)


def describe(
    snapshot: Snapshot,
    parent: SnapshotId | None,
    known_as: SnapshotId,
    show: Callable[[bytes], str],
) -> SnapshotInfo:
    """The history entry of a snapshot; `show` makes texts of ids."""
    return SnapshotInfo(
        id=show(known_as),
        parent_id=None if parent is None else show(parent),
        written_at=from_micros(snapshot.flushed_at),
        message=snapshot.message,
        metadata=dict(snapshot.metadata),
        manifests=[
            ManifestFileInfo(show(file.id), file.size_bytes, file.num_chunk_refs)
            for file in snapshot.manifest_files.values()
        ],
    )


def ancestors(assets: Assets, start: SnapshotId) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first. A cycle in stored parents is damage."""
    seen: set[SnapshotId] = set()
    current: SnapshotId | None = start
    while current is not None:
        if current in seen:
            raise FormatError(
                f"the history of {assets.storage.location} goes in a circle at "
                f"{assets.show(current)}: a snapshot names a descendant as its parent"
            )
        seen.add(current)
        snapshot = assets.passed(current)
        yield snapshot
        current = assets.ledger.parent(snapshot)


def commits_between(assets: Assets, older: SnapshotId, newer: SnapshotId) -> list[Snapshot] | None:
    """Snapshots after `older` up to `newer`, oldest first; `None` if `older` is no ancestor."""
    path: list[Snapshot] = []
    for snapshot in ancestors(assets, newer):
        if snapshot.id == older:
            return path[::-1]
        path.append(snapshot)
    return None


def logs_since_parent(assets: Assets, snapshot: Snapshot) -> list[TransactionLog]:
    """What happened since the parent of a snapshot, oldest first.

    That is its own log, and before it those of snapshots that expired in between.
    """
    pruned = assets.ledger.pruned_logs(snapshot.id)
    return [_existing_log(assets, identity) for identity in (*pruned, snapshot.id)]


def required_log(assets: Assets, snapshot: Snapshot) -> TransactionLog:
    """The log of a snapshot that must have one."""
    return _existing_log(assets, snapshot.id)


def _existing_log(assets: Assets, identity: SnapshotId) -> TransactionLog:
    log = assets.log(identity)
    if log is None:
        raise StorageError(
            f"the transaction log of snapshot {assets.show(identity)} is missing in "
            f"{assets.storage.location}: what it changed cannot be known",
            kind=Kind.OBJECT_MISSING,
        )
    return log


def diff_between(assets: Assets, older: SnapshotId, newer: SnapshotId) -> Diff:
    """What the commits after `older` up to `newer` changed."""
    commits = commits_between(assets, older, newer)
    if commits is None:
        raise InvalidInputError(
            f"{assets.show(older)} is not an ancestor of {assets.show(newer)}: a difference "
            "is made along one line of history, from the older to the newer snapshot"
        )
    logs = [log for commit in commits for log in logs_since_parent(assets, commit)]
    return combine(logs, assets.snapshot(older), assets.snapshot(newer))


def combine(logs: Iterable[TransactionLog], before: Snapshot, after: Snapshot) -> Diff:
    """One difference from several logs; nodes that exist on neither side are left out."""
    changes = list(logs)
    old = {node.id: path for path, node in before.nodes.items()}
    new = {node.id: path for path, node in after.nodes.items()}
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
    """The log without what it says of where renamed nodes are."""
    made, gone = renamed & old, renamed & new
    return replace(
        log,
        new_groups=log.new_groups - made,
        new_arrays=log.new_arrays - made,
        deleted_groups=log.deleted_groups - gone,
        deleted_arrays=log.deleted_arrays - gone,
        moves=tuple(move for move in log.moves if move.node_id not in renamed),
    )


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
    """Distinct coordinates in order; parts of another rank than the newest are void."""
    ndim = parts[-1].shape[1]
    rows = np.concatenate([part for part in parts if part.shape[1] == ndim])
    (keys,) = sort_keys(rows)
    return rows[first_rows(keys)]
