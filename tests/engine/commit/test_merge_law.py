"""What merges gives the tree, documents and values of every serial order."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import event, given, settings
from support import appending
from support.appending import Run
from support.merging import Transaction, merged, modelled, transactions

from airflow_provider_icechunk.dataset import IcechunkDataset
from airflow_provider_icechunk.engine.commit.merge import MergeSolver


def check(*parallel: Transaction) -> None:
    result = merged(*parallel)
    event("conflict" if result is None else "merged")
    if result is not None:
        for order in permutations(parallel):
            assert result == modelled(*order)


@settings(max_examples=50)
@given(transactions, transactions)
def test_two_commits_that_merge_are_as_if_one_had_come_after_the_other(
    first: Transaction, second: Transaction
) -> None:
    check(first, second)


@settings(max_examples=25)
@given(transactions, transactions, transactions)
def test_three_commits_that_merge_do_not_depend_on_their_order(
    first: Transaction, second: Transaction, third: Transaction
) -> None:
    check(first, second, third)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=10_000)
@given(transactions, transactions)
def test_ten_thousand_pairs_that_merge_do_not_depend_on_their_order(
    first: Transaction, second: Transaction
) -> None:
    check(first, second)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=10_000)
@given(transactions, transactions, transactions)
def test_ten_thousand_triples_that_merge_do_not_depend_on_their_order(
    first: Transaction, second: Transaction, third: Transaction
) -> None:
    check(first, second, third)


def check_appends(
    dataset: IcechunkDataset, *in_order: list[Run], solver: MergeSolver | None = None
) -> None:
    result = appending.landed(dataset, *in_order, solver=solver)
    event("refused" if result is None else "conflict" if isinstance(result, str) else "merged")
    if isinstance(result, dict):
        assert result == appending.modelled(*in_order)
    elif result is not None:
        labels = [label for runs in in_order for label in {n for run in runs for n in run.labels}]
        recorded = all(run.is_recorded for runs in in_order for run in runs)
        assert len(set(labels)) < len(labels) or not recorded, result


@settings(max_examples=25)
@given(appending.datasets, appending.transactions, appending.transactions)
def test_two_appends_are_as_if_the_later_commit_had_begun_after_the_other(
    dataset: IcechunkDataset, first: list[Run], second: list[Run]
) -> None:
    check_appends(dataset, first, second)


@settings(max_examples=12)
@given(appending.datasets, appending.transactions, appending.transactions, appending.transactions)
def test_three_appends_that_replace_labels_come_in_the_order_of_their_commits(
    dataset: IcechunkDataset, first: list[Run], second: list[Run], third: list[Run]
) -> None:
    check_appends(dataset, first, second, third, solver=MergeSolver(on_existing_label="replace"))


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=10_000)
@given(appending.datasets, appending.transactions, appending.transactions)
def test_ten_thousand_pairs_of_appends_come_in_the_order_of_their_commits(
    dataset: IcechunkDataset, first: list[Run], second: list[Run]
) -> None:
    check_appends(dataset, first, second)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=10_000)
@given(appending.datasets, appending.transactions, appending.transactions, appending.transactions)
def test_ten_thousand_triples_of_appends_come_in_the_order_of_their_commits(
    dataset: IcechunkDataset, first: list[Run], second: list[Run], third: list[Run]
) -> None:
    check_appends(dataset, first, second, third, solver=MergeSolver(on_existing_label="replace"))
