"""One transaction that spans several tasks: open a session, hand it out, commit what came back.

The functions take a repository that the caller has opened, once for each task. Every result is a
small JSON object that fits into XCom and holds no secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict
from uuid import uuid4

from airflow_provider_icechunk.exceptions import Kind, SessionError
from airflow_provider_icechunk.hooks.reruns import (
    METADATA_KEY,
    SUPERSEDES_KEY,
    Attempt,
    Earlier,
    attempt_that_made,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import (
        ConflictSolver,
        Repository,
        Session,
        SnapshotInfo,
        WorkUnit,
    )
    from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
    from airflow_provider_icechunk.repository.jobs import JobFolder
    from airflow_provider_icechunk.spark.specification import SessionDescription

log = logging.getLogger(__name__)


class Committed(TypedDict):
    """What a commit made."""

    snapshot_id: str
    parent_id: str | None
    branch: str
    chunks: int
    supersedes: NotRequired[str]
    """The commit of an earlier run of the same task, if this one takes the place of it."""


def open_session(
    hook: IcechunkHook,
    repository: str,
    opened: Repository,
    *,
    branch: str,
    job: str,
    arrays: Sequence[Mapping[str, Any]] = (),
    again: bool = False,
) -> dict[str, Any]:
    """Open a session on a branch, apply declared arrays to it, and describe it for other tasks.

    The arrays are stored but belong to no branch until the session is committed. Every session has
    a job of its own, whatever the name: what was written for another can never be merged.

    :param again: the work was done before, and arrays may have grown beyond it since.
    """
    from airflow_provider_icechunk.repository.jobs import JobFolder
    from airflow_provider_icechunk.spark.specification import SessionDescription
    from airflow_provider_icechunk.zarr_store.declared import apply_arrays, parse_arrays

    declared = parse_arrays(arrays)
    session = opened.writable_session(branch)
    apply_arrays(session.store, declared, may_be_longer=again)
    work = session.work_unit(f"{job}/{uuid4().hex[:12]}")
    return SessionDescription(
        repository=repository,
        conn_id=hook.icechunk_conn_id,
        place=hook.place(repository),
        work_unit=work.to_json(),
        fragments=JobFolder(opened.storage, work.job).prefix,
    ).model_dump()


def work_of(description: SessionDescription) -> WorkUnit:
    """The work that a session handed out."""
    from airflow_provider_icechunk.api import WorkUnit

    return WorkUnit.from_json(description.work_unit)


def base_of(work: WorkUnit) -> str:
    """The snapshot that the session stands on, as texts show it."""
    from airflow_provider_icechunk.format.generations.base import Generation
    from airflow_provider_icechunk.format.generations.identities import show_id

    return show_id(Generation(work.generation), work.base)


def commit_session(
    repository: Repository,
    work: WorkUnit,
    *,
    message: str,
    metadata: Mapping[str, Any],
    attempt: Attempt,
    earlier: Earlier | None,
    solver: ConflictSolver | None,
    writers: Sequence[str] | None = None,
) -> Committed:
    """Merge what the writers left and commit it once, however often this is called.

    :param earlier: the commit of an earlier run of the task, whose place this one takes.
    """
    from airflow_provider_icechunk.repository.jobs import JobFolder

    session = repository.resume(work)
    folder = JobFolder(repository.storage, work.job)
    chunks = session.merge_fragments(folder.fragments(writers))
    if not session.has_uncommitted_changes:
        raise SessionError(
            "there is nothing to commit: the session changed nothing and no writer left a fragment "
            f"in {repository.storage.location}/{folder.prefix}",
            kind=Kind.NO_CHANGES,
        )
    if earlier is not None and earlier.is_below_base:
        _refuse_second_append(folder, earlier)
    info = commit_attempt(
        repository,
        session,
        message=message,
        metadata=metadata,
        attempt=attempt,
        earlier=earlier,
        solver=solver,
    )
    superseded = None if earlier is None else earlier.info.id
    return committed(info, work.branch, chunks=chunks, supersedes=superseded)


def commit_attempt(
    repository: Repository,
    session: Session,
    *,
    message: str,
    metadata: Mapping[str, Any],
    attempt: Attempt,
    earlier: Earlier | None,
    solver: ConflictSolver | None,
) -> SnapshotInfo:
    """Commit what an attempt did, in the place of what an earlier run of the task committed.

    If another attempt of the same run was faster, its commit is the answer.
    """
    branch = session.branch
    identity = session.commit(
        message,
        metadata=superseding(metadata, earlier),
        rebase_with=solver,
        token=attempt.token,
        replaces=attempt.made,
    )
    info = repository.lookup_snapshot(identity)
    made_by = attempt_that_made(info)
    if made_by == attempt.number:
        log.info("Committed snapshot %s to %s", info.id, branch)
    else:
        log.info("Attempt %s committed snapshot %s while this one worked", made_by, info.id)
    return info


def superseding(metadata: Mapping[str, Any], earlier: Earlier | None) -> dict[str, Any]:
    """Metadata of a commit that also says whose place it takes."""
    if earlier is None:
        return dict(metadata)
    task = {**metadata[METADATA_KEY], SUPERSEDES_KEY: earlier.info.id}
    return {**metadata, METADATA_KEY: task}


def abort_session(repository: Repository, work: WorkUnit) -> int:
    """Delete the fragments of a session and its lease; returns how many fragments there were.

    Where they are follows from the job's name, never from a key that came with the description.
    """
    from airflow_provider_icechunk.repository.jobs import JobFolder

    folder = JobFolder(repository.storage, work.job)
    writers = folder.writers()
    repository.storage.delete([listed.key for listed in repository.storage.scan(folder.prefix)])
    held = repository.engine.leasehold()
    held.serves(work.tenancy)
    held.release()
    return len(writers)


def replayed(repository: Repository, earlier: Earlier, branch: str) -> Committed:
    """What the attempt that made a commit returned."""
    info = earlier.info
    assert info.parent_id is not None
    diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
    chunks = sum(len(rows) for rows in diff.chunk_columns.values())
    return committed(info, branch, chunks=chunks, supersedes=earlier.supersedes)


def committed(info: SnapshotInfo, branch: str, *, chunks: int, supersedes: str | None) -> Committed:
    """A commit as tasks return it."""
    made = Committed(snapshot_id=info.id, parent_id=info.parent_id, branch=branch, chunks=chunks)
    if supersedes is not None:
        made["supersedes"] = supersedes
    return made


def append_refusal(earlier: Earlier) -> SessionError:
    """Why a write that goes to the end of an array cannot run again."""
    return SessionError(
        f"this task committed {earlier} before and would append the same files once more, because "
        "`start` is not given: say with `start` where they belong, which also makes the task "
        "repeatable; or reset the branch to the parent of that snapshot first; or keep what is "
        'there with on_rerun="skip"'
    )


def _refuse_second_append(folder: JobFolder, earlier: Earlier) -> None:
    for writer in folder.reporters():
        report = folder.result(writer)
        if report is not None and report.get("appends"):
            raise append_refusal(earlier)
