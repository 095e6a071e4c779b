"""A task's changes to a repository as one transaction: made once, however often the task runs.

The functions take a repository that the caller has opened, once per task, and return an `Outcome`:
the task's return value, as small JSON without secrets, and whether it is new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, SessionError

from .reruns import (
    CHUNKS_KEY,
    METADATA_KEY,
    SUPERSEDES_KEY,
    Attempt,
    EarlierCommit,
    attempt_that_made,
    find_earlier,
    kept_result,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
    from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset, Placement
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.maintenance.compact import CompactionRules
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.sessions.session import Session
    from airflow_provider_icechunk.engine.workers.jobs import JobFolder
    from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """How an attempt of a task commits."""

    attempt: Attempt
    message: str
    metadata: Mapping[str, Any]
    """The commit's metadata; `airflow` says which task made it."""
    solver: ConflictSolver | None = None
    """How to handle concurrent commits of others; without a solver they are a conflict."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a transaction."""

    result: dict[str, Any]
    """The task's return value: `snapshot_id`, `parent_id`, `branch` and more. `supersedes` is the
    commit of an earlier run of the same task that this one replaces.
    """
    is_new: bool = True
    """Whether consumers of the repository have yet to be notified."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A session opened for others to write to."""

    work: WorkUnit
    placement: Placement | None = None
    """Where in the dataset the run belongs, if it was opened for one."""
    earlier: EarlierCommit | None = None
    """The commit of an earlier run of the task that this run's commit supersedes."""


def open_for(
    repository: Repository,
    *,
    branch: str,
    job: str,
    arrays: Sequence[Mapping[str, Any]] = (),
    dataset: IcechunkDataset | None = None,
    at: Mapping[str, Any] | str | None = None,
) -> OpenTransaction:
    """Open a session on a branch, make it hold at least what is declared, and hand it out.

    The result is stored but belongs to no branch until the session is committed. Every session has
    a job of its own, whatever its name: fragments of another session can never be merged.

    :param arrays: arrays in plain dictionaries.
    :param dataset: a declaration of several arrays along growing dimensions.
    :param at: the run's place in the dataset, as in `IcechunkDataset.place`.
    """
    from airflow_provider_icechunk.engine.arrays.declared import apply_arrays, parse_arrays

    declared = parse_arrays(arrays)
    if dataset is None and at is not None:
        raise InvalidInputError(
            "`at` says where in a `dataset` the run belongs: pass `dataset` as well"
        )
    placement = None if dataset is None else dataset.place(at)
    session = repository.writable_session(branch)
    apply_arrays(session.store, declared)
    if dataset is not None and placement is not None:
        from airflow_provider_icechunk.engine.datasets.declare import ensure

        placement = ensure(session, dataset, placement)
    return OpenTransaction(session.work_unit(f"{job}/{uuid4().hex[:12]}"), placement)


def begin(
    repository: Repository,
    attempt: Attempt,
    *,
    branch: str,
    arrays: Sequence[Mapping[str, Any]] = (),
    appends: bool = False,
    dataset: IcechunkDataset | None = None,
    at: Mapping[str, Any] | str | None = None,
) -> OpenTransaction | Outcome:
    """Open a session for the work of an attempt, unless it has already been committed. :param
    appends: whether the work appends to an array, so that it cannot be repeated.
    """
    earlier = find_earlier(repository, branch, attempt)
    if earlier is not None and earlier.answers:
        return _replayed(repository, earlier, branch)
    if earlier is not None and appends:
        raise append_refusal(earlier)
    job = f"{attempt.identity}/{attempt.number}"
    opened = open_for(repository, branch=branch, job=job, arrays=arrays, dataset=dataset, at=at)
    return replace(opened, earlier=earlier)


def commit_session(
    repository: Repository,
    work: WorkUnit,
    options: CommitOptions,
    *,
    writers: Sequence[str] | None = None,
) -> Outcome:
    """Merge the fragments of a session's writers and commit them once, however often this is
    called.
    """
    earlier = find_earlier(repository, work.branch, options.attempt, base=_base_of(work))
    if earlier is not None and earlier.answers:
        return _replayed(repository, earlier, work.branch)
    return commit_transaction(
        repository, OpenTransaction(work, earlier=earlier), options, writers=writers
    )


