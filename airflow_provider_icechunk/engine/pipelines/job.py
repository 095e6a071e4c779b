"""The beginning and the end of a job that several attempts may run.

The record of a job names the base snapshot of its attempts. It is in the job's folder and is
written once: two attempts that begin at the same moment both continue with the record of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice, takewhile
from typing import Any

import numpy as np

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector, ConflictSolver
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import ChunkId, format_id
from airflow_provider_icechunk.engine.history.ancestry import find_token
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Lost
from airflow_provider_icechunk.engine.workers.codec import Fragment
from airflow_provider_icechunk.engine.workers.jobs import job_key
from airflow_provider_icechunk.engine.workers.merge import OnOverlap
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import FormatError, IcechunkError, InvalidInputError

REUSABLE_FOR = timedelta(hours=18)
"""How long the work of an earlier attempt may be used: less than the minimum age for collection."""
_LOOK_BACK = 100
"""Commits that are searched for the job if its record is gone."""

Prepare = Callable[[Session], None]
"""Creates, resizes or describes arrays in the session; these changes are part of the commit."""


@dataclass(frozen=True, slots=True)
class BegunJob:
    """A job that may write."""

    work: WorkUnit
    committed_as: str | None
    """The snapshot that an earlier attempt committed, if there is one."""


def begin_job(
    repository: Repository, *, job: str, branch: str, prepare: Prepare | None = None
) -> BegunJob:
    """Begin a job, or resume it where an attempt left it."""
    if not job:
        raise InvalidInputError("a job needs an id that is the same for every attempt")
    known = _recorded(repository, job)
    if known is not None and known.branch != branch:
        raise InvalidInputError(f"the job {job!r} writes to branch {known.branch!r} already")
    base = None if known is None else format_id(Generation(known.generation), known.base)
    done = _find_commit(repository, branch, job, base)
    if done is not None and known is not None:
        return BegunJob(known, done)
    if known is not None and _is_fresh(repository, job) and _is_same(repository, known, prepare):
        return BegunJob(known, None)
    if done is not None:
        prepare = None
    return BegunJob(_begin(repository, branch, job, prepare, replacing=known is not None), done)


def commit_fragments(
    repository: Repository,
    work: WorkUnit,
    fragments: Sequence[Fragment],
    *,
    message: str,
    metadata: Mapping[str, Any] | None = None,
    on_overlap: OnOverlap = "error",
    rebase_with: ConflictSolver | None = None,
) -> tuple[str, int]:
    """Commit what the tasks of a job wrote; returns the snapshot and the number of chunks.

    If another attempt commits first, returns its snapshot.
    """
    session = repository.resume(work)
    chunks = session.merge_fragments(fragments, on_overlap=on_overlap)
    identity = session.commit(
        message,
        metadata={**(metadata or {}), "spark.job_id": work.job},
        rebase_with=rebase_with or ConflictDetector(),
        token=work.job,
    )
    return identity, chunks


def delete_chunk_files(
    repository: Repository, work: WorkUnit | Mapping[str, Any], fragments: Iterable[Fragment]
) -> None:
    """Delete the chunk files of fragments for `work`. Only if nobody has committed or ever will."""
    core = repository.fork(work).tree.core
    names = (refs.native_ids() for fragment in fragments for refs in fragment.arrays.values())
    ids = {bytes(identity) for column in names for identity in np.unique(column, axis=0)}
    keys = sorted(core.refs.layout.chunk(ChunkId(one)) for one in ids)
    core.storage.delete(keys, immutable=True)


def _record_key(job: str) -> str:
    return f"{job_key(job)}/job.json"


def _recorded(repository: Repository, job: str) -> WorkUnit | None:
    stored = repository.storage.get(_record_key(job))
    if stored is None:
        return None
    try:
        unit = WorkUnit.from_json(stored.data.decode())
    except (IcechunkError, UnicodeDecodeError, RecursionError):
        raise FormatError(f"{_record_key(job)}: not the record of a job") from None
    if unit.job != job:
        raise FormatError(f"{_record_key(job)}: this is the record of another job")
    return unit


def _is_fresh(repository: Repository, job: str) -> bool:
    listed = repository.storage.head(_record_key(job))
    return listed is not None and listed.created_at > repository.storage.now() - REUSABLE_FOR


def _is_same(repository: Repository, work: WorkUnit, prepare: Prepare | None) -> bool:
    """Whether `prepare` turns the base into the documents in the record."""
    session = repository.resume(replace(work, staged=work.base))
    if prepare is not None:
        prepare(session)
    now = {node.path: node.user_data for node in session.tree.nodes()}
    recorded = repository.fork(work).tree.nodes()
    return now == {node.path: node.user_data for node in recorded}


def _begin(
    repository: Repository, branch: str, job: str, prepare: Prepare | None, *, replacing: bool
) -> WorkUnit:
    """Open a session, apply the metadata changes and record it; the first of two attempts wins."""
    session = repository.writable_session(branch)
    if prepare is not None:
        prepare(session)
    unit = session.work_unit(job)
    outcome = repository.storage.put(
        _record_key(job),
        json.dumps(unit.to_json(), sort_keys=True).encode(),
        expect=Anything() if replacing else Absent(),
    )
    if isinstance(outcome, Lost):
        earlier = _recorded(repository, job)
        assert earlier is not None
        return earlier
    repository.storage.settle()
    return unit


def _find_commit(repository: Repository, branch: str, job: str, base: str | None) -> str | None:
    """The commit that an attempt of the job made since the job's base, if there is one."""
    history = repository.ancestry(branch=branch)
    if base is None:
        history = islice(history, _LOOK_BACK)
    found = find_token(takewhile(lambda info: info.id != base, history), job)
    return None if found is None else found.id
