"""Commits: many in a row, one that must be rebased over others, one with many new arrays."""

from __future__ import annotations

from typing import Any

from benchmarks.model import OFFICIAL_1, OFFICIAL_2, OURS, OURS_UNSYNCED, Case, Goal, Workload
from benchmarks.workloads.arrays import make_array, noise, open_array

CHUNK = 4096


def _repository_with_array(case: Case) -> Any:
    repository = case.create()
    session = repository.writable_session("main")
    make_array(session.store, case.size + 1, CHUNK)
    session.commit("array")
    return repository


def _commit_each(case: Case, repository: Any, branch: str = "main") -> None:
    data = noise(CHUNK)
    for number in range(case.size):
        session = repository.writable_session(branch)
        start = number * CHUNK
        open_array(session.store, mode="r+")[start : start + CHUNK] = data
        session.commit(f"chunk {number}")


def _history_is_complete(case: Case, repository: Any, result: None) -> None:
    del repository, result
    # The first snapshot and the one with the array come before.
    assert len(list(case.open().ancestry(branch="main"))) == case.size + 2


def _others_committed(case: Case) -> None:
    repository = _repository_with_array(case)
    repository.create_tag("base", repository.lookup_branch("main"))
    repository.create_branch("others", repository.lookup_branch("main"))
    _commit_each(case, repository, "others")


def _session_left_behind(case: Case) -> Any:
    repository = case.open()
    repository.reset_branch("main", repository.lookup_tag("base"))
    session = repository.writable_session("main")
    start = case.size * CHUNK
    open_array(session.store, mode="r+")[start : start + CHUNK] = noise(CHUNK)
    repository.reset_branch("main", repository.lookup_branch("others"))
    # In a new process, nothing that the others wrote is cached.
    return session


def _commit_rebasing(case: Case, session: Any) -> str:
    return str(session.commit("late", rebase_with=case.library.ConflictDetector()))


def _session_with_arrays(case: Case) -> Any:
    session = case.create().writable_session("main")
    data = noise(CHUNK)
    for number in range(case.size):
        make_array(session.store, 1, CHUNK, f"array-{number:04}")[:] = data
    return session


def _commit(case: Case, session: Any) -> str:
    del case
    return str(session.commit("all"))


WORKLOADS = (
    Workload(
        name="commits",
        title="{size} commits of one chunk, one after the other",
        sizes=(10, 30, 100),
        goals=(Goal(1.2), Goal(1.0, ours=OURS_UNSYNCED)),
        # The others do not wait for the disk.
        at_any_size=1.2,
        setup=_repository_with_array,
        run=_commit_each,
        check=_history_is_complete,
        contenders=(OURS, OURS_UNSYNCED, OFFICIAL_1, OFFICIAL_2),
    ),
    Workload(
        name="rebase",
        title="commit after a rebase over {size} commits",
        sizes=(10, 30, 100),
        goals=(Goal(1.0),),
        prepare=_others_committed,
        setup=_session_left_behind,
        run=_commit_rebasing,
        repeatable=True,
    ),
    Workload(
        name="new-arrays",
        title="commit {size} new arrays of one chunk each",
        sizes=(20, 100, 500),
        goals=(Goal(0.5),),
        setup=_session_with_arrays,
        run=_commit,
    ),
)
