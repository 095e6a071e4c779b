"""Limits of a commit: how often, how long, and by which clock."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import icechunk
import pytest
from support.arrays import GROUP, array, put

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import (
    Data,
    Exactly,
    Expectation,
    PutOutcome,
    Storage,
)
from airflow_provider_icechunk.engine.storage.local import locks
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    Kind,
    StorageError,
    UnsafeStorageError,
)
from airflow_provider_icechunk.testing.storages import WrappedStorage

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass
class Time:
    """A clock that only sleeping moves."""

    moment: datetime = NOON
    skew: timedelta = timedelta(0)
    pauses: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    def world(self, seed: int = 0) -> World:
        jitter = random.Random(seed).random
        return World(now=self.host, sleep=self.sleep, monotonic=self.monotonic, jitter=jitter)

    def store(self) -> datetime:
        return self.moment + timedelta(seconds=self.elapsed)

    def host(self) -> datetime:
        return self.store() + self.skew

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.elapsed += seconds

    def monotonic(self) -> float:
        return self.elapsed


class Contended(WrappedStorage):
    """Before every move of the branch somebody else moves it."""

    def __init__(self, inner: Storage, somebody: Repository) -> None:
        super().__init__(inner)
        self._somebody = somebody
        self.moves = 0
        self.calm = False

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        moves = key.startswith("refs/branch.") and isinstance(expect, Exactly)
        if moves and not self.calm:
            self.moves += 1
            theirs = self._somebody.writable_session("main")
            put(theirs, "/a", (self.moves % 50,), str(self.moves).encode())
            theirs.commit("somebody")
        return super().put(key, data, expect=expect, metadata=metadata, content_type=content_type)


def prepared(storage: Storage, world: World) -> Repository:
    repo = Repository.create(storage, world=world)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([100], [1]))
    session.commit("start")
    return repo


def contended(time: Time, seed: int = 0) -> tuple[Session, Contended]:
    inner = MemoryStorage(clock=time.store)
    somebody = prepared(inner, time.world())
    storage = Contended(inner, somebody)
    session = Repository.open(storage, world=time.world(seed)).writable_session("main")
    put(session, "/a", (99,), b"ours")
    return session, storage


def test_a_commit_without_a_solver_gives_up_at_the_first_lost_race() -> None:
    time = Time()
    session, storage = contended(time)
    with pytest.raises(ConflictError) as caught:
        session.commit("ours")
    assert caught.value.kind is Kind.CONFLICT
    assert (storage.moves, time.pauses) == (1, [])
    assert session.has_uncommitted_changes


@pytest.mark.parametrize("tries", [1, 3, 12])
def test_a_commit_is_tried_again_as_often_as_asked_and_says_how_often(tries: int) -> None:
    time = Time()
    session, storage = contended(time)
    with pytest.raises(ConflictError, match=f"moved {tries + 1} times") as caught:
        session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=tries)
    assert caught.value.kind is Kind.ATTEMPTS_EXHAUSTED
    assert storage.moves == tries + 1
    assert len(time.pauses) == tries


@pytest.mark.parametrize("seconds", [0.5, 3.0, 20.0])
def test_a_commit_is_tried_again_for_as_long_as_asked(seconds: float) -> None:
    time = Time()
    session, storage = contended(time)
    with pytest.raises(ConflictError) as caught:
        session.commit("ours", rebase_with=ConflictDetector(), patience=seconds)
    assert caught.value.kind is Kind.ATTEMPTS_EXHAUSTED
    assert time.elapsed == pytest.approx(seconds)
    assert storage.moves > 5


def test_a_commit_gives_up_in_the_end_though_nobody_set_a_limit() -> None:
    time = Time()
    session, storage = contended(time)
    with pytest.raises(ConflictError) as caught:
        session.commit("ours", rebase_with=ConflictDetector())
    assert caught.value.kind is Kind.ATTEMPTS_EXHAUSTED
    assert storage.moves <= 1001
    assert time.elapsed <= 600.0
    assert session.has_uncommitted_changes


def test_pauses_grow_to_a_bound_and_are_spread_over_their_whole_length() -> None:
    spread: list[list[float]] = []
    for seed in range(20):
        time = Time()
        session, _ = contended(time, seed)
        with pytest.raises(ConflictError):
            session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=12)
        spread.append(time.pauses)
    for number, pauses in enumerate(zip(*spread, strict=True)):
        longest = 0.005 * (number + 1)
        assert all(0 <= pause < longest for pause in pauses)
        assert min(pauses) < longest / 4
        assert max(pauses) > longest * 3 / 4


def test_pauses_follow_how_long_a_try_takes_up_to_a_bound() -> None:
    time = Time()
    world = replace(time.world(), jitter=lambda: 1.0)
    backoff = Backoff(7, first_pause=0.005, longest_pause=2.0, by_effort=True, world=world)
    for _ in backoff.attempts():
        time.sleep(0.5)
    assert time.pauses[1::2] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_a_commit_after_many_lost_races_lands_once_they_stop() -> None:
    time = Time()
    session, storage = contended(time)
    with pytest.raises(ConflictError):
        session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=3)
    storage.calm = True
    landed = session.commit("ours", rebase_with=ConflictDetector())
    repo = Repository.open(storage)
    assert repo.lookup_branch("main") == landed
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert messages.count("ours") == 1
    assert messages.count("somebody") == storage.moves


@pytest.mark.parametrize("seconds", [0, 599, -599, 600, -600])
def test_a_host_clock_within_ten_minutes_of_the_stores_may_commit(seconds: int) -> None:
    time = Time(skew=timedelta(seconds=seconds))
    repo = prepared(MemoryStorage(clock=time.store), time.world())
    assert len(list(repo.ancestry(branch="main"))) == 2


@pytest.mark.parametrize("seconds", [601, -601, 3600, -3600])
def test_a_host_clock_further_away_is_refused_before_anything_is_written(seconds: int) -> None:
    time = Time()
    storage = MemoryStorage(clock=time.store)
    prepared(storage, time.world())
    time.skew = timedelta(seconds=seconds)
    session = Repository.open(storage, world=time.world()).writable_session("main")
    put(session, "/a", (0,), b"x")
    before = storage.objects
    with pytest.raises(StorageError, match="clock") as caught:
        session.commit("skewed")
    assert caught.value.kind is Kind.CLOCK_SKEW
    assert storage.objects == before
    time.skew = timedelta(0)
    session.commit("with the clock set")


def test_a_clock_that_is_set_while_a_repository_is_open_is_noticed() -> None:
    time = Time()
    repo = prepared(MemoryStorage(clock=time.store), time.world())
    time.skew = timedelta(seconds=-601)
    session = repo.writable_session("main")
    put(session, "/a", (0,), b"x")
    with pytest.raises(StorageError, match="clock"):
        session.commit("skewed")


def test_times_of_commits_never_go_back_even_if_the_clock_does(tmp_path: Path) -> None:
    world = World(now=lambda: datetime.now(UTC) + offset)
    offset = timedelta(seconds=590)
    repo = prepared(LocalStorage(tmp_path / "repo"), world)
    for seconds in (500, -500, 0, -590, 100):
        offset = timedelta(seconds=seconds)
        session = repo.writable_session("main")
        put(session, "/a", (0,), str(seconds).encode())
        session.commit("step")
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    for history in (repo.ancestry(branch="main"), official.ancestry(branch="main")):
        times = [info.written_at for info in history][:-1]
        assert len(times) == 6
        assert all(later > earlier for later, earlier in pairwise(times))


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that answers every lock with `No locks available`."""

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_a_folder_without_locks_is_refused_for_a_new_repository(tmp_path: Path) -> None:
    with pytest.raises(UnsafeStorageError, match="no file locks"):
        Repository.create(LocalStorage(tmp_path / "repo"))
    assert not Repository.exists(LocalStorage(tmp_path / "repo"))


def test_a_folder_that_lost_its_locks_is_refused_for_commits_but_can_be_read(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prepared(LocalStorage(tmp_path), World())
    request.getfixturevalue("no_locks")
    session = Repository.open(LocalStorage(tmp_path)).writable_session("main")
    put(session, "/a", (0,), b"x")
    head = session.snapshot_id
    with pytest.raises(UnsafeStorageError, match="no file locks"):
        session.commit("refused")
    assert Repository.open(LocalStorage(tmp_path)).lookup_branch("main") == head
