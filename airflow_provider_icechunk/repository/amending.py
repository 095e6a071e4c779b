"""Replace the newest commit of a branch, in repositories of generation `2`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from airflow_provider_icechunk.exceptions import SessionError, UnsupportedError
from airflow_provider_icechunk.format.generations.v1.logs import in_order
from airflow_provider_icechunk.format.ids import NodeId
from airflow_provider_icechunk.format.snapshot import Metadata, Snapshot
from airflow_provider_icechunk.format.transactions import (
    Coordinates,
    Move,
    TransactionLog,
    in_target_order,
)
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.commit import Flusher
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.history import required_log
from airflow_provider_icechunk.repository.ledgers.base import Behind, Moved
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger


def amend(
    engine: Engine,
    flusher: Flusher,
    *,
    branch: str,
    base: Snapshot,
    changes: ChangeSet,
    moves: tuple[Move, ...] = (),
    may_move: bool = False,
    message: str,
    metadata: Metadata,
) -> Snapshot | Behind:
    """Store `base` with the changes as a snapshot that takes its place at the head of the branch.

    A commit that moved nodes can be amended by more moves only, for which `may_move` stands.
    """
    ledger = engine.ledger
    if not isinstance(ledger, V2Ledger):
        raise UnsupportedError(
            "amending needs a repository of generation `2`; make another commit instead"
        )
    if ledger.parent(base) is None:
        raise SessionError("the first snapshot of a repository cannot be amended")
    old = required_log(engine.assets, base)
    if old.moves and not may_move:
        raise SessionError(
            "the newest commit moved nodes; only a session made with `rearrange_session` can "
            "amend it"
        )
    snapshot = flusher.flush(
        base,
        changes,
        message=message,
        metadata=metadata,
        log=lambda new: merge_logs(old, new, moves),
    )
    outcome = flusher.held.swap(lambda: ledger.amend(branch, base.id, snapshot))
    return snapshot if isinstance(outcome, Moved) else outcome


def merge_logs(
    older: TransactionLog, newer: TransactionLog, moves: tuple[Move, ...] = ()
) -> TransactionLog:
    """The log of one commit that does what two did.

    What the first created and the second deleted is nowhere; chunks of deleted arrays are not
    listed.
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