def commit_transaction(
    repository: Repository,
    begun: OpenTransaction,
    options: CommitOptions,
    *,
    writers: Sequence[str] | None = None,
    returned: Any = None,
) -> Outcome:
    """Merge the fragments of a session's writers and commit them, given the search for earlier
    commits.

    :param returned: what the task's function returned; it is the outcome's `result`, and if it is
        small JSON, also that of a later attempt that finds the commit.
    """
    from airflow_provider_icechunk.engine.workers.jobs import JobFolder

    work, earlier = begun.work, begun.earlier
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
    kept = {CHUNKS_KEY: chunks, **kept_result(returned)}
    info = _commit(repository, session, _keeping(options, kept), earlier)
    if attempt_that_made(info) != options.attempt.number:
        # Another attempt was faster, and its commit is the one that counts.
        return _replayed(repository, EarlierCommit.of_this_run(info), work.branch)
    answer = _answer(chunks, returned)
    return outcome(info, work.branch, supersedes=_id_of(earlier), **answer)


def write_session(
    repository: Repository,
    branch: str,
    write: Callable[[Session], Any],
    options: CommitOptions,
    *,
    appends: bool = False,
) -> Outcome:
    """Let `write` change a session and commit that, unless an earlier attempt of the run did.

    The outcome says whether something was `committed`, and has what `write` returned as `result`.
    :param appends: whether the write appends to arrays, so that it cannot be repeated.
    """
    # Opened before the search: the commit itself searches no further back than its base.
    session = repository.writable_session(branch)
    earlier = find_earlier(repository, branch, options.attempt)
    if earlier is not None and earlier.answers:
        return _written(earlier, branch)
    if earlier is not None and appends:
        raise SessionError(
            f"this task committed {earlier} before and would append the same data again: set "
            "`region` to where it belongs, which also makes the task repeatable; or reset the "
            "branch to the parent of that snapshot first; or keep what is there with "
            'on_rerun="skip"'
        )
    result = write(session)
    if not session.has_uncommitted_changes:
        log.info("The function wrote nothing: there is nothing to commit")
        head = repository.lookup_snapshot(session.snapshot_id)
        return outcome(head, branch, is_new=False, committed=False, result=result)
    info = _commit(repository, session, _keeping(options, kept_result(result)), earlier)
    if attempt_that_made(info) != options.attempt.number:
        # Another attempt was faster, and its commit is the one that counts.
        return _written(EarlierCommit.of_this_run(info), branch)
    return outcome(info, branch, supersedes=_id_of(earlier), committed=True, result=result)


def rewrite_manifests(repository: Repository, branch: str, options: CommitOptions) -> Outcome:
    """Rewrite all manifests of a branch, unless an earlier attempt of the run already did."""
    earlier = find_earlier(repository, branch, options.attempt)
    if earlier is not None and earlier.answers:
        return _repeated(earlier, branch)
    identity = repository.rewrite_manifests(
        options.message, branch=branch, metadata=_signed(options, earlier)
    )
    info = repository.lookup_snapshot(identity)
    return outcome(info, branch, supersedes=_id_of(earlier))


