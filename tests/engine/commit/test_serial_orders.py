"""Two transactions that do not conflict give one result, whichever of them comes first."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.arrays import contents
from support.maintenance import GENERATIONS
from support.operations import Transaction, fresh, run, transactions

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import RebaseFailedError

Seen = dict[str, object]


def head(storage: MemoryStorage) -> Seen:
    return contents(Repository.open(storage).readonly_session("main"))


def one_after_the_other(*order: Transaction, generation: str) -> Seen:
    storage = fresh(generation)
    repo = Repository.open(storage)
    for transaction in order:
        session = run(repo.writable_session("main"), transaction)
        session.commit("serial", allow_empty=True)
    return head(storage)


def rebased(ours: Transaction, *theirs: Transaction, generation: str) -> Seen | None:
    """The result of committing `ours` over `theirs`, all from one base; `None` on a conflict."""
    storage = fresh(generation)
    repo = Repository.open(storage)
    late = run(repo.writable_session("main"), ours)
    for transaction in theirs:
        run(repo.writable_session("main"), transaction).commit("first", allow_empty=True)
    try:
        late.rebase(ConflictDetector())
    except RebaseFailedError:
        return None
    before = contents(late)
    late.commit("second", allow_empty=True)
    after = head(storage)
    assert before == after, "a moved session shows what its commit will hold"
    return after


def check_pair(first: Transaction, second: Transaction, generation: str = "1") -> None:
    results = [
        rebased(first, second, generation=generation),
        rebased(second, first, generation=generation),
    ]
    clean = [result for result in results if result is not None]
    event(f"{len(clean)} of 2 directions are free of conflicts")
    if not clean:
        return
    orders = [
        one_after_the_other(first, second, generation=generation),
        one_after_the_other(second, first, generation=generation),
    ]
    for result in clean:
        assert result == orders[0]
        assert result == orders[1]


def check_chain(ours: Transaction, theirs: list[Transaction], generation: str = "1") -> None:
    result = rebased(ours, *theirs, generation=generation)
    event("conflict" if result is None else "free of conflicts")
    if result is not None:
        assert result == one_after_the_other(ours, *theirs, generation=generation)


@settings(max_examples=120)
@given(transactions, transactions)
def test_what_is_free_of_conflicts_does_not_depend_on_the_order(
    first: Transaction, second: Transaction
) -> None:
    check_pair(first, second)


@settings(max_examples=30)
@given(transactions, st.lists(transactions, min_size=2, max_size=3))
def test_a_session_moved_over_several_commits_is_as_if_it_had_come_first(
    ours: Transaction, theirs: list[Transaction]
) -> None:
    check_chain(ours, theirs)


@pytest.mark.parametrize("generation", [one for one in GENERATIONS if one != "1"])
@settings(max_examples=12)
@given(transactions, st.lists(transactions, min_size=1, max_size=2))
def test_orders_do_not_matter_in_other_generations_either(
    generation: str, ours: Transaction, theirs: list[Transaction]
) -> None:
    check_pair(ours, theirs[0], generation)
    check_chain(ours, theirs, generation)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=10_000)
@given(transactions, transactions)
def test_ten_thousand_pairs_do_not_depend_on_the_order(
    first: Transaction, second: Transaction
) -> None:
    check_pair(first, second)
