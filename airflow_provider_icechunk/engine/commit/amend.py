"""Replace the newest commit of a branch, in repositories of generation `2`."""

from __future__ import annotations

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.model import Metadata, Move, Snapshot
from airflow_provider_icechunk.engine.history.ancestry import required_log
from airflow_provider_icechunk.engine.history.diff import merge_logs
from airflow_provider_icechunk.engine.refs import v2_refs
from airflow_provider_icechunk.engine.refs.base import Behind, Moved
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.exceptions import SessionError, UnsupportedError

from .writer import CommitWriter


def amend(
    core: Core,
    writer: CommitWriter,
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

    A commit that moved nodes can be amended only by more moves, which `may_move` indicates.
    """
    refs = core.refs
    if not refs.generation.can_amend:
        raise UnsupportedError(
            "amending needs a repository of generation `2`; make another commit instead, or "
            "upgrade it with `migrate`"
        )
    newer = v2_refs(refs, "amending")
    if newer.parent(base) is None:
        raise SessionError("the first snapshot of a repository cannot be amended")
    old = required_log(core.objects, base)
    if old.moves and not may_move:
        raise SessionError(
            "the newest commit moved nodes; only a session made with `rearrange_session` can "
            "amend it"
        )
    snapshot = writer.store(
        base,
        changes,
        message=message,
        metadata=metadata,
        log=lambda new: merge_logs(old, new, moves),
    )
    outcome = writer.held.swap(lambda: newer.amend(branch, base.id, snapshot))
    return snapshot if isinstance(outcome, Moved) else outcome
