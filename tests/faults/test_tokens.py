"""A token makes a commit happen once, however often and by however many it is tried."""

from __future__ import annotations

import threading

import pytest
from support.arrays import GROUP, array, contents, put
from support.maintenance import CRASHES, GENERATIONS

from airflow_provider_icechunk.engine.commit.commit import Committer
from airflow_provider_icechunk.engine.commit.conflicts import (
    BasicConflictSolver,
    ConflictDetector,
    VersionSelection,
)
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.history.ancestry import TOKEN_KEY
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.testing.storages import Crash, CrashingStorage


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def storage(generation: str) -> MemoryStorage:
    storage = MemoryStorage()
    session = Repository.create(storage, spec_version=generation).writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([64], [1]))
    session.commit("start")
    return storage


def attempt(storage: MemoryStorage) -> Session:
    session = Repository.open(storage).writable_session("main")
    put(session, "/a", (0,), b"task result")
    return session


def messages(storage: MemoryStorage) -> list[str]:
    return [info.message for info in Repository.open(storage).ancestry(branch="main")]


def test_a_second_attempt_from_the_same_base_returns_the_first_ones_snapshot(
    storage: MemoryStorage,
) -> None:
    first, second = attempt(storage), attempt(storage)
    landed = first.commit("task", token="dag/run/task")
    objects = len(storage.objects)
    assert second.commit("task", token="dag/run/task") == landed
    assert len(storage.objects) == objects, "nothing was written"
    assert messages(storage).count("task") == 1
    assert Repository.open(storage).lookup_snapshot(landed).metadata[TOKEN_KEY] == "dag/run/task"


def test_an_attempt_finds_its_commit_below_those_of_others(storage: MemoryStorage) -> None:
    first, second = attempt(storage), attempt(storage)
    landed = first.commit("task", token="t")
    for number in range(3):
        other = Repository.open(storage).writable_session("main")
        put(other, "/a", (10 + number,), b"other")
        other.commit("other")
    assert second.commit("task", token="t", rebase_with=BasicConflictSolver()) == landed
    assert messages(storage).count("task") == 1


@pytest.mark.parametrize("behind", [1, 2])
def test_an_attempt_that_lands_between_the_look_for_the_token_and_the_rebase_is_found(
    storage: MemoryStorage, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a solver that would write over what the other attempt wrote."""
    first, second = attempt(storage), attempt(storage)
    solver = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
    look = Committer._find_token
    looks: list[str] = []

    def look_and_be_overtaken(
        committer: Committer, head: SnapshotId | None, token: str | None
    ) -> Snapshot | None:
        found = look(committer, head, token)
        if committer is second._committer:
            looks.append("second")
            if len(looks) == behind:
                looks.append(first.commit("task", token="t", rebase_with=solver))
            elif len(looks) < behind:
                other(storage)
        return found

    other(storage)
    monkeypatch.setattr(Committer, "_find_token", look_and_be_overtaken)
    landed = second.commit("task", token="t", rebase_with=solver)
    assert landed in looks
    assert messages(storage).count("task") == 1


def other(storage: MemoryStorage) -> None:
    session = Repository.open(storage).writable_session("main")
    put(session, "/a", (30,), str(len(messages(storage))).encode())
    session.commit("other")


def test_other_tokens_are_other_commits(storage: MemoryStorage) -> None:
    first, second = attempt(storage), attempt(storage)
    one = first.commit("one", token="1")
    two = second.commit("two", token="2", rebase_with=BasicConflictSolver())
    assert one != two
    assert messages(storage)[:2] == ["two", "one"]


def test_racing_attempts_with_one_token_give_one_snapshot(storage: MemoryStorage) -> None:
    for round_ in range(20):
        token = f"token {round_}"
        sessions = [attempt(storage) for _ in range(4)]
        results: list[str] = []
        barrier = threading.Barrier(len(sessions))

        def run(
            session: Session,
            barrier: threading.Barrier = barrier,
            token: str = token,
            results: list[str] = results,
        ) -> None:
            barrier.wait()
            results.append(session.commit(token, token=token, rebase_with=BasicConflictSolver()))

        threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4
        assert len(set(results)) == 1
    assert [m for m in messages(storage) if m.startswith("token")] == [
        f"token {number}" for number in reversed(range(20))
    ]


@pytest.mark.parametrize(("generation", "step"), CRASHES)
def test_an_attempt_killed_anywhere_and_tried_again_commits_once(
    storage: MemoryStorage, step: int
) -> None:
    for call in range(0, 40, step):
        for after in (False, True):
            base = Repository.open(storage).lookup_branch("main")
            token = f"{call}-{after}"
            crashing = CrashingStorage(storage, call, after)
            survived = True
            try:
                _commit_with(crashing, token, base)
            except Crash:
                survived = False
            _commit_with(storage, token, base)
            assert messages(storage).count(token) == 1
            if survived:
                assert call > 5
                return
    pytest.fail("the commit never got through")


def _commit_with(storage: MemoryStorage | CrashingStorage, token: str, base: str) -> None:
    repo = Repository.open(storage)
    session = repo.writable_session("main")
    session.tree.base = repo.readonly_session(snapshot_id=base).tree.base
    put(session, "/a", (1,), token.encode())
    session.commit(token, token=token, rebase_with=BasicConflictSolver())


def test_a_conflict_is_still_a_conflict(storage: MemoryStorage) -> None:
    from airflow_provider_icechunk.exceptions import RebaseFailedError

    first, second = attempt(storage), attempt(storage)
    first.commit("one", token="1")
    with pytest.raises(RebaseFailedError) as caught:
        second.commit("two", token="2", rebase_with=ConflictDetector())
    assert caught.value.conflicts[0].conflicted_chunks == [[0]]
    assert contents(second)["/a[0]"] == b"task result"
