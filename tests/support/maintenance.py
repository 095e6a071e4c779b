"""Repositories with a history, clocks that tests control, and storages that interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypeVar

import pytest
from support.arrays import GROUP, array, contents, put

from airflow_provider_icechunk.engine.format.codec import Layout
from airflow_provider_icechunk.engine.format.ids import ManifestId, SnapshotId, parse_id
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Absent, Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.testing.storages import WrappedStorage

T = TypeVar("T")

UNPACKED = Packing(below=0)
START = datetime(2026, 1, 1, tzinfo=UTC)
GENERATIONS = ["1", "2", "alpha", "alpha1", "draft"]
"""The generations for which the engine's suites run."""
STEPS = {"1": 1, "2": 3, "alpha": 3, "alpha1": 3, "draft": 5}
"""Try every n-th call; every call in the most used generation, in the others only in long runs."""
CRASHES = [
    *STEPS.items(),
    *(pytest.param(one, 1, marks=pytest.mark.long) for one in GENERATIONS if STEPS[one] > 1),
]
"""Generations with the `step` for `every_crash` and `every_pause`."""
LISTING = ("2", "draft")
"""Generations whose refs list all snapshots: one that is listed and young stays."""
WITHOUT_LOGS = ("alpha1", "draft")


class Clock:
    """A clock that advances only on request."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def wait(self, **amount: float) -> datetime:
        """Let time pass; returns the time then."""
        self.now += timedelta(**amount)
        return self.now

    def world(self, skew: timedelta = timedelta()) -> World:
        """The world of a host with this clock, or one that is off by `skew`."""
        return World(now=lambda: self.now + skew, monotonic=lambda: self.now.timestamp())


class RealClock(Clock):
    """The time of this host, which cannot be made to pass faster."""

    @property
    def now(self) -> datetime:  # type: ignore[override]
        """The present."""
        return datetime.now(UTC)

    @now.setter
    def now(self, moment: datetime) -> None:
        """Nothing to set."""


def chunk(text: str) -> bytes:
    """Bytes that are too many to be inline."""
    return text.encode() * 200


def write(repo: Repository, branch: str, place: int, text: str, path: str = "/a") -> str:
    """Commit one chunk; returns the snapshot."""
    session = repo.writable_session(branch)
    put(session, path, (place,), chunk(text))
    return session.commit(text)


def live_in(
    storage: Storage,
    generation: str = "1",
    *,
    clock: Clock | None = None,
    packing: Packing = UNPACKED,
) -> dict[str, str]:
    """Fill an empty storage with history, refs and garbage; returns snapshots by message.

    The garbage: a deleted branch (`doomed 1`, `doomed 2`), a snapshot that was never named
    (`flushed`), a chunk of an abandoned session, and an old job folder.
    """
    clock = clock or RealClock()
    repo = Repository.create(storage, spec_version=generation, packing=packing, world=clock.world())
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([16], [1]))
    session.tree.put_document("/b", array([4], [1]))
    put(session, "/b", (0,), b"inline")
    for place in range(4):
        put(session, "/a", (place,), chunk(f"first {place}"))
    clock.wait(hours=1)
    ids = {"first": session.commit("first")}
    for place, text in enumerate(("second", "third", "fourth")):
        clock.wait(hours=1)
        ids[text] = write(repo, "main", place, text)
    repo.create_tag("v1", ids["second"])
    repo.create_branch("side", ids["third"])
    clock.wait(hours=1)
    ids["side 1"] = write(repo, "side", 4, "side 1")
    repo.create_branch("doomed", ids["first"])
    for text in ("doomed 1", "doomed 2"):
        clock.wait(hours=1)
        ids[text] = write(repo, "doomed", 5, text)
    repo.delete_branch("doomed")
    loose = repo.writable_session("main")
    put(loose, "/a", (6,), chunk("flushed"))
    ids["flushed"] = loose.flush("flushed")
    given_up = repo.writable_session("main")
    put(given_up, "/a", (7,), chunk("given up"))
    given_up.tree.writer.flush()
    storage.put("jobs/old/fragment-0", b"left behind", expect=Absent())
    clock.wait(hours=1)
    return ids


def lived_in(generation: str, clock: Clock | None = None) -> tuple[MemoryStorage, dict[str, str]]:
    """A lived-in repository in memory."""
    clock = clock or Clock()
    storage = MemoryStorage(clock=clock)
    return storage, live_in(storage, generation, clock=clock)


def clone(storage: MemoryStorage, clock: Callable[[], datetime]) -> MemoryStorage:
    """The same objects with the same times in another storage."""
    copy = MemoryStorage(clock=clock)
    copy._objects = dict(storage.objects)
    copy._versions = count(1 << 32)
    return copy


def everything(storage: Storage) -> dict[str, dict[str, object]]:
    """What a reader sees through every branch and tag."""
    repo = Repository.open(storage)
    seen = {f"branch {n}": contents(repo.readonly_session(n)) for n in repo.list_branches()}
    seen |= {f"tag {n}": contents(repo.readonly_session(tag=n)) for n in repo.list_tags()}
    return seen


def layout_of(storage: Storage) -> Layout:
    """Where the repository keeps its files."""
    return Repository.open(storage)._core.refs.layout


def snapshot_key(storage: Storage, snapshot_id: str) -> str:
    """The file of a snapshot."""
    core = Repository.open(storage)._core
    return core.refs.layout.snapshot(SnapshotId(parse_id(core.generation, snapshot_id)))


def manifest_key(storage: Storage, manifest_id: str) -> str:
    """The file of a manifest."""
    core = Repository.open(storage)._core
    return core.refs.layout.manifest(ManifestId(parse_id(core.generation, manifest_id)))


def keys(storage: Storage, prefix: str = "") -> set[str]:
    """All keys below a prefix."""
    return {item.key for item in storage.scan(prefix)}


class InterruptingStorage(WrappedStorage):
    """Runs something else right before one of its calls, as a process that was paused would see.

    :param at: which call, counted from 0; `None` only counts.
    """

    def __init__(
        self, inner: Storage, at: int | None = None, act: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(inner)
        self._at = at
        self._act = act
        self._lock = threading.Lock()
        self.calls: list[str] = []

    def _call(self, name: str, act: Callable[[], T]) -> T:
        with self._lock:
            number = len(self.calls)
            self.calls.append(name)
            if number == self._at:
                self._act()
        return act()


def every_pause(
    prepare: Callable[[], Storage],
    scenario: Callable[[Storage], object],
    other: Callable[[Storage], object],
    *,
    step: int = 1,
) -> Iterator[tuple[str, Storage]]:
    """Run `scenario` once for each of its calls with `other` happening right before that call.

    With a `step` of n only every n-th call is tried.
    """
    counted = InterruptingStorage(prepare())
    scenario(counted)
    for number in range(0, len(counted.calls), step):
        inner = prepare()
        paused = InterruptingStorage(inner, number, lambda inner=inner: other(inner))
        scenario(paused)
        name = paused.calls[number] if number < len(paused.calls) else "never"
        yield f"{number}: {name}", inner
