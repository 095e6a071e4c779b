"""Adding an operator: one class that opens the repository, calls the engine and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Context
from support.airflow_contexts import make_context
from support.branch_changes import change

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.exceptions import NotFoundError
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink
from airflow_provider_icechunk.operators.base import RepositoryOperator


class CountCommitsOperator(RepositoryOperator):
    template_fields = ("repository", "branch")
    operator_extra_links = (IcechunkSnapshotLink(),)

    def __init__(self, *, branch: str = "main", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch

    def execute(self, context: Context) -> dict[str, Any]:
        commits = list(self.open_repository().ancestry(branch=self.branch))
        self.link_to(commits[0].id)
        return {"branch": self.branch, "commits": len(commits), "snapshot_id": commits[0].id}


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    change(made, "begin")
    return made


def test_a_new_operator_needs_nothing_but_its_execute(repository: Repository) -> None:
    with DAG("counting"):
        operator = CountCommitsOperator(
            task_id="count", repository="{{ where }}", branch="{{ which }}"
        )
    operator.render_template_fields({"where": "weather", "which": "main"})
    result = operator.execute(make_context("count"))
    head = repository.lookup_branch("main")
    assert result == {"branch": "main", "commits": 2, "snapshot_id": head}


def test_a_new_operator_says_which_repository_is_missing(folder: Path) -> None:
    operator = CountCommitsOperator(task_id="count", repository="nowhere")
    with pytest.raises(NotFoundError, match="nowhere"):
        operator.execute(make_context("count"))
