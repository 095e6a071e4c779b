"""Rewrite all manifests of a branch by the splitting rules in force, as one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
)
from airflow_provider_icechunk.format.config import ManifestConfig, RepositoryConfig
from airflow_provider_icechunk.format.config_codec import config_to_tree
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.amending import amend
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.commit import Flusher
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.ledgers.base import Behind, Moved

SPLITTING_KEY = "splitting_config"
"""Snapshot metadata that says by which rules the manifests were written, as officially."""

_TRIES = 10


CommitMethod = Literal["new_commit", "amend"]
"""Whether what was rewritten follows the newest commit or takes its place."""


def rewrite_manifests(
    engine: Engine,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
    commit_method: CommitMethod = "new_commit",
) -> SnapshotId:
    """Commit the head of `branch` with all its manifests written anew, or amend it.

    No chunk changes, so it cannot conflict with others' commits: if the branch moves meanwhile, it
    is done again on the new head, for the arrays that changed.
    """
    engine.conditions.check()
    engine.clock.check()
    held = engine.leasehold()
    flusher = Flusher(
        engine.assets, engine.settings.splitting, engine.world, held, rewrite_all=True
    )
    details = {**(metadata or {}), SPLITTING_KEY: _rules(engine)}

    def store(base: Snapshot) -> Snapshot | Behind:
        if commit_method == "amend":
            return amend(
                engine,
                flusher,
                branch=branch,
                base=base,
                changes=ChangeSet(),
                may_move=True,
                message=message,
                metadata=details,
            )
        snapshot = flusher.flush(base, ChangeSet(), message=message, metadata=details)
        outcome = held.swap(lambda: engine.ledger.commit(branch, base.id, snapshot))
        return snapshot if isinstance(outcome, Moved) else outcome

    if commit_method not in get_args(CommitMethod):
        raise InvalidInputError(
            f"commit_method is {commit_method!r}; there are: {', '.join(get_args(CommitMethod))}"
        )
    head = engine.ledger.branch(branch)
    for _ in range(_TRIES):
        if head is None:
            raise NotFoundError(
                f"there is no branch {branch!r} in {engine.storage.location}",
                kind=Kind.BRANCH_NOT_FOUND,
            )
        base = engine.assets.snapshot(head)
        outcome = store(base)
        if isinstance(outcome, Snapshot):
            held.release()
            return outcome.id
        head = outcome.actual
    raise ConflictError(
        f"branch {branch!r} moved {_TRIES} times while its manifests were rewritten; try again "
        "when it is quieter",
        actual_parent=None if head is None else engine.show(head),
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )


def _rules(engine: Engine) -> object:
    splitting = engine.settings.splitting
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    tree = config_to_tree(config, tags=False)
    manifest = tree["manifest"] if isinstance(tree, dict) else None
    return manifest["splitting"] if isinstance(manifest, dict) else None
