"""Answers of conditional writes get lost: no commit is doubled, none is taken for a conflict."""

from __future__ import annotations

import pytest
from support.arrays import GROUP, array, contents, put
from support.maintenance import GENERATIONS

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.testing.storages import FlakyStorage


@pytest.mark.parametrize("generation", GENERATIONS)
def test_commits_over_a_storage_that_loses_every_fifth_answer_all_land_once(
    generation: str,
) -> None:
    storage = FlakyStorage(MemoryStorage(), 0.2, seed=7)
    repo = Repository.create(storage, spec_version=generation)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([300], [1]))
    session.commit("start")
    for number in range(300):
        session = repo.writable_session("main")
        put(session, "/a", (number,), str(number).encode())
        session.commit(f"commit {number}")
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert messages[:300] == [f"commit {number}" for number in reversed(range(300))]
    assert len(contents(repo.readonly_session("main"))) == 302
    assert storage.lost_answers > 30
