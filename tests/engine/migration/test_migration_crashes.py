"""A migration that dies anywhere leaves the old or the new repository, and can be done again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from support import fixtures
from support.arrays import GROUP, array, put
from support.maintenance import Clock, RealClock, chunk, clone
from support.migrations import Portrait, in_memory, portrait

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.opening import detect_generation
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.testing.storages import Crash, CrashingStorage, every_crash

PAIRS = [
    ("draft", "1"),
    ("draft", "2"),
    ("alpha1", "1"),
    ("alpha1", "2"),
    ("alpha", "1"),
    ("alpha", "2"),
    ("1", "2"),
]


def small(generation: str, clock: Clock) -> MemoryStorage:
    """Two commits on `main`, one on a branch, a tag, and a deleted tag where there can be one."""
    storage = MemoryStorage(clock=clock)
    world = clock.world()
    repo = Repository.create(storage, spec_version=generation, world=world)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([4], [1]))
    put(session, "/a", (0,), chunk("first"))
    put(session, "/a", (1,), b"inline")
    clock.wait(hours=1)
    first = session.commit("first", {"n": 1})
    repo.create_tag("v1", first)
    repo.create_branch("side", first)
    if generation != "alpha1":
        repo.create_tag("gone", first)
        repo.delete_tag("gone")
    for branch in ("main", "side"):
        clock.wait(hours=1)
        session = repo.writable_session(branch)
        put(session, "/a", (2,), chunk(branch))
        session.commit(f"on {branch}")
    clock.wait(hours=1)
    return storage


def every_write(act: Callable[[Storage], object], make: Callable[[], Storage]) -> Iterator[Storage]:
    """What is left after dying before or after each call that writes."""
    counted = CrashingStorage(make())
    act(counted)
    for call, name in enumerate(counted.calls):
        for after in (False, True) if name.startswith(("put", "delete")) else ():
            inner = make()
            with pytest.raises(Crash):
                act(CrashingStorage(inner, call, after))
            yield inner


@dataclass(frozen=True)
class Expected:
    """What must be seen before and after a migration."""

    base: MemoryStorage
    clock: Clock
    source: str
    target: str
    old: Portrait
    new: Portrait
    keys: set[str]

    @classmethod
    def of(cls, source: str, target: str) -> Expected:
        clock = Clock()
        return cls.on(small(source, clock), target, clock)

    @classmethod
    def on(cls, base: MemoryStorage, target: str, clock: Clock) -> Expected:
        source = str(detect_generation(base))
        old, done = portrait(base), clone(base, clock)
        ids = icechunk.migrate(done, target, remove_old=True, world=clock.world()).ids
        assert portrait(done) == old.renamed(ids)
        return cls(base, clock, source, target, old, old.renamed(ids), _keys(done))

    def act(self, storage: Storage) -> icechunk.MigrationResult:
        return icechunk.migrate(storage, self.target, remove_old=True, world=self.clock.world())

    def make(self) -> MemoryStorage:
        return clone(self.base, self.clock)

    def check(self, left: Storage) -> str:
        """Old or new; a repetition ends it. Returns which one it was."""
        found = str(detect_generation(left))
        assert found in (self.source, self.target)
        assert portrait(left) == (self.old if found == self.source else self.new)
        assert self.act(left).migrated is (found == self.source)
        assert portrait(left) == self.new
        assert _keys(left) == self.keys
        return found


@pytest.mark.long
@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_dying_at_any_call_leaves_the_old_or_the_new_repository(generation, to):
    expected = Expected.of(generation, to)
    points = every_crash(expected.act, make=expected.make)
    assert {expected.check(point.storage) for point in points} == {generation, to}


@pytest.mark.parametrize(("generation", "to"), [("1", "2"), ("alpha", "1"), ("alpha1", "2")])
def test_dying_at_any_write_leaves_the_old_or_the_new_repository(generation, to):
    expected = Expected.of(generation, to)
    left = every_write(expected.act, expected.make)
    assert {expected.check(storage) for storage in left} == {generation, to}


@pytest.mark.long
@fixtures.needs_fixtures
@pytest.mark.parametrize(
    ("name", "to"),
    [
        (name, to)
        for name in (*fixtures.names("g2-"), *fixtures.names("g3-"))
        for to in ("1", "2")
        if to == "2" or name.startswith(("g2-", "g3-f1dc"))
    ],
)
def test_a_fixture_survives_death_at_any_write(name, to, tmp_path):
    base = in_memory(fixtures.unpack(name, tmp_path)[0])
    expected = Expected.on(base, to, RealClock())
    left = every_write(expected.act, expected.make)
    assert {expected.check(storage) for storage in left} == {expected.source, to}


def _keys(storage: Storage) -> set[str]:
    """What is stored; probes of conditional writes and copies of `repo` aside."""
    return {item.key for item in storage.scan("") if not item.key.startswith(("overwritten/", "."))}
