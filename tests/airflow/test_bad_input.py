"""Input that cannot work, through the operators: refused in words, and nothing is changed."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr
from airflow.sdk.exceptions import AirflowFailException
from support.airflow_contexts import make_context
from support.provider_classes import AT, DATASET, listed, parameters, required

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
    RebaseFailedError,
)
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.operators.branch import IcechunkCreateBranchOperator
from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_provider_icechunk.operators.tag import IcechunkCreateTagOperator

ROOT = "1CECHNKREP0F1RSTCMT0"
VALUES: dict[str, Any] = {
    "repository": "weather", "branch": "dev", "tag": "v1", "source": "dev", "message": "m",
    "path": "x", "older_than": "30d", "snapshot_id": ROOT, "session": "{}",
    "dataset": DATASET, "at": AT, "target": "copy", "array": "x", "chunks": [1],
    "checks": [{"check": "missing", "array": "x", "most": 0}],
}  # fmt: skip
ONE_OF_TWO: dict[str, dict[str, Any]] = {
    "IcechunkAttributesOperator": {"attributes": {"/": {"a": 1}}},
    "IcechunkDropLabelsOperator": {"keep": 1},
    "IcechunkSparkSubmitOperator": {"writes": [{"array": "x", "generator": "index"}]},
}
"""Of arguments that may each be left out, but not all of them."""
OPERATORS = listed("operators", "sensors")
ON_A_REPOSITORY = [one for one in OPERATORS if "repository" in parameters(one)]
FIELD = {"path": "field", "shape": [4], "chunks": [2], "dtype": "int32"}


@pytest.fixture
def repository(folder: Path, connect: Callable[..., str]) -> Repository:
    connect("spark_default", conn_type="spark", host="local[1]")
    return Repository.create(local_filesystem_storage(folder / "weather"))


def build(made: type[Any], **given: Any) -> Any:
    needed = {name: VALUES[name] for name in required(made)} | ONE_OF_TWO.get(made.__name__, {})
    return made(task_id="task", **needed | given)


def run(made: type[Any], **given: Any) -> Any:
    return build(made, **given).execute(make_context())


def state(folder: Path) -> set[Path]:
    return set(folder.parent.rglob("*"))


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("made", ON_A_REPOSITORY, ids=lambda one: str(one.__name__))
@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "s3://bucket/x", "a/../../b", ""])
def test_a_repository_outside_of_the_root_is_refused_by_every_operator(
    made: type[Any], name: str, folder: Path
) -> None:
    before = state(folder)
    with pytest.raises(Exception, match=r"root|no name") as caught:
        run(made, repository=name)
    assert isinstance(caught.value, (InvalidInputError, AirflowFailException))
    assert state(folder) == before


def test_every_operator_that_takes_a_repository_is_asked() -> None:
    with_session = {one.__name__ for one in set(OPERATORS) - set(ON_A_REPOSITORY)}
    assert with_session == {"IcechunkCommitOperator", "IcechunkAbortSessionOperator"}


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "", "x\x00y", "%2e%2e", "a" * 300, "-\n"])
@pytest.mark.parametrize(
    ("made", "field"),
    [(IcechunkCreateBranchOperator, "branch"), (IcechunkCreateTagOperator, "tag")],
)
def test_names_that_lead_elsewhere_are_refused(
    made: type[Any], field: str, name: str, repository: Repository, folder: Path
) -> None:
    with pytest.raises(InvalidInputError):
        run(made, **{field: name})
    assert repository.list_branches() | repository.list_tags() == {"main"}
    assert {path.name for path in folder.parent.iterdir()} == {folder.name}
    assert {path.name for path in folder.iterdir()} == {"weather"}


WRITERS_TO_A_BRANCH = [
    one
    for one in ON_A_REPOSITORY
    if "branch" in parameters(one)
    and one.__name__.endswith("Operator")
    and not one.__name__.startswith(("IcechunkCreateBranch", "IcechunkDeleteBranch"))
]


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("made", WRITERS_TO_A_BRANCH, ids=lambda one: str(one.__name__))
def test_an_unknown_branch_is_named_with_those_that_are_there(made: type[Any]) -> None:
    given = {"snapshot_id": ROOT} if "Reset" in made.__name__ else {}
    with pytest.raises(NotFoundError, match=r"nowhere") as caught:
        run(made, branch="nowhere", **given)
    assert caught.value.kind is Kind.BRANCH_NOT_FOUND
    assert "main" in str(caught.value)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "made",
    [
        one
        for one in ON_A_REPOSITORY
        # A declaration of a dataset makes its repository, like the creation itself.
        if not any(part in one.__name__ for part in ("Sensor", "CreateRepository", "Declare"))
    ],
    ids=lambda one: str(one.__name__),
)
def test_a_repository_that_is_not_there_is_named_with_the_remedy(
    made: type[Any], connect: Callable[..., str]
) -> None:
    connect("spark_default", conn_type="spark", host="local[1]")
    # What a restore misses is the copy, and a new repository would not help.
    maker = "Backup" if "Restore" in made.__name__ else "CreateRepository"
    with pytest.raises(NotFoundError, match=f"Icechunk{maker}Operator") as caught:
        run(made)
    assert caught.value.kind is Kind.REPOSITORY_NOT_FOUND


def test_a_conflicting_write_is_refused_and_the_other_one_stays(repository: Repository) -> None:
    def opened_with(value: int) -> dict[str, Any]:
        arrays = [{**FIELD, "values": [value] * 4}]
        task = IcechunkOpenSessionOperator(task_id="open", repository="weather", arrays=arrays)
        return task.execute(make_context())

    first, second = opened_with(1), opened_with(2)

    def commit(opened: dict[str, Any], run_id: str, **given: Any) -> dict[str, Any]:
        task = IcechunkCommitOperator(task_id="commit", session=opened, message=run_id, **given)
        return task.execute(make_context(run_id=run_id))

    made = commit(first, "first")
    with pytest.raises(ConflictError):
        commit(second, "second", rebase=False)
    with pytest.raises(RebaseFailedError, match="field"):
        commit(second, "second")
    assert repository.lookup_branch("main") == made["snapshot_id"]


def commit_attribute(repository: Repository, value: str) -> str:
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["value"] = value
    return session.commit(value)


@pytest.mark.parametrize("lost", ["reset", "expired", "collected"])
def test_a_session_whose_base_is_lost_is_told_so_and_changes_nothing(
    lost: str, repository: Repository
) -> None:
    opened = IcechunkOpenSessionOperator(task_id="open", repository="weather", arrays=[FIELD])
    base = commit_attribute(repository, "base")
    stale = opened.execute(make_context())
    if lost == "reset":
        repository.reset_branch("main", ROOT)
    newest = [commit_attribute(repository, value) for value in ("one", "two")][-1]
    if lost != "reset":
        repository.expire_snapshots(repository.lookup_snapshot(newest).written_at)
    if lost == "collected":
        repository.garbage_collect(datetime.now(UTC), minimum_age=timedelta(0))
    commit = IcechunkCommitOperator(task_id="commit", session=stale, message="late")
    expected = NotFoundError if lost == "collected" else ConflictError
    words = "and been collected" if lost == "collected" else "start again from a new session"
    with pytest.raises(expected, match=words) as caught:
        commit.execute(make_context())
    assert base in str(caught.value)
    assert repository.lookup_branch("main") == newest


@pytest.mark.usefixtures("repository")
def test_a_missing_spark_connection_is_an_error_and_not_yarn() -> None:
    with pytest.raises(InvalidInputError, match="no Spark connection 'elsewhere'"):
        run(IcechunkSparkSubmitOperator, application="job.py", conn_id="elsewhere")


def test_a_missing_icechunk_connection_is_named() -> None:
    with pytest.raises(Exception, match="nowhere"):
        IcechunkHook("nowhere").open("weather")
