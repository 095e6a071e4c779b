"""The graph of the history, as text."""

from datetime import UTC, datetime, timedelta
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.cli.render import log_line, plain
from airflow_provider_icechunk.engine.history.graph import Commit, arrange, draw

START = datetime(2026, 1, 1, tzinfo=UTC)


def history(*links: str) -> list[Commit]:
    """Commits from `id<parent`, oldest first, a minute apart."""
    commits = []
    for minute, link in enumerate(links):
        identity, _, parent = link.partition("<")
        moment = START + timedelta(minutes=minute)
        commits.append(Commit(identity, parent or None, moment, f"message {identity}"))
    return commits


def text(commits: list[Commit]) -> str:
    rows = draw(commits)
    return "\n".join(f"{row.lanes} {row.commit.id if row.commit else ''}".rstrip() for row in rows)


GOLDEN = {
    "one line": (
        ["a", "b<a", "c<b"],
        """
        * c
        * b
        * a
        """,
    ),
    "two branches": (
        ["a", "b<a", "x<b", "c<b", "y<x", "d<c"],
        """
        * d
        | * y
        * | c
        | * x
        |/
        * b
        * a
        """,
    ),
    "three branches from one snapshot": (
        ["a", "x<a", "y<a", "z<a"],
        """
        * z
        | * y
        | | * x
        | |/
        |/
        * a
        """,
    ),
    "a join past another line": (
        ["r", "a<r", "q", "x<a", "p<q", "m<a"],
        """
        * m
        | * p
        | | * x
        | * | q
        |  /
        |/
        * a
        * r
        """,
    ),
    "a join across a line that goes on": (
        ["q", "a", "x<a", "p<q", "m<a"],
        """
        * m
        | * p
        | | * x
        | |/
        |/|
        * | a
          * q
        """,
    ),
    "a long way to join": (
        ["q", "p", "a", "x<a", "q2<q", "p2<p", "m<a"],
        """
        * m
        | * p2
        | | * q2
        | | | * x
        | |_|/
        |/| |
        * | | a
          * | p
            * q
        """,
    ),
    "a free lane is used again": (
        ["a", "x<a", "b<a", "y<b", "c<b"],
        """
        * c
        | * y
        |/
        * b
        | * x
        |/
        * a
        """,
    ),
    "lines that go on beyond what is shown": (
        ["c<b", "y<x"],
        """
        * y
        | * c
        : :
        """,
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_histories_are_drawn_as_expected(name: str) -> None:
    links, expected = GOLDEN[name]
    assert text(history(*links)) == dedent(expected).strip("\n").rstrip()


def test_a_parent_with_a_later_clock_still_comes_after_its_children() -> None:
    late = Commit("a", None, START + timedelta(days=1), "")
    commits = [late, *history("b<a", "c<b")]
    assert [commit.id for commit in arrange(commits)] == ["c", "b", "a"]


def test_a_circle_is_shown_after_the_rest_and_does_not_hang() -> None:
    assert [one.id for one in arrange(history("a<b", "b<a", "c"))] == ["c", "b", "a"]


@given(st.lists(st.integers(0, 30), max_size=30))
def test_every_snapshot_stands_on_one_row_after_its_children(parents: list[int]) -> None:
    commits = [
        Commit(str(n), str(parent % n) if n and parent else None, START, "")
        for n, parent in enumerate(parents)
    ]
    rows = draw(commits)
    order = [row.commit.id for row in rows if row.commit]
    assert sorted(order) == sorted(commit.id for commit in commits)
    for commit in commits:
        if commit.parent_id is not None:
            assert order.index(commit.id) < order.index(commit.parent_id)
    for row in rows:
        assert row.lanes.count("*") == (row.commit is not None)


def test_a_line_names_branches_and_tags_and_only_the_first_line_of_the_message() -> None:
    commit = Commit("ID", None, START, "first\nsecond", ("main",), ("v1", "v2"))
    (row,) = draw([commit])
    expected = "* ID 2026-01-01 00:00:00 (main, tag: v1, tag: v2) first"
    assert log_line(row).plain == expected


def test_stored_text_cannot_steer_the_terminal() -> None:
    commit = Commit("ID", None, START, "\x1b[2Jgone\x07", ("a\x9bb",))
    (row,) = draw([commit])
    assert "\x1b" not in log_line(row).plain
    assert "\\x1b[2Jgone\\x07" in log_line(row).plain
    assert "a\\x9bb" in log_line(row).plain


@given(st.text())
def test_safe_text_is_always_printable(value: str) -> None:
    assert plain(value).isprintable()
