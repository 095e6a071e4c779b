"""Long work in a repository with one array: how it starts, and what it leaves."""

from __future__ import annotations

import dataclasses
import random
from datetime import datetime, timedelta
from functools import cache

from support.arrays import GROUP, array, put
from support.maintenance import UNPACKED, Clock, chunk, clone, everything, keys

from airflow_provider_icechunk.engine.leases import CUTOFF, PREFIX
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Absent, Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.world import World

DAY = timedelta(hours=24)


def begin(clock: Clock, generation: str = "1") -> MemoryStorage:
    """A repository with one array and one chunk, ten days old."""
    storage = MemoryStorage(clock=clock)
    repo = Repository.create(
        storage, spec_version=generation, packing=UNPACKED, world=clock.world()
    )
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([16], [1]))
    put(session, "/a", (0,), chunk("first"))
    session.commit("first")
    clock.wait(days=10)
    return storage


def opened(storage: Storage, clock: Clock) -> Repository:
    return Repository.open(storage, packing=UNPACKED, world=clock.world())


def collect(storage: Storage, clock: Clock) -> None:
    opened(storage, clock).garbage_collect(clock.now - DAY)


def old_session(storage: Storage, clock: Clock) -> Session:
    """A session that last wrote 30 hours ago."""
    session = opened(storage, clock).writable_session("main")
    put(session, "/a", (1,), chunk("written long ago"))
    clock.wait(hours=30)
    return session


def leases(storage: Storage) -> set[str]:
    return keys(storage, PREFIX) - {CUTOFF}


def sound(storage: Storage) -> bool:
    return opened(storage, Clock()).verify().ok


class Repeating(Clock):
    """A clock whose worlds draw the same ids each time, so that schedules can end alike."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._entropy = random.Random(seed).randbytes

    def world(self, skew: timedelta = timedelta()) -> World:
        return dataclasses.replace(super().world(skew), entropy=self._entropy)


@cache
def _begun(generation: str) -> tuple[MemoryStorage, datetime]:
    clock = Repeating(0)
    return begin(clock, generation), clock.now


def begin_again(generation: str) -> tuple[MemoryStorage, Clock]:
    """What `begin` leaves, without doing it again."""
    storage, now = _begun(generation)
    clock = Repeating(1)
    clock.now = now
    return clone(storage, clock), clock


def is_whole(storage: MemoryStorage) -> bool:
    """Whether everything is intact, and can be read through every branch and tag."""
    return _is_whole(frozenset((key, one.data) for key, one in storage.objects.items()))


@cache
def _is_whole(objects: frozenset[tuple[str, bytes]]) -> bool:
    """Most schedules end in one of a few states; each is looked at once."""
    storage = MemoryStorage()
    for key, data in objects:
        storage.put(key, data, expect=Absent())
    everything(storage)
    return sound(storage)
