"""Which part of the history goes, against a plain model of the rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.maintenance.reachable import Link, Roots
from airflow_provider_icechunk.engine.maintenance.retention import (
    Edit,
    RetentionPolicy,
    plan_expiration,
)
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

START = datetime(2026, 1, 1, tzinfo=UTC)
MICROS = int(START.timestamp()) * 1_000_000
HOUR = 3_600_000_000


def sid(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(12, "big"))


def line(*parents: int | None) -> dict[SnapshotId, Link]:
    """Snapshots 0, 1, ..., each written an hour after the one before, with these parents."""
    return {
        sid(number): Link(
            sid(number), None if parent is None else sid(parent), MICROS + number * HOUR
        )
        for number, parent in enumerate(parents)
    }


def policy(hours: float, **more: object) -> RetentionPolicy:
    return RetentionPolicy(START + timedelta(hours=hours), **more)  # type: ignore[arg-type]


def numbers(ids: frozenset[SnapshotId]) -> list[int]:
    return sorted(int.from_bytes(one, "big") for one in ids)


STRAIGHT = line(None, 0, 1, 2, 3, 4)


def test_the_oldest_kept_snapshot_gets_the_first_one_as_its_parent() -> None:
    plan = plan_expiration(policy(3), Roots({"main": sid(5)}, {}), STRAIGHT)
    assert plan.edits == (Edit(sid(3), sid(0), (("branch", "main"),)),)
    assert numbers(plan.released) == [1, 2]
    assert plan.refs[0].kept == 4
    assert not plan.refs[0].expired


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_limit_before_anything_could_go_plans_nothing(hours: int) -> None:
    plan = plan_expiration(policy(hours), Roots({"main": sid(5)}, {}), STRAIGHT)
    assert plan.is_empty
    assert not plan.released


def test_a_head_that_is_too_old_itself_is_edited_and_reported() -> None:
    plan = plan_expiration(policy(99), Roots({"main": sid(5)}, {}), STRAIGHT)
    assert [edit.snapshot for edit in plan.edits] == [sid(5)]
    assert numbers(plan.released) == [1, 2, 3, 4, 5]
    assert plan.refs[0].expired
    assert not plan.refs[0].delete


def test_main_is_never_deleted_and_others_only_when_asked() -> None:
    roots = Roots({"main": sid(5), "old": sid(2)}, {"v1": sid(1)})
    quiet = plan_expiration(policy(99), roots, STRAIGHT)
    assert not any(ref.delete for ref in quiet.refs)
    asked = plan_expiration(
        policy(99, delete_expired_branches=True, delete_expired_tags=True), roots, STRAIGHT
    )
    assert {ref.name for ref in asked.refs if ref.delete} == {"old", "v1"}
    assert [edit.snapshot for edit in asked.edits] == [sid(5)]


def test_keep_last_protects_a_window_of_each_branch_from_the_cuts_of_others() -> None:
    roots = Roots({"main": sid(5), "old": sid(3)}, {"v": sid(4)})
    plan = plan_expiration(policy(99, keep_last=4), roots, STRAIGHT)
    assert plan.is_empty
    three = plan_expiration(policy(99, keep_last=3), Roots({"main": sid(5)}, {}), STRAIGHT)
    assert [edit.snapshot for edit in three.edits] == [sid(3)]
    assert numbers(three.released) == [1, 2]
    assert three.refs[0].kept == 4


def test_a_tag_below_the_window_is_cut_by_itself() -> None:
    roots = Roots({"main": sid(5)}, {"v": sid(2)})
    plan = plan_expiration(policy(99, keep_last=2), roots, STRAIGHT)
    assert [edit.snapshot for edit in plan.edits] == [sid(2), sid(4)]
    assert numbers(plan.released) == [1, 2, 3]


@pytest.mark.parametrize("number", [0, -1])
def test_keeping_less_than_one_is_refused(number: int) -> None:
    with pytest.raises(InvalidInputError, match="keep_last"):
        policy(1, keep_last=number)


def test_a_circle_is_damage() -> None:
    circle = line(1, 0)
    with pytest.raises(FormatError, match="cycle"):
        plan_expiration(policy(99), Roots({"main": sid(1)}, {}), circle)


def test_a_plan_is_made_of_json_values() -> None:
    import json

    plan = plan_expiration(policy(3), Roots({"main": sid(5)}, {"v": sid(1)}), STRAIGHT)
    assert json.loads(json.dumps(plan.as_dict()))["refs"][0]["name"] == "v"


trees = st.lists(st.integers(0, 10**6), min_size=1, max_size=14).map(
    lambda draws: line(None, *(draw % (place + 1) for place, draw in enumerate(draws)))
)


def ancestry(links: dict[SnapshotId, Link], tip: SnapshotId) -> list[SnapshotId]:
    found: list[SnapshotId] = []
    current: SnapshotId | None = tip
    while current is not None:
        found.append(current)
        current = links[current].parent
    return found


@settings(max_examples=150)
@given(
    links=trees,
    tips=st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    tags=st.lists(st.integers(0, 10**6), max_size=3),
    hours=st.integers(-1, 16),
    keep_last=st.none() | st.integers(1, 6),
    delete=st.booleans(),
)
def test_every_kept_history_is_the_new_part_of_the_old_one_and_its_root(
    links: dict[SnapshotId, Link],
    tips: list[int],
    tags: list[int],
    hours: int,
    keep_last: int | None,
    delete: bool,
) -> None:
    def pick(draw: int) -> SnapshotId:
        return list(links)[draw % len(links)]

    names = ["main", "b1", "b2", "b3"]
    roots = Roots(
        {name: pick(draw) for name, draw in zip(names, tips, strict=False)},
        {f"t{number}": pick(draw) for number, draw in enumerate(tags)},
    )
    rule = policy(
        hours,
        keep_last=keep_last,
        delete_expired_branches=delete,
        delete_expired_tags=delete,
    )
    plan = plan_expiration(rule, roots, links)
    limit = MICROS + hours * HOUR
    after = dict(links)
    for edit in plan.edits:
        old = after[edit.snapshot]
        after[edit.snapshot] = Link(old.id, edit.parent, old.flushed_at)
    for ref in plan.refs:
        if ref.delete:
            assert links[ref.tip].flushed_at < limit
            assert ref.name != "main"
            continue
        before, now = ancestry(links, ref.tip), ancestry(after, ref.tip)
        assert now == [*before[: len(now) - 1], before[-1]]
        assert ref.kept == len(now)
        young = [one for one in before if links[one].flushed_at >= limit]
        assert set(young) <= set(now)
        if keep_last is None:
            assert len(now) <= max(len(young), 1) + 1
        elif ref.type == "branch":
            assert now[:keep_last] == before[:keep_last]
    for one in plan.released:
        assert links[one].flushed_at < limit
        assert links[one].parent is not None
    again = plan_expiration(rule, Roots(roots.branches, roots.tags), after)
    assert not again.edits or delete
