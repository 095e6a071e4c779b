"""The store of a session is made once, and waits for no other session."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.zarr_store import store as stores

_PATIENCE = 20.0


def test_the_store_of_a_session_is_always_the_same() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    assert session.store is session.store


def test_a_store_that_is_being_made_holds_up_no_other_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that is forked at that moment inherits what is held, and would wait forever."""
    repo = Repository.create(in_memory_storage())
    slow, quick = repo.writable_session("main"), repo.writable_session("main")
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(stores.IcechunkStore):
        def __init__(self, session: stores.StoreSession) -> None:
            if session is slow:
                begun.set()
                assert goes_on.wait(_PATIENCE * 2)
            super().__init__(session)

    monkeypatch.setattr(stores, "IcechunkStore", Slow)
    first = threading.Thread(target=lambda: slow.store, daemon=True)
    second = threading.Thread(target=lambda: quick.store, daemon=True)
    first.start()
    assert begun.wait(_PATIENCE)
    second.start()
    second.join(_PATIENCE)
    is_held_up = second.is_alive()
    goes_on.set()
    first.join(_PATIENCE)
    assert not is_held_up
