"""Snapshots that nothing names, and a collector, each paused anywhere: what is used is whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from support.arrays import put
from support.long_work import DAY, begin, begin_again, collect, is_whole, opened, sound
from support.maintenance import GENERATIONS, Clock, chunk, everything, snapshot_key, write
from support.stepping import Actor, Gate, Played, play_all

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import ByteRange, Fetched, Storage
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    Kind,
    MaintenanceError,
    NotFoundError,
    SessionError,
)
from airflow_provider_icechunk.testing.storages import WrappedStorage

Use = Callable[[Storage], object]
"""What another process does with the outcome, later."""
Work = Callable[[Storage, Clock], Callable[[], Use]]
"""Prepares something through a storage and returns the act that is paused."""

COLLECTED = (Kind.CHUNKS_COLLECTED, Kind.SNAPSHOT_NOT_FOUND)


def borrowing(repo: Repository, clock: Clock) -> Session:
    """A session with what a commit of a branch did that is deleted."""
    first = repo.lookup_branch("main")
    repo.create_branch("side", first)
    made = write(repo, "side", 3, "on side")
    clock.wait(hours=30)
    session = repo.session_with_changes("main", from_snapshot_id=first, to_snapshot_id=made)
    repo.delete_branch("side")
    return session


def handed_out(storage: Storage, clock: Clock) -> Callable[[], Use]:
    session = borrowing(opened(storage, clock), clock)

    def act() -> Use:
        work = session.work_unit("a job").to_json()
        return lambda left: opened(left, clock).resume(work).commit("in another process")

    return act


def forked(storage: Storage, clock: Clock) -> Callable[[], Use]:
    session = borrowing(opened(storage, clock), clock)

    def act() -> Use:
        fork = session.fork()
        put(fork, "/a", (4,), chunk("by a worker"))

        def use(left: Storage) -> None:
            del left
            session.merge(fork)
            session.commit("with what workers wrote")

        return use

    return act


def flushed(storage: Storage, clock: Clock) -> Callable[[], Use]:
    session = borrowing(opened(storage, clock), clock)

    def act() -> Use:
        loose = session.flush("loose")
        return lambda left: opened(left, clock).create_branch("named", loose)

    return act


def flushed_onto_a_deleted_branch(storage: Storage, clock: Clock) -> Callable[[], Use]:
    repo = opened(storage, clock)
    repo.create_branch("side", repo.lookup_branch("main"))
    for place in (3, 4):
        clock.wait(hours=1)
        write(repo, "side", place, f"on side {place}")
    clock.wait(hours=30)
    session = repo.writable_session("side")
    put(session, "/a", (5,), chunk("loose"))
    repo.delete_branch("side")

    def act() -> Use:
        loose = session.flush("loose")

        def use(left: Storage) -> None:
            late = opened(left, clock)
            late.create_branch("named", loose)
            assert [one.message for one in late.ancestry(branch="named")][:4] == [
                "loose",
                "on side 4",
                "on side 3",
                "first",
            ]

        return use

    return act


def naming(name: Callable[[Repository, str], object]) -> Work:
    """Names a snapshot that nothing names any more."""

    def work(storage: Storage, clock: Clock) -> Callable[[], Use]:
        repo = opened(storage, clock)
        repo.create_branch("side", repo.lookup_branch("main"))
        write(repo, "side", 3, "on side")
        made = write(repo, "side", 4, "on side too")
        repo.create_branch("other", repo.lookup_branch("main"))
        repo.delete_branch("side")
        clock.wait(hours=30)

        def act() -> Use:
            name(repo, made)
            return lambda left: None

        return act

    work.__name__ = name.__name__
    return work


@naming
def named_by_a_new_branch(repo: Repository, made: str) -> None:
    repo.create_branch("named", made)


@naming
def named_by_a_tag(repo: Repository, made: str) -> None:
    repo.create_tag("named", made)


@naming
def named_by_a_branch(repo: Repository, made: str) -> None:
    repo.reset_branch("other", made)


NAMINGS: list[Work] = [named_by_a_new_branch, named_by_a_tag, named_by_a_branch]
WORKS: list[Work] = [handed_out, forked, flushed, flushed_onto_a_deleted_branch, *NAMINGS]


@pytest.mark.parametrize("begins", ["worker", "collector"])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
@pytest.mark.parametrize(
    ("generation", "hours", "step"),
    [
        ("1", 0, 9),
        *((generation, 0, 37) for generation in GENERATIONS[1:-1]),
        ("draft", 0, 97),
        *(
            pytest.param(generation, hours, 1, marks=pytest.mark.long)
            for generation in GENERATIONS
            for hours in (0, 25)
        ),
    ],
)
def test_what_was_stored_and_not_refused_can_be_used_wherever_the_collector_was_paused(
    generation: str, hours: int, step: int, work: Work, begins: str
) -> None:
    def play(first: int, second: int) -> Played:
        return interleave(generation, work, hours, (first, second), begins)

    outcomes = play_all(play, step, 1 + step // 5)
    print(dict(outcomes))
    assert sum(outcomes.values()) > 10 / step**2
    if hours == 0:
        assert outcomes["used"]


def test_a_flush_that_stalled_for_a_day_leaves_no_listed_snapshot_without_its_file() -> None:
    """Such a one would stop every later collection."""
    for stalled in range(2, 8):
        for paused in range(18, 32, 2):
            interleave("2", flushed, 25, (stalled, paused), "worker")


@pytest.mark.parametrize("work", NAMINGS, ids=lambda work: work.__name__)
def test_a_name_that_was_taken_back_leaves_no_listed_snapshot_without_its_file(work: Work) -> None:
    """In `draft` a name lists what it reaches; listed without a file, it stops every collection."""
    for paused in range(33, 36):
        for stalled in range(3, 7):
            interleave("draft", work, 0, (paused, stalled), "collector")


def error_of(use: Use, storage: Storage) -> IcechunkError | None:
    try:
        use(storage)
    except IcechunkError as error:
        return error
    return None


def interleave(
    generation: str, work: Work, hours: int, calls: tuple[int, int], begins: str
) -> Played:
    """One up to a call, a stall, the other up to a call, both to their ends, and then the use."""
    storage, clock = begin_again(generation)
    working, collecting = Gate(storage), Gate(storage)
    act = work(working, clock)
    keeper = opened(collecting, clock)
    limit = clock.now - DAY + timedelta(hours=hours if begins == "worker" else 0)
    outcome: list[Use] = []
    worker = Actor(working, lambda: outcome.append(act()))
    sweep = Actor(collecting, lambda: keeper.garbage_collect(limit))
    one, other = (worker, sweep) if begins == "worker" else (sweep, worker)
    goes_on = one.advance(calls[0])
    clock.wait(hours=hours)
    other.advance(calls[1])
    one.finish()
    other.finish()
    assert sweep.error is None or isinstance(sweep.error, MaintenanceError), sweep.error
    refused = worker.error or error_of(outcome[0], storage)
    if refused is not None:
        assert isinstance(refused, IcechunkError), (calls, refused)
        assert refused.kind in COLLECTED, (calls, refused)
        assert hours or worker.error, (calls, refused)
    assert is_whole(storage), calls
    collect(storage, clock)
    assert is_whole(storage), calls
    outcome = "used" if refused is None else "refused"
    return Played(outcome, not goes_on, other.next_pause(one))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_borrowed_changes_that_were_handed_out_outlive_what_they_were_borrowed_from(
    generation: str,
) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    session = borrowing(opened(storage, clock), clock)
    work = session.work_unit("a job")
    collect(storage, clock)
    assert opened(storage, clock).resume(work.to_json()).has_uncommitted_changes
    session.commit("the snapshot that was staged kept the chunks")
    assert sound(storage)
    assert "/a[3]" in everything(storage)["branch main"]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_borrowed_changes_cannot_be_handed_out_once_they_were_collected(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    session = borrowing(opened(storage, clock), clock)
    collect(storage, clock)
    with pytest.raises(SessionError, match="has been collected along with their chunks") as caught:
        session.work_unit("a job")
    assert caught.value.kind is Kind.CHUNKS_COLLECTED


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_flushed_snapshot_keeps_the_history_below_it_while_it_is_young(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    use = flushed_onto_a_deleted_branch(storage, clock)()
    collect(storage, clock)
    use(storage)
    collect(storage, clock)
    assert sound(storage)
    assert {"/a[3]", "/a[4]", "/a[5]"} <= everything(storage)["branch named"].keys()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_flushed_snapshot_that_nobody_named_goes_with_its_history(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    flushed_onto_a_deleted_branch(storage, clock)()
    clock.wait(days=2)
    summary = opened(storage, clock).garbage_collect(clock.now - DAY)
    assert summary.snapshots_deleted == 3
    assert summary.chunks_deleted == 3
    assert sound(storage)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_snapshot_that_is_put_back_while_it_is_looked_for_is_found(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    first = opened(storage, clock).lookup_branch("main")
    key = snapshot_key(storage, first)
    found: list[str] = []

    def look() -> None:
        repo = opened(Blinking(storage, key), clock)
        with suppress(NotFoundError):
            found.append(repo.readonly_session(snapshot_id=first).snapshot_id)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(60)
    assert not looking.is_alive()
    # Only `alpha` looks a second time, because its early files have other names than their ids.
    assert found == ([first] if generation == "alpha" else [])


class Blinking(WrappedStorage):
    """Misses one object the first time that it is read."""

    def __init__(self, inner: Storage, key: str) -> None:
        super().__init__(inner)
        self._missed = key

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        if key == self._missed:
            self._missed = ""
            return None
        return super().get(key, byte_range)