def compact(
    repository: Repository,
    branch: str,
    options: CommitOptions,
    *,
    rules: CompactionRules | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Pack the small chunks of a branch, unless an earlier attempt of the run did.

    A dry run, and a branch without anything to pack, have no `snapshot_id`.
    """
    from airflow_provider_icechunk.engine.maintenance.compact import counts_of

    earlier = None if dry_run else find_earlier(repository, branch, options.attempt)
    if earlier is not None and earlier.answers:
        return _repeated(earlier, branch, **counts_of(earlier.info.metadata))
    done = repository.compact(
        branch,
        rules=rules,
        message=options.message,
        metadata=_signed(options, earlier),
        dry_run=dry_run,
    )
    if done.snapshot_id is None:
        nothing = {"snapshot_id": None, "parent_id": None, "branch": branch}
        return Outcome({**nothing, **done.counts()}, is_new=False)
    info = repository.lookup_snapshot(done.snapshot_id)
    return outcome(info, branch, supersedes=_id_of(earlier), **done.counts())


def abort_session(repository: Repository, work: WorkUnit) -> int:
    """Delete the fragments of a session and its lease; returns how many fragments there were.

    Where they are follows from the job's name, never from a key that came with the description.
    """
    from airflow_provider_icechunk.engine.workers.jobs import JobFolder

    folder = JobFolder(repository.storage, work.job)
    writers = folder.writers()
    repository.storage.delete([listed.key for listed in repository.storage.scan(folder.prefix)])
    held = repository.core.leasehold()
    held.serves(work.tenancy)
    held.release()
    return len(writers)


def outcome(
    info: SnapshotInfo,
    branch: str,
    *,
    supersedes: str | None = None,
    is_new: bool = True,
    **more: Any,
) -> Outcome:
    """A snapshot as tasks return it; `labels` are those of growing dimensions that it wrote."""
    from airflow_provider_icechunk.engine.commit.records import read_record

    result = {"snapshot_id": info.id, "parent_id": info.parent_id, "branch": branch, **more}
    record = read_record(info.metadata)
    if record is not None and record.labels:
        result["labels"] = {dim: list(labels) for dim, labels in record.labels.items()}
    if supersedes is not None:
        result["supersedes"] = supersedes
    return Outcome(result, is_new)


def superseding(metadata: Mapping[str, Any], earlier: EarlierCommit | None) -> dict[str, Any]:
    """Metadata of a commit, including the one it supersedes."""
    if earlier is None:
        return dict(metadata)
    task = {**metadata[METADATA_KEY], SUPERSEDES_KEY: earlier.info.id}
    return {**metadata, METADATA_KEY: task}


def append_refusal(earlier: EarlierCommit) -> SessionError:
    """Why a write that appends to an array cannot run again."""
    return SessionError(
        f"this task committed {earlier} before and would append the same files again, because "
        "`start` is not given: set `start` to where they belong, which also makes the task "
        "repeatable; or reset the branch to the parent of that snapshot first; or keep what is "
        'there with on_rerun="skip"'
    )


def _refuse_second_append(folder: JobFolder, earlier: EarlierCommit) -> None:
    for writer in folder.reporters():
        report = folder.result(writer)
        if report is not None and report.get("appends"):
            raise append_refusal(earlier)


def _commit(
    repository: Repository, session: Session, options: CommitOptions, earlier: EarlierCommit | None
) -> SnapshotInfo:
    """Commit what an attempt did, superseding the commit of an earlier run of the task.

    If another attempt of the same run was faster, returns its commit.
    """
    attempt = options.attempt
    branch, base = session.branch, session.snapshot_id
    identity = session.commit(
        options.message,
        metadata=superseding(options.metadata, earlier),
        rebase_with=options.solver,
        token=attempt.token,
        replaces=attempt.made,
    )
    info = repository.lookup_snapshot(identity)
    made_by = attempt_that_made(info)
    if made_by == attempt.number:
        log.info("Committed snapshot %s to %s", info.id, branch)
        if info.parent_id != base:
            log.info(
                "Rebased onto %s: others committed since the session was opened", info.parent_id
            )
    else:
        log.info("Attempt %s committed snapshot %s while this one worked", made_by, info.id)
    return info


def _keeping(options: CommitOptions, answer: Mapping[str, Any]) -> CommitOptions:
    """The same, with the return value for an attempt that finds the commit."""
    task = {**options.metadata[METADATA_KEY], **answer}
    return replace(options, metadata={**options.metadata, METADATA_KEY: task})


def _signed(options: CommitOptions, earlier: EarlierCommit | None) -> dict[str, Any]:
    """Metadata by which later attempts find a commit made without a session."""
    from airflow_provider_icechunk.engine.history.ancestry import TOKEN_KEY

    return {**superseding(options.metadata, earlier), TOKEN_KEY: options.attempt.token}


def _repeated(earlier: EarlierCommit, branch: str, **more: Any) -> Outcome:
    """What the attempt that made a commit returned; a commit of an earlier run is not new."""
    return outcome(
        earlier.info, branch, supersedes=earlier.supersedes, is_new=not earlier.is_known, **more
    )


def _replayed(repository: Repository, earlier: EarlierCommit, branch: str) -> Outcome:
    chunks = earlier.chunks
    if chunks is None:
        chunks = _chunks_since_parent(repository, earlier.info)
    return _repeated(earlier, branch, **_answer(chunks, earlier.result))


def _answer(chunks: int, returned: Any) -> dict[str, Any]:
    """The rest of a session's outcome besides the snapshot: `result` only if there is one."""
    return {"chunks": chunks} if returned is None else {"chunks": chunks, "result": returned}


def _chunks_since_parent(repository: Repository, info: SnapshotInfo) -> int:
    """For commits of earlier releases, which do not say it; more if the parent has expired."""
    assert info.parent_id is not None
    diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
    return sum(len(rows) for rows in diff.chunk_columns.values())


def _written(earlier: EarlierCommit, branch: str) -> Outcome:
    return _repeated(earlier, branch, committed=not earlier.is_known, result=earlier.result)


def _id_of(earlier: EarlierCommit | None) -> str | None:
    return None if earlier is None else earlier.info.id


def _base_of(work: WorkUnit) -> str:
    """The base snapshot of the session, as text."""
    from airflow_provider_icechunk.engine.format.generation import Generation
    from airflow_provider_icechunk.engine.format.ids import format_id

    return format_id(Generation(work.generation), work.base)
