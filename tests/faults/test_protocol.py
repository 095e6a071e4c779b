"""Two writers, expiry, collection and leases, in every order of their steps."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from support.protocol import Rules, explore

RULES = [field.name for field in fields(Rules)]


@pytest.mark.long
def test_no_order_of_steps_breaks_a_promise() -> None:
    explored = explore(last=4)
    print(explored.states, "states")
    assert explored.problem is None, explored.path


@pytest.mark.parametrize("rule", RULES)
def test_without_any_of_its_rules_the_protocol_breaks(rule: str) -> None:
    explored = explore(replace(Rules(), **{rule: False}), last=5)
    print(rule, explored.states, *explored.path, explored.problem, sep="\n  ")
    assert explored.problem is not None
