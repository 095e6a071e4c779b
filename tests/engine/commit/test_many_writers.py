"""Many writers of one branch, 20 ms away, on simulated time: what each commit costs, and waits.

Requests take 20 ms, nothing else takes any time. Whoever asks the store lets the others go on, and
the seed decides who is first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from random import Random
from typing import TypeVar

import pytest
from support.arrays import GROUP, array, contents, put

from airflow_provider_icechunk.engine.commit.merge import MergeSolver
from airflow_provider_icechunk.engine.concurrency import one_by_one
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import (
    ByteRange,
    Data,
    Fetched,
    Listed,
    Lost,
    Put,
    PutOutcome,
)
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.testing.simulation.scheduler import Policy, Scheduler, VirtualClock

WRITERS = 12
SEEDS = (1, 2)
_ONE_WAY = 0.01
T = TypeVar("T")


@dataclass
class Race:
    """What all writers did together."""

    seconds: float = 0.0
    requests: int = 0
    lost: int = 0
    stored: Counter[str] = field(default_factory=Counter)
    """Objects, by the first folder of their keys."""
    waits: list[float] = field(default_factory=list)
    """How long each commit took."""


class FarStorage:
    """A store that answers after 20 ms; what is asked for together takes as long as one thing."""

    location = "memory://far"

    def __init__(self, inner: MemoryStorage, scheduler: Scheduler, race: Race) -> None:
        self._inner = inner
        self._scheduler = scheduler
        self._race = race

    def _ask(self, count: int, answer: Callable[[], T]) -> T:
        self._race.requests += count
        self._scheduler.wait(_ONE_WAY)
        found = answer()
        self._scheduler.wait(_ONE_WAY)
        return found

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        return self._ask(1, lambda: self._inner.get(key, byte_range))

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        return self._ask(len(requests), lambda: self._inner.get_many(requests))

    def put(self, key: str, data: Data, **options: object) -> PutOutcome:
        found = self._ask(1, lambda: self._inner.put(key, data, **options))
        self._race.lost += isinstance(found, Lost)
        return found

    def put_many(self, puts: Sequence[Put]) -> None:
        self._race.stored.update(one.key.partition("/")[0] for one in puts)
        self._ask(len(puts), lambda: self._inner.put_many(puts))

    def head(self, key: str) -> Listed | None:
        return self._ask(1, lambda: self._inner.head(key))

    def settle(self) -> None:
        self._inner.settle()

    def now(self) -> datetime:
        return self._ask(1, self._inner.now)

    def check_conditional_writes(self) -> None:
        self._inner.check_conditional_writes()


@cache
def raced(seed: int, *, apart: bool) -> Race:
    """Writers that begin together, with a day each in one array, or with an array each."""
    clock = VirtualClock()
    inner = MemoryStorage(clock=clock)
    session = Repository.create(inner, world=World(now=clock)).writable_session("main")
    session.tree.put_document("/", GROUP)
    for name in names(apart=apart):
        session.tree.put_document(name, array([1], [1]))
    session.commit("start")
    random, race = Random(seed), Race()
    scheduler = Scheduler(random, Policy(), clock, limit=100_000)
    begun = clock.now
    world = World(
        now=clock,
        entropy=random.randbytes,
        sleep=scheduler.wait,
        monotonic=lambda: clock.now.timestamp(),
        jitter=random.random,
    )

    def write(number: int) -> None:
        with one_by_one(range):
            storage = FarStorage(inner, scheduler, race)
            session = Repository.open(storage, world=world).writable_session("main")
            path = f"/a{number}" if apart else "/a"
            session.tree.put_document(path, array([number + 1], [1]))
            put(session, path, (number,), b"day %d" % number * 100)
            asked = clock.now
            session.commit(f"day {number}", rebase_with=MergeSolver())
            race.waits.append((clock.now - asked).total_seconds())

    for number in range(WRITERS):
        scheduler.spawn(f"writer {number}", lambda number=number: write(number))
    scheduler.run()
    race.seconds = (clock.now - begun).total_seconds()
    check(contents(Repository.open(inner).readonly_session("main")), apart=apart)
    return race


def names(*, apart: bool) -> list[str]:
    return [f"/a{number}" for number in range(WRITERS)] if apart else ["/a"]


def check(found: Mapping[str, object], *, apart: bool) -> None:
    """Every day of every writer is there."""
    for number in range(WRITERS):
        path = f"/a{number}" if apart else "/a"
        assert found[f"{path}[{number}]"] == b"day %d" % number * 100


def average(of: Callable[[Race], float], *, apart: bool) -> float:
    return sum(of(raced(seed, apart=apart)) for seed in SEEDS) / len(SEEDS)


@pytest.mark.parametrize("apart", [False, True])
def test_a_commit_among_many_takes_few_tries(apart: bool) -> None:
    """A try that is lost was stored for nothing; with pauses that double it is 5.6."""
    tries = average(lambda race: 1 + race.lost / WRITERS, apart=apart)
    assert 1 < tries <= 4.05, tries


@pytest.mark.parametrize(("apart", "most"), [(False, 49), (True, 43)])
def test_what_a_commit_among_many_asks_of_the_store_is_bounded(apart: bool, most: int) -> None:
    """With the requests of opening the repository, and of reading each other commit once."""
    requests = average(lambda race: race.requests / WRITERS, apart=apart)
    assert requests <= most, requests


def test_manifests_of_an_array_that_nobody_else_wrote_are_stored_once() -> None:
    for seed in SEEDS:
        assert raced(seed, apart=True).stored["manifests"] == WRITERS


@pytest.mark.parametrize("apart", [False, True])
def test_nobody_waits_much_longer_than_its_turn(apart: bool) -> None:
    """The last of so many commits has all of the others before it, a quarter of a second each."""
    for seed in SEEDS:
        longest = max(raced(seed, apart=apart).waits)
        assert longest <= 0.25 * WRITERS, longest
