"""Write, audit, publish: bring the work of a branch to another, and tag what was published.

A retry finds what the previous attempt did: each function returns the current state, and whether
it changed anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_icechunk.engine.checks.checks import CHECKS_KEY, check_report
from airflow_provider_icechunk.engine.datasets.stored import (
    DROPPED_KEY,
    drops_to_json,
    joined_drops,
)
from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    Kind,
    NotFoundError,
    SessionError,
)

from .reruns import Attempt, EarlierCommit, among
from .transaction import CommitOptions, Outcome, outcome, superseding

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.repository import Repository


PUBLISHED_KEY = "published_from"
"""Snapshot metadata of a commit made by publishing: the snapshot whose changes it holds."""

_MOVES = at_once(10)
How = Literal["fast_forward", "commit", "rebase", "already_there"]


def publish(
    repository: Repository,
    source: str,
    options: CommitOptions,
    *,
    target: str,
    audited: str | None = None,
    checks: Mapping[str, Any] | str | None = None,
) -> Outcome:
    """Fast-forward `target` to `source`, or else commit the changes of `source` on top of `target`.

    A fast-forward needs a snapshot that descends from the head. If others have committed to
    `target`, the changes since the two lines diverged become one commit, rebased with the solver of
    `options`; without one that is a `ConflictError`. A snapshot that `target` contains is already
    published, so nothing is done. The result says `how` it was done, and what is published as
    `source_snapshot_id`.

    :param audited: the snapshot of `source` that is published; by default its head.
    :param checks: the report of the checks of that snapshot. A failed one is refused. To reach
        readers along with the data it needs a commit: the changes become one even where the target
        stood still, because the metadata of a snapshot never changes.
    """
    attempt = options.attempt
    published = _pinned(repository, source, audited)
    if checks is not None:
        report = check_report(checks, published)
        options = replace(options, metadata={**options.metadata, CHECKS_KEY: report})
    line = list(repository.ancestry(snapshot_id=published))
    ours = [info.id for info in line]
    for _ in _MOVES.attempts():
        theirs = {info.id: info for info in repository.ancestry(branch=target)}
        head = next(iter(theirs))
        before = among(theirs.values(), attempt)
        there = _already(theirs, ours[0], before, attempt)
        if there is not None:
            # A retry may find what an earlier attempt published but could not report.
            done = _published(repository, there, target, ours[0], "already_there")
            return replace(done, is_new=not attempt.is_first)
        if head in ours and checks is None:
            try:
                repository.reset_branch(target, ours[0], from_snapshot_id=head)
            except ConflictError:
                continue
            return _published(repository, ours[0], target, ours[0], "fast_forward")
        parted = next((place for place, one in enumerate(ours) if one in theirs), None)
        if parted is None:
            raise SessionError(f"{ours[0]} and branch {target!r} have no common history")
        if options.solver is None and head not in ours:
            raise ConflictError(
                f"branch {target!r} is at {head}, which is not an ancestor of {ours[0]}: others "
                "have committed. Allow rebasing, or write and audit again on the new head",
                expected_parent=ours[parted],
                actual_parent=head,
            )
        session = repository.session_with_changes(
            target, from_snapshot_id=ours[parted], to_snapshot_id=ours[0]
        )
        drops = joined_drops(info.metadata for info in line[:parted])
        marks = {DROPPED_KEY: drops_to_json(drops)} if drops else {}
        identity = session.commit(
            options.message,
            metadata=superseding({**options.metadata, PUBLISHED_KEY: ours[0], **marks}, before),
            rebase_with=options.solver,
            token=attempt.token,
            replaces=attempt.made,
        )
        superseded = None if before is None else before.info.id
        how: How = "commit" if head in ours else "rebase"
        return _published(repository, identity, target, ours[0], how, superseded)
    raise ConflictError(
        f"branch {target!r} moved {_MOVES.tries} times while it was being moved; try again when "
        "there are fewer commits",
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )


def _pinned(repository: Repository, branch: str, audited: str | None) -> str:
    """The head of a branch; if a snapshot was audited, that one, which the branch must contain."""
    if audited is None:
        return repository.lookup_branch(branch)
    audited = repository.read_snapshot_id(audited)
    if all(info.id != audited for info in repository.ancestry(branch=branch)):
        raise NotFoundError(
            f"branch {branch!r} does not contain the audited snapshot {audited}: it was reset or "
            "rewritten; audit it again",
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )
    return audited


def _already(
    theirs: Mapping[str, SnapshotInfo], source: str, before: EarlierCommit | None, attempt: Attempt
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
    how: How,
    supersedes: str | None = None,
) -> Outcome:
    info = repository.lookup_snapshot(identity)
    return outcome(info, branch, supersedes=supersedes, source_snapshot_id=source, how=how)


def create_branch(
    repository: Repository,
    branch: str,
    *,
    from_branch: str = "main",
    snapshot_id: str | None = None,
    if_exists: str = "error",
) -> dict[str, Any]:
    """Create a branch at a snapshot, by default at the head of another branch.

    An existing one is an `error`, stays as it is (`skip`), or moves to where a new one would begin
    (`reset`).
    """
    start = repository.read_snapshot_id(snapshot_id or repository.lookup_branch(from_branch))
    try:
        repository.create_branch(branch, start)
    except AlreadyExistsError:
        if if_exists == "error":
            raise
        head = repository.lookup_branch(branch)
        if if_exists == "reset" and head != start:
            repository.reset_branch(branch, start, from_snapshot_id=head)
            head = start
        return {"branch": branch, "snapshot_id": head, "created": False}
    return {"branch": branch, "snapshot_id": start, "created": True}


def reset_branch(
    repository: Repository, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
) -> dict[str, Any]:
    """Move a branch, unless it is there already; `was` is its previous snapshot. :param
    from_snapshot_id: the required current snapshot; otherwise the branch is not moved.
    """
    was = repository.lookup_branch(branch)
    target = repository.read_snapshot_id(snapshot_id)
    if was != target:
        repository.reset_branch(branch, target, from_snapshot_id=from_snapshot_id or was)
    return {"branch": branch, "snapshot_id": target, "was": was}


def delete_branch(repository: Repository, branch: str, *, missing_ok: bool) -> dict[str, Any]:
    """Delete a branch; with `missing_ok` a missing one counts as deleted."""
    try:
        was = repository.lookup_branch(branch)
        repository.delete_branch(branch)
    except NotFoundError as error:
        if error.kind is not Kind.BRANCH_NOT_FOUND or not missing_ok:
            raise
        return {"branch": branch, "deleted": False, "was": None}
    return {"branch": branch, "deleted": True, "was": was}


def create_tag(
    repository: Repository,
    tag: str,
    *,
    branch: str = "main",
    snapshot_id: str | None = None,
    if_exists: str = "same",
) -> dict[str, Any]:
    """Tag a snapshot, by default the head of a branch.

    `if_exists` accepts an existing tag if it names the `same` snapshot, any (`skip`), or never
    (`error`).
    """
    wanted = repository.read_snapshot_id(snapshot_id or repository.lookup_branch(branch))
    try:
        repository.create_tag(tag, wanted)
    except AlreadyExistsError as error:
        if error.kind is not Kind.TAG_EXISTS or if_exists == "error":
            raise
        found = repository.lookup_tag(tag)
        if if_exists == "same" and found != wanted:
            raise AlreadyExistsError(
                f"tag {tag!r} names {found} already, not {wanted}; tags never move: choose "
                "another name, or accept any snapshot with if_exists='skip'",
                kind=Kind.TAG_EXISTS,
            ) from None
        return {"tag": tag, "snapshot_id": found, "created": False}
    return {"tag": tag, "snapshot_id": wanted, "created": True}


def delete_tag(repository: Repository, tag: str, *, missing_ok: bool) -> dict[str, Any]:
    """Delete a tag; with `missing_ok` a missing one counts as deleted."""
    try:
        was = repository.lookup_tag(tag)
        repository.delete_tag(tag)
    except NotFoundError as error:
        if error.kind is not Kind.TAG_NOT_FOUND or not missing_ok:
            raise
        return {"tag": tag, "deleted": False, "was": None}
    return {"tag": tag, "deleted": True, "was": was}
