"""The changes of several commits as if one session had made them, for another branch to take."""

from __future__ import annotations

from functools import reduce

from airflow_provider_icechunk.exceptions import InvalidInputError, SessionError
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.amending import merge_logs
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.handoff import changes_of_staged
from airflow_provider_icechunk.repository.history import commits_between, logs_since_parent
from airflow_provider_icechunk.repository.working_tree import WorkingTree


def changes_between(engine: Engine, older: SnapshotId, newer: SnapshotId) -> ChangeSet:
    """What the commits after `older` up to `newer` changed, on top of `older`.

    Commits that moved nodes cannot be told as changes and are refused.
    """
    commits = commits_between(engine.assets, older, newer)
    if not commits:
        raise InvalidInputError(
            f"{engine.show(older)} is no ancestor of {engine.show(newer)}: there are no changes "
            "from one to the other"
        )
    logs = [log for commit in commits for log in logs_since_parent(engine.assets, commit)]
    if any(log.moves_nodes for log in logs):
        raise SessionError(
            "commits that moved nodes cannot be made again on another branch; move that branch "
            "forward to them while it stands still"
        )
    reader = WorkingTree(engine, commits[-1], read_only=True)
    return changes_of_staged(
        engine.assets.snapshot(older), commits[-1], reduce(merge_logs, logs), reader.references
    )
