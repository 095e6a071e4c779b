"""Answers of conditional writes get lost: no commit is doubled, none is taken for a conflict."""

from __future__ import annotations

import pytest
from support.arrays import GROUP, array, contents, put
from support.maintenance import GENERATIONS

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.testing.storages import FlakyStorage


@pytest.mark.parametrize(
    ("generation", "commits"),
    [
        *((generation, 100) for generation in GENERATIONS),
        *(pytest.param(generation, 500, marks=pytest.mark.long) for generation in GENERATIONS),
    ],
)
def test_commits_over_a_storage_that_loses_every_fifth_answer_all_land_once(
    generation: str, commits: int
) -> None:
    storage = FlakyStorage(MemoryStorage(), 0.2, seed=7)
    repo = Repository.create(storage, spec_version=generation)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([commits], [1]))
    session.commit("start")
    for number in range(commits):
        session = repo.writable_session("main")
        put(session, "/a", (number,), str(number).encode())
        session.commit(f"commit {number}")
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert messages[:commits] == [f"commit {number}" for number in reversed(range(commits))]
    assert len(contents(repo.readonly_session("main"))) == commits + 2
    assert storage.lost_answers > commits // 10
