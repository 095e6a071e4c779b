"""Two writers, expiry, collection and leases, in every order of their steps."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from support.protocol import ALONE, START, Rules, explore

NEEDED = [field.name for field in fields(Rules) if field.name != "writer_leases"]


def test_no_order_of_steps_of_a_writer_and_a_collection_breaks_a_promise() -> None:
    explored = explore(start=ALONE, last=6)
    assert explored.problem is None, explored.path
    assert explored.states > 10_000


@pytest.mark.parametrize("last", [3, pytest.param(4, marks=pytest.mark.long)])
def test_no_order_of_steps_breaks_a_promise(last: int) -> None:
    explored = explore(last=last)
    print(explored.states, "states")
    assert explored.problem is None, explored.path
    assert explored.states > 70_000


@pytest.mark.parametrize("rule", NEEDED)
def test_without_any_of_its_rules_the_protocol_breaks(rule: str) -> None:
    start, last = (START, 3) if rule == "branch_is_swapped" else (ALONE, 4)
    explored = explore(replace(Rules(), **{rule: False}), start=start, last=last)
    print(rule, explored.states, *explored.path, explored.problem, sep="\n  ")
    assert explored.problem is not None


def test_a_lease_spares_work_and_safety_does_not_depend_on_it() -> None:
    explored = explore(replace(Rules(), writer_leases=False), start=ALONE, last=5)
    assert explored.problem is None, explored.path
