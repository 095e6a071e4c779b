"""A commit that turns out to be incomplete after its branch moved is taken back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest
from support.arrays import put
from support.long_work import begin, opened, sound
from support.maintenance import GENERATIONS, Clock, chunk, everything, write

from airflow_provider_icechunk.engine.commit.commit import take_back
from airflow_provider_icechunk.engine.history.versions import parse_snapshot_id
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import Kind, SessionError
from airflow_provider_icechunk.testing.storages import WrappedStorage

T = TypeVar("T")
MOVES = ("put refs/branch.main", "put r/main", "put repo", "put state.json")


class Stalling(WrappedStorage):
    """Does something else before the first write that moves a branch, once it is armed."""

    def __init__(self, inner: Storage, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._act = act
        self.is_armed = False

    def _call(self, name: str, act: Callable[[], T]) -> T:
        if self.is_armed and name.startswith(MOVES):
            self.is_armed = False
            self._act()
        return act()


def commit(repo: Repository) -> None:
    session = repo.writable_session("main")
    put(session, "/a", (1,), chunk("late"))
    session.commit("late")


def rewrite(repo: Repository) -> None:
    repo.rewrite_manifests("late", branch="main")


def compact(repo: Repository) -> None:
    repo.compact("main")


@pytest.mark.parametrize(
    ("generation", "work"),
    [*((generation, commit) for generation in GENERATIONS), ("1", rewrite), ("1", compact)],
)
def test_a_writer_that_stalled_right_before_it_moved_its_branch_moves_it_back(
    generation: str, work: Callable[[Repository], None]
) -> None:
    clock = Clock()
    inner = begin(clock, generation)
    keeper = opened(inner, clock)
    write(keeper, "main", 2, "second")
    before, head = everything(inner), keeper.lookup_branch("main")

    def stall() -> None:
        clock.wait(hours=30)
        opened(inner, clock).garbage_collect(clock.now - timedelta(hours=1))

    stalling = Stalling(inner, stall)
    repo = opened(stalling, clock)
    stalling.is_armed = True
    with pytest.raises(SessionError, match="is back where it was") as caught:
        work(repo)
    assert caught.value.kind is Kind.CHUNKS_COLLECTED
    assert not stalling.is_armed
    assert opened(inner, clock).lookup_branch("main") == head
    assert sound(inner)
    assert everything(inner) == before
    # Nothing that is listed and gone stops the next collection, and the next commit works.
    clock.wait(hours=30)
    opened(inner, clock).garbage_collect(clock.now - timedelta(hours=1))
    write(opened(inner, clock), "main", 3, "next")
    assert sound(inner)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_borrowed_changes_whose_lender_goes_right_before_the_branch_moves_are_taken_back(
    generation: str,
) -> None:
    """Young work holds no lease: only a last look at the lender saves its reader from a branch
    without chunks when somebody collects up to the present."""
    clock = Clock()
    inner = begin(clock, generation)
    before = everything(inner)
    keeper = opened(inner, clock)
    first = keeper.lookup_branch("main")
    keeper.create_branch("side", first)
    made = write(keeper, "side", 3, "on side")

    def collect_up_to_now() -> None:
        clock.wait(minutes=1)
        opened(inner, clock).garbage_collect(clock.now)

    stalling = Stalling(inner, collect_up_to_now)
    session = opened(stalling, clock).session_with_changes(
        "main", from_snapshot_id=first, to_snapshot_id=made
    )
    keeper.delete_branch("side")
    stalling.is_armed = True
    with pytest.raises(SessionError, match="is back where it was") as caught:
        session.commit("borrowed")
    assert caught.value.kind is Kind.CHUNKS_COLLECTED
    assert opened(inner, clock).lookup_branch("main") == first
    assert everything(inner) == before
    assert sound(inner)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_branch_on_which_others_have_committed_is_not_taken_back(generation: str) -> None:
    clock = Clock()
    repo = opened(begin(clock, generation), clock)
    core = repo.core
    base = repo.lookup_branch("main")
    ours = write(repo, "main", 1, "ours")
    theirs = write(repo, "main", 2, "theirs")
    identities = [parse_snapshot_id(core, one) for one in (base, ours)]
    assert not take_back(core, "main", identities[0], identities[1])
    assert repo.lookup_branch("main") == theirs
