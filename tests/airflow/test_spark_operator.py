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
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    NotFoundError,
    SessionError,
    TaskError,
)
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.operators.spark import SESSION_KEY, IcechunkSparkSubmitOperator
from airflow_provider_icechunk.spark.specification import FunctionWrite, parse_job
from airflow_provider_icechunk.spark.write.functions import FunctionWork
from airflow_provider_icechunk.spark.write.places import place_of_run

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
    own = {"application": "job.py"}
    given = {"task_id": "task", "repository": "weather", "arrays": [FIELD], **own, **arguments}
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

    with pytest.raises(SessionError, match="no longer known"):
        run(monkeypatch, reattach, State())


WEATHER = IcechunkDataset(
    "daily",
    dims={"time": Growing(start="2026-01-01", every="1D"), "x": 3},
    variables={"t2m": Variable("int32", ("time", "x")), "mean": Variable("float64", ("time",))},
)


def calls(add: int) -> Callable[[IcechunkSparkSubmitOperator, Any], None]:
    """What the application does, without Spark: call the function for the place of the run."""

    def days(region: Any, more: int) -> dict[str, Any]:
        number = np.asarray(region.labels["time"].astype("datetime64[D]").astype(int)) - 20_453
        return {"t2m": number[:, None] + add + more, "mean": number + 0.5}

    def job(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        task.submit_job(context)
        given = parse_job(task.application_args[-1])
        repository = Repository.open(given.session.place.storage())
        _, placement = given.session.declared() or (None, None)
        (write,) = given.writes
        assert isinstance(write, FunctionWrite)
        fork = repository.fork(given.session.work_unit)
        region = place_of_run(fork, write.arrays, placement)
        work = FunctionWork(write.arrays, days, write.arguments, region, None)
        writer = work.writer(fork, 1)
        for number in range(len(writer.names)):
            writer(fork, number)
        JobFolder(repository.storage, fork.work.job).put_fragment("w", fork.fragment("w"))

    return job


def run_day(
    monkeypatch: pytest.MonkeyPatch, day: int, job: Any, attempt: Any = None, state: Any = None
) -> dict[str, Any]:
    monkeypatch.setattr(SparkSubmitOperator, "execute", job)
    monkeypatch.setattr(SparkSubmitOperator, "submit_job", lambda *_: "driver-1")
    task = IcechunkSparkSubmitOperator(
        task_id="task",
        dataset=WEATHER,
        at={"time": f"2026-01-{day:02}"},
        function="jobs:days",
        arguments={"more": 1},
    )
    context = (attempt or make_context(run_id=f"day-{day}")) | {"task_state_store": state}
    return task.execute(context)


def days_there(folder: Path) -> dict[int, list[int]]:
    store = (
        Repository.open(local_filesystem_storage(folder / "daily")).readonly_session("main").store
    )
    cells = np.asarray(zarr.open_array(store, path="t2m", mode="r")[:])
    return {day: row.tolist() for day, row in enumerate(cells, 1) if row.any()}


@pytest.mark.usefixtures("repository")
def test_days_are_written_in_any_order_and_a_cleared_day_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_day(monkeypatch, 16, calls(0))
    first = run_day(monkeypatch, 6, calls(0))
    assert days_there(folder) == {6: [7] * 3, 16: [17] * 3}

    def fail(*_: Any) -> None:
        raise AssertionError("it was submitted again")

    again = retried(make_context(run_id="day-6"))
    assert run_day(monkeypatch, 6, fail, again) == first
    clear = run_day(monkeypatch, 6, calls(100), cleared(make_context(run_id="day-6")))
    assert clear["supersedes"] == first["snapshot_id"]
    assert days_there(folder) == {6: [107] * 3, 16: [17] * 3}


@pytest.mark.usefixtures("repository")
def test_a_failed_job_tells_its_own_error_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        given = parse_job(task.application_args[-1])
        folder = JobFolder(given.session.place.storage(), str(given.session.work_unit["job"]))
        folder.put_result("w", {"error": "TaskError: task 1 of 2: jobs:days raised OSError: no"})
        raise RuntimeError("Cannot execute: spark-submit ... Error code is: 1.")

    with pytest.raises(TaskError) as caught:
        run_day(monkeypatch, 6, broken)
    first, second = str(caught.value).splitlines()
    assert first == "task 1 of 2: jobs:days raised OSError: no"
    assert second.startswith("Spark says: Cannot execute")
    assert isinstance(caught.value.__cause__, RuntimeError)


DAILY: dict[str, Any] = {"dataset": WEATHER, "at": {"time": "{{ ds }}"}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"repository": "r", "function": "a:b"}, "function= needs a dataset"),
        ({"repository": "r", "at": {"time": "x"}}, "at= is a place in a dataset"),
        ({"repository": "r"}, "nothing to write"),
        ({"dataset": WEATHER, "function": "a:b"}, "at= must say where along 'time'"),
        ({"dataset": WEATHER, "at": {"tim": "x"}, "function": "a:b"}, "at= names 'tim'.*'time'"),
        ({**DAILY, "function": "a:b", "writes": [{}]}, "either function="),
        ({**DAILY, "function": "a:b", "variables": ["u"]}, "'u'.*'t2m'"),
        ({**DAILY, "function": "jobs.field"}, "'jobs.field' must be 'package.module:name'"),
        ({**DAILY, "function": "a:b", "on_conflict": "mine"}, "on_conflict.*'theirs', not 'mine'"),
        ({**DAILY, "function": "a:b", "on_rerun": "never"}, "on_rerun.*'skip'.*not 'never'"),
    ],
)
def test_arguments_that_can_never_work_are_refused_where_the_dag_is_parsed(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        IcechunkSparkSubmitOperator(task_id="task", **arguments)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        ({"aray": "t2m", "function": "a:b"}, "aray"),
        ({"array": "t2m", "function": "a:b", "region": {"time": [0]}}, "region"),
    ],
)
def test_a_write_that_is_not_understood_is_refused_before_anything_is_created(
    repository: Any, write: dict[str, Any], words: str
) -> None:
    missing = WEATHER.on(repository="not-there")
    task = IcechunkSparkSubmitOperator(
        task_id="task", dataset=missing, at={"time": "2026-01-06"}, writes=[write]
    )
    with pytest.raises(InvalidInputError, match=rf"writes= is wrong.*{words}"):
        task.execute(make_context())
    with pytest.raises(NotFoundError):
        IcechunkHook("icechunk_default").open("not-there")


@pytest.mark.usefixtures("repository")
def test_a_missing_spark_connection_is_refused_before_anything_is_done() -> None:
    with pytest.raises(InvalidInputError, match="no Spark connection 'nowhere'"):
        operator(conn_id="nowhere").execute(make_context())
