"""Commits that were moved over others tell which: a hint what to read ahead, and no more."""

from typing import Any

import pytest
from support.arrays import GROUP, array, contents

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import format_id
from airflow_provider_icechunk.engine.objects.line import (
    LINE_KEY,
    LONGEST_LINE,
    read_line,
    with_line,
)
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

IDS = [bytes([number]) * 12 for number in range(LONGEST_LINE + 5)]


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(MemoryStorage())
    session = made.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array((8,), (1,)))
    session.commit("array")
    return made


def writing(repository: Repository, number: int) -> Any:
    session = Repository.open(repository.storage).writable_session("main")
    session.tree.put_chunk("/a", (number,), bytes([number]) * 600)
    return session


def test_a_line_comes_back_as_it_was_stored_and_is_bounded() -> None:
    stored = with_line({"k": 1, LINE_KEY: ["of another"]}, IDS, Generation.V1)
    assert stored["k"] == 1
    assert read_line(stored, Generation.V1) == IDS[:LONGEST_LINE]
    assert with_line({LINE_KEY: ["of another"]}, [], Generation.V1) == {}


def test_a_commit_that_was_moved_over_others_tells_their_ids(repository: Repository) -> None:
    base = repository.lookup_branch("main")
    sessions = [writing(repository, number) for number in range(4)]
    made = [one.commit("m", rebase_with=ConflictDetector()) for one in sessions]
    infos = list(repository.ancestry(branch="main"))
    assert [info.id for info in infos[:5]] == [*made[::-1], base]
    assert infos[0].metadata[LINE_KEY][:3] == [made[1], made[0], base]
    assert LINE_KEY not in infos[3].metadata, "nobody was in its way"


@pytest.mark.parametrize(
    "line",
    [
        "text",
        {"not": "a list"},
        ["no id", 5, None],
        [format_id(Generation.V1, one) for one in IDS[:LONGEST_LINE]],
        [format_id(Generation.V1, IDS[0])] * 1000,
    ],
    ids=["text", "mapping", "no ids", "unknown ids", "too many"],
)
def test_a_line_that_is_wrong_changes_nothing(repository: Repository, line: Any) -> None:
    late = writing(repository, 0)
    for number in (1, 2):
        writing(repository, number).commit("early", metadata={LINE_KEY: line})
    late.commit("late", rebase_with=ConflictDetector())
    found = contents(repository.readonly_session("main"))
    assert [found[f"/a[{number}]"] for number in range(3)] == [
        bytes([number]) * 600 for number in range(3)
    ]
