"""Committer and collector, each paused anywhere: no acknowledged commit dangles."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.arrays import put
from support.long_work import DAY, begin_again, is_whole, old_session, opened
from support.maintenance import GENERATIONS, Clock, chunk, write
from support.stepping import Actor, Gate, Played, play_all

from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import IcechunkError, Kind, MaintenanceError


def young(storage: Storage, clock: Clock) -> Session:
    session = opened(storage, clock).writable_session("main")
    put(session, "/a", (1,), chunk("young"))
    return session


def leased(storage: Storage, clock: Clock) -> Session:
    session = old_session(storage, clock)
    put(session, "/a", (2,), chunk("an hour ago"))
    clock.wait(hours=1)
    return session


def borrowing(storage: Storage, clock: Clock) -> Session:
    """What a commit of a branch did that is deleted."""
    repo = opened(storage, clock)
    first = repo.lookup_branch("main")
    repo.create_branch("side", first)
    made = write(repo, "side", 3, "on a branch of its own")
    clock.wait(hours=30)
    session = repo.session_with_changes("main", from_snapshot_id=first, to_snapshot_id=made)
    repo.delete_branch("side")
    return session


SESSIONS = [young, leased, old_session, borrowing]


@pytest.mark.parametrize("begins", ["committer", "collector"])
@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.__name__)
@pytest.mark.parametrize(
    ("generation", "hours", "step"),
    [
        *(("1", hours, 11) for hours in (0, 25)),
        *((generation, 25, 41) for generation in GENERATIONS[1:]),
        *(
            pytest.param(generation, hours, 1, marks=pytest.mark.long)
            for generation in GENERATIONS
            for hours in (0, 13, 25, 49)
        ),
    ],
)
def test_no_acknowledged_commit_dangles_wherever_committer_and_collector_are_paused(
    generation: str,
    hours: int,
    step: int,
    session: Callable[[Storage, Clock], Session],
    begins: str,
) -> None:
    def play(first: int, second: int) -> Played:
        return interleave(generation, session, hours, (first, second), begins)

    outcomes = play_all(play, step, 1 + step // 10)
    print(dict(outcomes))
    assert sum(outcomes.values()) > 10 / step**2
    if hours == 0 and session in (young, leased):
        assert outcomes.keys() == {"acknowledged"}


def interleave(
    generation: str,
    prepare: Callable[[Storage, Clock], Session],
    hours: int,
    calls: tuple[int, int],
    begins: str,
) -> Played:
    """One up to a call, a stall, the other up to a call, and both to their ends."""
    storage, clock = begin_again(generation)
    committer, collector = Gate(storage), Gate(storage)
    session = prepare(committer, clock)
    keeper = opened(collector, clock)
    limit = clock.now - DAY + timedelta(hours=hours if begins == "committer" else 0)
    commit = Actor(committer, lambda: session.commit("interleaved"))
    sweep = Actor(collector, lambda: keeper.garbage_collect(limit))
    first, second = (commit, sweep) if begins == "committer" else (sweep, commit)
    goes_on = first.advance(calls[0])
    clock.wait(hours=hours)
    second.advance(calls[1])
    first.finish()
    second.finish()
    outcome = judged(storage, clock, commit, sweep, calls)
    return Played(outcome, not goes_on, second.next_pause(first))


def judged(
    storage: MemoryStorage, clock: Clock, commit: Actor, sweep: Actor, calls: tuple[int, int]
) -> str:
    stopped, refused = sweep.error, commit.error
    assert stopped is None or isinstance(stopped, MaintenanceError), stopped
    if refused is None:
        assert is_whole(storage), calls
        return "acknowledged"
    assert isinstance(refused, IcechunkError), refused
    assert refused.kind is Kind.CHUNKS_COLLECTED, refused
    assert is_whole(storage), calls
    assert next(info.message for info in opened(storage, clock).ancestry(branch="main")) == "first"
    return "taken back" if "back where it was" in refused.message else "refused"
