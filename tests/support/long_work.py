"""Long work in a repository with one array: how it is begun, and what it leaves."""

from __future__ import annotations

from datetime import timedelta

from support.arrays import GROUP, array, put
from support.maintenance import UNPACKED, Clock, chunk, keys

from airflow_provider_icechunk.engine.leases import CUTOFF, PREFIX
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

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
    """A session that wrote 30 hours ago and never since."""
    session = opened(storage, clock).writable_session("main")
    put(session, "/a", (1,), chunk("written long ago"))
    clock.wait(hours=30)
    return session


def leases(storage: Storage) -> set[str]:
    return keys(storage, PREFIX) - {CUTOFF}


def sound(storage: Storage) -> bool:
    return opened(storage, Clock()).verify().ok
