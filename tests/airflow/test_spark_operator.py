"""One task for a Spark transaction: what is committed, and after which deaths."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from support.airflow_contexts import cleared, make_context, retried

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.exceptions import InvalidInputError, SessionError
from airflow_provider_icechunk.operators.spark import SESSION_KEY, IcechunkSparkSubmitOperator
from airflow_provider_icechunk.repository.jobs import JobFolder
from airflow_provider_icechunk.spark.specification import parse_session

FIELD = {"path": "field", "shape": [4], "chunks": [2], "dtype": "int32"}


class State(dict[str, Any]):
    """The state store of a task."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)


@pytest.fixture
def repository(folder: Path, connect: Callable[..., str]) -> Repository:
    connect("spark_default", conn_type="spark", host="local[1]")
    return Repository.create(local_filesystem_storage(folder / "weather"))


def write(session: dict[str, Any], value: int) -> None:
    """What a job does: write chunks through a fork and leave a fragment."""
    described = parse_session(session)
    repository = Repository.open(described.place.storage())
    fork = repository.fork(described.work_unit)
    zarr.open_array(fork.store, path="field", mode="r+")[:] = value
    JobFolder(repository.storage, fork.work.job).put_fragment("w", fork.fragment("w"))


def field(repository: Repository) -> list[int]:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path="field", mode="r")[:]).tolist()


def commits(repository: Repository) -> int:
    return len(list(repository.ancestry(branch="main"))) - 1


def operator(**arguments: Any) -> IcechunkSparkSubmitOperator:
    given = {"task_id": "task", "repository": "weather", "arrays": [FIELD], **arguments}
    return IcechunkSparkSubmitOperator(**given)


def run(
    monkeypatch: pytest.MonkeyPatch,
    job: Callable[[IcechunkSparkSubmitOperator, Any], None],
    state: State | None = None,
    attempt: Any = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Execute the task with `job` in the place of Spark's submission."""
    monkeypatch.setattr(SparkSubmitOperator, "execute", job)
    monkeypatch.setattr(SparkSubmitOperator, "submit_job", lambda *_: "driver-1")
    monkeypatch.setattr(SparkSubmitOperator, "get_job_status", lambda *_: "RUNNING")
    context = (attempt or make_context()) | {"task_state_store": state}
    return operator(**arguments).execute(context)


def submits(value: int) -> Callable[[IcechunkSparkSubmitOperator, Any], None]:
    def job(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        task.submit_job(context)
        *_, text = task.application_args
        write(json.loads(text)["session"], value)

    return job


def test_what_the_job_wrote_is_one_commit(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(monkeypatch, submits(3), message="by spark", application_args=["--flag"])
    assert field(repository) == [3] * 4
    info = repository.lookup_snapshot(result["snapshot_id"])
    assert (info.message, result["chunks"]) == ("by spark", 2)
    assert info.metadata["airflow"]["task_id"] == "task"


def test_a_retry_of_a_task_that_committed_submits_nothing_any_more(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(monkeypatch, submits(3))

    def fail(*_: Any) -> None:
        raise AssertionError("it was submitted again")

    assert run(monkeypatch, fail, attempt=retried(make_context())) == first
    assert commits(repository) == 1


def test_a_job_that_fails_leaves_nothing_and_the_next_attempt_merges_only_its_own(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[dict[str, Any]] = []

    def die(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        submits(1)(task, context)
        lost.append(json.loads(task.application_args[-1])["session"])
        raise RuntimeError("the driver died")

    with pytest.raises(RuntimeError):
        run(monkeypatch, die)
    assert commits(repository) == 0

    def zombie(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        submits(2)(task, context)
        write(lost[0], 9)

    run(monkeypatch, zombie)
    assert field(repository) == [2] * 4


def test_a_job_that_outlived_its_worker_is_committed_by_the_next_attempt(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()

    def worker_dies(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        task.submit_job(context)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, worker_dies, state)
    write(state[SESSION_KEY]["session"], 4)

    def reattach(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        task.get_job_status("driver-1", context)

    run(monkeypatch, reattach, state, retried(make_context()))
    assert field(repository) == [4] * 4
    assert commits(repository) == 1


def test_a_cleared_task_does_not_take_the_job_of_the_run_before_for_its_own(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow keeps the state of a task that is cleared, and with it the id of a job that ended."""
    state, context = State(), cleared(make_context())

    def resume_or_submit(value: int) -> Callable[[IcechunkSparkSubmitOperator, Any], None]:
        def job(task: IcechunkSparkSubmitOperator, context: Any) -> None:
            if task.external_id_key in state:
                task.get_job_status(state[task.external_id_key], context)
            else:
                submits(value)(task, context)
                state.set(task.external_id_key, "driver-1")

        return job

    first = run(monkeypatch, resume_or_submit(1), state)
    again = run(monkeypatch, resume_or_submit(2), state, context)
    assert again["supersedes"] == first["snapshot_id"]
    assert field(repository) == [2] * 4


@pytest.mark.usefixtures("repository")
def test_a_found_job_without_its_session_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    def reattach(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        task.get_job_status("driver-1", context)

    with pytest.raises(SessionError, match="not known any more"):
        run(monkeypatch, reattach, State())


@pytest.mark.usefixtures("repository")
def test_a_missing_spark_connection_is_refused_before_anything_is_done() -> None:
    with pytest.raises(InvalidInputError, match="no Spark connection 'nowhere'"):
        operator(conn_id="nowhere").execute(make_context())
