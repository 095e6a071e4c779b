"""Rewrite all manifests of a branch with the effective splitting rules, as one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from airflow_provider_icechunk.engine.commit.amend import amend
from airflow_provider_icechunk.engine.commit.commit import take_back
from airflow_provider_icechunk.engine.commit.writer import CommitWriter
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.config.codec import config_to_tree
from airflow_provider_icechunk.engine.format.config.conditions import (
    ManifestSplittingConfig,
    standard_splitting,
)
from airflow_provider_icechunk.engine.format.config.model import ManifestConfig, RepositoryConfig
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.refs.base import Behind, Moved
from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
)

SPLITTING_KEY = "splitting_config"
"""Snapshot metadata with the rules the manifests were written by, as in the official library."""

_SWAPS = at_once(10)
CommitMethod = Literal["new_commit", "amend"]
"""Whether to add a commit or to replace the newest one."""


def rewrite_manifests(
    core: Core,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
    commit_method: CommitMethod = "new_commit",
) -> SnapshotId:
    """Rewrite all manifests of the head of `branch` as a new commit, or amend the head.

    If no rules are set, the standard ones are stored with the repository and applied, so that other
    writers follow them as well. No chunk changes, so it cannot conflict with other commits: if the
    branch moves, the changed arrays are rewritten again on the new head.
    """
    core.conditions.check()
    core.clock.check()
    held = core.leasehold()
    splitting = _rules(core)
    writer = CommitWriter(core.objects, splitting, core.world, held, rewrite_all=True)
    details = {**(metadata or {}), SPLITTING_KEY: _as_tree(splitting)}

    def store(base: Snapshot) -> Snapshot | Behind:
        if commit_method == "amend":
            return amend(
                core,
                writer,
                branch=branch,
                base=base,
                changes=ChangeSet(),
                may_move=True,
                message=message,
                metadata=details,
            )
        snapshot = writer.store(base, ChangeSet(), message=message, metadata=details)
        outcome = held.swap(
            lambda: core.refs.commit(branch, base.id, snapshot),
            lambda: take_back(core, branch, base.id, snapshot.id),
        )
        return snapshot if isinstance(outcome, Moved) else outcome

    if commit_method not in get_args(CommitMethod):
        raise InvalidInputError(
            f"commit_method is {commit_method!r}; choose one of: "
            f"{', '.join(get_args(CommitMethod))}"
        )
    head = core.refs.branch(branch)
    for _ in _SWAPS.attempts():
        if head is None:
            raise NotFoundError(
                f"branch {branch!r} does not exist in {core.storage.location}",
                kind=Kind.BRANCH_NOT_FOUND,
            )
        base = core.objects.snapshot(head)
        outcome = store(base)
        if isinstance(outcome, Snapshot):
            held.release()
            return outcome.id
        head = outcome.actual
    raise ConflictError(
        f"branch {branch!r} moved {_SWAPS.tries} times while its manifests were rewritten; try "
        "again when there are fewer commits",
        actual_parent=None if head is None else core.format_id(head),
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )


def _rules(core: Core) -> ManifestSplittingConfig:
    """The current rules; if there are none, stores the standard ones."""
    chosen = None if core.config.manifest is None else core.config.manifest.splitting
    if chosen is not None:
        return chosen
    standard = standard_splitting()
    found = core.refs.config()
    stored, version = (RepositoryConfig(), None) if found is None else (found.config, found.version)
    rules = RepositoryConfig(manifest=ManifestConfig(splitting=standard))
    if stored.manifest is not None and stored.manifest.splitting is not None:
        return stored.manifest.splitting
    if core.refs.save_config(stored.merge(rules), version) is None:
        raise ConflictError(
            f"the configuration of {core.storage.location} changed while rules for its manifests "
            "were stored; try again",
            kind=Kind.CONFIG_CHANGED,
        )
    return standard


def _as_tree(splitting: ManifestSplittingConfig) -> object:
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    tree = config_to_tree(config, tags=False)
    manifest = tree["manifest"] if isinstance(tree, dict) else None
    return manifest["splitting"] if isinstance(manifest, dict) else None
