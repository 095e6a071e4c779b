"""One transaction that spans several tasks: open a session, hand it out, commit what came back.

Every result is a small JSON object that fits into XCom and holds no secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import uuid4

from airflow_provider_icechunk.exceptions import Kind, SessionError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import ConflictSolver, Repository, SnapshotInfo, WorkUnit
    from airflow_provider_icechunk.spark.specification import SessionDescription

_NEWEST = 1_000
_CLOCKS_DIFFER = timedelta(hours=1)


class Committed(TypedDict):
    """What a commit made."""

    snapshot_id: str
    parent_id: str | None
    branch: str
    chunks: int


def open_session(
    hook: IcechunkHook,
    repository: str,
    *,
    branch: str,
    job: str,
    arrays: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Open a session on a branch, apply declared arrays to it, and describe it for other tasks.

    The arrays are stored but belong to no branch until the session is committed. Every session has
    a job of its own, whatever the name: what was written for another can never be merged.
    """
    from airflow_provider_icechunk.repository.jobs import JobFolder
    from airflow_provider_icechunk.spark.specification import SessionDescription
    from airflow_provider_icechunk.zarr_store.declared import apply_arrays, parse_arrays

    declared = parse_arrays(arrays)
    opened = hook.open(repository)
    session = opened.writable_session(branch)
    apply_arrays(session.store, declared)
    work = session.work_unit(f"{job}/{uuid4().hex[:12]}")
    return SessionDescription(
        repository=repository,
        conn_id=hook.icechunk_conn_id,
        place=hook.place(repository),
        work_unit=work.to_json(),
        fragments=JobFolder(opened.storage, work.job).prefix,
    ).model_dump()


def commit_session(
    description: SessionDescription,
    *,
    message: str,
    metadata: Mapping[str, Any],
    token: str,
    solver: ConflictSolver | None,
    writers: Sequence[str] | None = None,
    since: datetime | None = None,
) -> Committed:
    """Merge what the writers left and commit it once, however often this is called.

    A snapshot with the same token is the answer: one that was committed since the session was
    opened, or, by a run that was cleared as a whole and opened another session, since `since`.
    """
    from airflow_provider_icechunk.api import WorkUnit
    from airflow_provider_icechunk.repository.jobs import JobFolder

    repository = IcechunkHook(description.conn_id).open(description.repository)
    work = WorkUnit.from_json(description.work_unit)
    earlier = _find(repository, work, token) or find_commit(
        repository, work.branch, token, since=since
    )
    if earlier is not None:
        return _committed(earlier, work.branch, chunks=_changed_chunks(repository, earlier))
    session = repository.resume(work)
    folder = JobFolder(repository.storage, work.job)
    chunks = session.merge_fragments(folder.fragments(writers))
    if not session.has_uncommitted_changes:
        raise SessionError(
            "there is nothing to commit: the session changed nothing and no writer left a fragment "
            f"in {repository.storage.location}/{folder.prefix}",
            kind=Kind.NO_CHANGES,
        )
    identity = session.commit(message, metadata=metadata, rebase_with=solver, token=token)
    return _committed(repository.lookup_snapshot(identity), work.branch, chunks=chunks)


def abort_session(description: SessionDescription) -> int:
    """Delete the fragments of a session; returns how many there were.

    Where they are follows from the job's name, never from a key that came with the description.
    """
    from airflow_provider_icechunk.api import WorkUnit
    from airflow_provider_icechunk.repository.jobs import JobFolder

    repository = IcechunkHook(description.conn_id).open(description.repository)
    folder = JobFolder(repository.storage, WorkUnit.from_json(description.work_unit).job)
    writers = folder.writers()
    repository.storage.delete([listed.key for listed in repository.storage.scan(folder.prefix)])
    return len(writers)


def find_commit(
    repository: Repository, branch: str, token: str, *, since: datetime | None = None
) -> SnapshotInfo | None:
    """The commit with a token among the newest of a branch, if there is one.

    Looks no further back than an hour before `since`, the start of what could have made it.
    """
    from airflow_provider_icechunk.repository.session import TOKEN_KEY

    for info in islice(repository.ancestry(branch=branch), _NEWEST):
        if info.metadata.get(TOKEN_KEY) == token:
            return info
        if since is not None and info.written_at < since - _CLOCKS_DIFFER:
            return None
    return None


def _find(repository: Repository, work: WorkUnit, token: str) -> SnapshotInfo | None:
    """The commit with a token between the base of a session and the head of its branch."""
    from airflow_provider_icechunk.format.generations.base import Generation
    from airflow_provider_icechunk.format.generations.identities import show_id
    from airflow_provider_icechunk.repository.session import TOKEN_KEY

    base = show_id(Generation(work.generation), work.base)
    for info in repository.ancestry(branch=work.branch):
        if info.id == base:
            return None
        if info.metadata.get(TOKEN_KEY) == token:
            return info
    return None


def _changed_chunks(repository: Repository, info: SnapshotInfo) -> int:
    assert info.parent_id is not None
    diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
    return sum(len(rows) for rows in diff.chunk_columns.values())


def _committed(info: SnapshotInfo, branch: str, *, chunks: int) -> Committed:
    return Committed(snapshot_id=info.id, parent_id=info.parent_id, branch=branch, chunks=chunks)
