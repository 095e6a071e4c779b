"""Bring what was written and audited on one branch to another: write, audit, publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from airflow_provider_icechunk.exceptions import ConflictError, Kind, NotFoundError, SessionError
from airflow_provider_icechunk.hooks.reruns import Attempt, Earlier, among
from airflow_provider_icechunk.hooks.transactions import superseding

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import ConflictSolver, Repository, SnapshotInfo

PUBLISHED_KEY = "published_from"
"""Snapshot metadata of a commit made by publishing: the snapshot whose changes it holds."""

_TRIES = 10


class Published(TypedDict):
    """What a publication did."""

    snapshot_id: str
    """The head of the target that holds what was published."""
    parent_id: str | None
    branch: str
    source_snapshot_id: str
    how: Literal["fast_forward", "rebase", "already_there"]
    supersedes: NotRequired[str]
    """The commit of an earlier run of the same task, if this one takes the place of it."""


def publish(
    repository: Repository,
    source_snapshot_id: str,
    *,
    target: str,
    message: str,
    metadata: Mapping[str, Any],
    attempt: Attempt,
    solver: ConflictSolver | None,
) -> Published:
    """Move `target` forward to a snapshot, or else commit its changes on top of `target`.

    Moving forward needs a snapshot that descends from the head. If others committed to `target`
    meanwhile, the changes since the two lines parted become one commit, rebased with `solver`;
    without one that is a `ConflictError`. A snapshot that `target` contains is published already.
    """
    ours = [info.id for info in repository.ancestry(snapshot_id=source_snapshot_id)]
    for _ in range(_TRIES):
        theirs = {info.id: info for info in repository.ancestry(branch=target)}
        head = next(iter(theirs))
        before = among(theirs.values(), attempt)
        there = _already(theirs, ours[0], before, attempt)
        if there is not None:
            return _published(repository, there, target, ours[0], "already_there")
        if head in ours:
            try:
                repository.reset_branch(target, ours[0], from_snapshot_id=head)
            except ConflictError:
                continue
            return _published(repository, ours[0], target, ours[0], "fast_forward")
        parted = next((place for place, one in enumerate(ours) if one in theirs), None)
        if parted is None:
            raise SessionError(f"{ours[0]} and branch {target!r} have no common history")
        if solver is None:
            raise ConflictError(
                f"branch {target!r} is at {head}, which is no ancestor of {ours[0]}: others "
                "committed meanwhile. Allow to rebase, or write and audit again on the new head",
                expected_parent=ours[parted],
                actual_parent=head,
            )
        session = repository.session_with_changes(
            target, from_snapshot_id=ours[parted], to_snapshot_id=ours[0]
        )
        identity = session.commit(
            message,
            metadata=superseding({**metadata, PUBLISHED_KEY: ours[0]}, before),
            rebase_with=solver,
            token=attempt.token,
            replaces=attempt.made,
        )
        published = _published(repository, identity, target, ours[0], "rebase")
        if before is not None:
            published["supersedes"] = before.info.id
        return published
    raise ConflictError(
        f"branch {target!r} moved {_TRIES} times while it was to be moved; try again when it is "
        "quieter",
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )


def pinned_snapshot(repository: Repository, branch: str, audited: str | None) -> str:
    """The head of a branch; if one was audited, exactly that one, which it must contain."""
    if audited is None:
        return repository.lookup_branch(branch)
    audited = repository.read_snapshot_id(audited)
    if all(info.id != audited for info in repository.ancestry(branch=branch)):
        raise NotFoundError(
            f"branch {branch!r} does not contain the audited snapshot {audited}: it was reset or "
            "written anew; audit it again",
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )
    return audited


def _already(
    theirs: Mapping[str, SnapshotInfo], source: str, before: Earlier | None, attempt: Attempt
) -> str | None:
    """The snapshot of the target that has what `source` has: itself, or a commit of its changes."""
    if source in theirs:
        return source
    if before is not None and before.answers:
        return before.info.id
    if attempt.on_rerun == "always":
        return None
    made = (one for one, info in theirs.items() if info.metadata.get(PUBLISHED_KEY) == source)
    return next(made, None)


def _published(
    repository: Repository,
    identity: str,
    branch: str,
    source: str,
    how: Literal["fast_forward", "rebase", "already_there"],
) -> Published:
    return Published(
        snapshot_id=identity,
        parent_id=repository.lookup_snapshot(identity).parent_id,
        branch=branch,
        source_snapshot_id=source,
        how=how,
    )
