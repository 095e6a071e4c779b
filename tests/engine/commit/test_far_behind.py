"""What a writer waits for when many others were faster: a backfill of days that began together."""

from __future__ import annotations

import pytest
from support.arrays import GROUP, array, contents, put

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage

WRITERS = 60


@pytest.fixture(scope="module")
def costs() -> list[tuple[int, int]]:
    """Requests and depth of each of many commits whose sessions began together."""
    storage = MemoryStorage()
    session = Repository.create(storage).writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([WRITERS], [1]))
    session.commit("start")
    writers = [_writer(storage, number) for number in range(WRITERS)]
    found = []
    for observed, writer in writers:
        observed.reset()
        writer.commit("one chunk", rebase_with=ConflictDetector())
        usage = observed.usage.items()
        found.append((sum(one.requests for verb, one in usage if verb != "settle"), observed.depth))
    seen = contents(Repository.open(storage).readonly_session("main"))
    assert [seen[f"/a[{number}]"] for number in range(WRITERS)] == [b"mine"] * WRITERS
    return found


def _writer(storage: MemoryStorage, number: int) -> tuple[ObservedStorage, Session]:
    observed = ObservedStorage(storage)
    session = Repository.open(observed).writable_session("main")
    put(session, "/a", (number,), b"mine")
    return observed, session


def test_commits_of_others_are_asked_for_in_few_round_trips(costs: list[tuple[int, int]]) -> None:
    """Otherwise the last of a backfill waits 20 ms for every commit beyond the 25 newest."""
    depths = [depth for _, depth in costs]
    assert depths[-1] <= depths[10] + 2, depths


def test_each_commit_of_others_is_read_once(costs: list[tuple[int, int]]) -> None:
    """Its snapshot and its log: a writer that reads them twice doubles what a backfill costs."""
    requests = [count for count, _ in costs]
    assert requests[-1] - requests[10] <= 2 * (WRITERS - 1 - 10), requests
