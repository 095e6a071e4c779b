"""Operators that get a dataset: a run knows its place, in whatever order runs come."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from airflow.sdk import DAG, Asset
from support.airflow_contexts import cleared, retried
from support.airflow_contexts import make_context as context

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator

WEATHER = IcechunkDataset(
    "weather",
    dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 3},
    variables={"t2m": Variable("float32", ("time", "latitude"))},
    coords={"latitude": Coordinate(start=90, step=-1)},
)


def open_session(at: Any, run_id: str = "run", **arguments: Any) -> dict[str, Any]:
    operator = IcechunkOpenSessionOperator(task_id="open", dataset=WEATHER, at=at, **arguments)
    return operator.execute(context("open", run_id))


def write(session: dict[str, Any], value: float) -> None:
    """A writer that learns from the description alone what is its part."""
    described = parse_session(session)
    declared = described.declared()
    assert declared is not None
    dataset, placement = declared
    repository = Repository.open(described.place.storage())
    fork = repository.fork(described.work_unit)
    for name, variable in dataset.variables.items():
        region = tuple(slice(*span) for span in placement.region(variable.dims))
        zarr.open_array(fork.store, path=dataset.path(name), mode="r+")[region] = value
    JobFolder(repository.storage, fork.work.job).put_fragment("only", fork.fragment("only"))


def run(day: int, *, value: float | None = None) -> dict[str, Any]:
    run_id = f"day {day} {value}"
    session = open_session({"time": f"2026-01-{day:02}"}, run_id)
    write(session, day if value is None else value)
    return IcechunkCommitOperator(task_id="commit", session=session, message="day").execute(
        context("commit", run_id)
    )


def test_labels_become_partition_keys_where_that_is_asked_for(folder: Path) -> None:
    from airflow.sdk.execution_time.context import OutletEventAccessors

    day = Asset(name="day", uri="icechunk://bucket/weather")
    session = open_session({"time": ["2026-01-06", "2026-01-07"]})
    write(session, 6)
    there = context("commit") | {
        "outlet_events": OutletEventAccessors(),
        "partition_key": "2026-W02",
    }
    IcechunkCommitOperator(
        task_id="commit", session=session, message="day", outlets=[day], partition_by="time"
    ).execute(there)
    event = there["outlet_events"][day]
    assert event.partition_keys == {"2026-01-06", "2026-01-07"}
    assert event.extra["partition_key"] == "2026-W02"


@pytest.mark.parametrize("key", ["2026-01-06", None])
def test_a_run_gets_its_place_by_its_partition_key(folder: Path, key: str | None) -> None:
    with DAG("partitions"):
        operator = IcechunkOpenSessionOperator(
            task_id="open", dataset=WEATHER, at={"time": "{{ partition_key }}"}
        )
    there = context("open") | {"partition_key": key}
    operator.render_template_fields(there)
    if key is None:
        with pytest.raises(InvalidInputError, match="without a logical date"):
            operator.execute(there)
    else:
        assert operator.execute(there)["placement"]["regions"] == {"time": [5, 6]}


def test_commits_and_events_tell_the_labels_that_were_written(folder: Path) -> None:
    day = Asset(name="day", uri="icechunk://bucket/weather")
    session = open_session({"time": ["2026-01-06", "2026-01-07"]})
    write(session, 6)
    there = context("commit")
    result = IcechunkCommitOperator(
        task_id="commit", session=session, message="day", outlets=[day]
    ).execute(there)
    assert result["labels"] == {"time": ["2026-01-06", "2026-01-07"]}
    assert there["outlet_events"][day].extra["labels"] == result["labels"]
    assert "partition_key" not in there["outlet_events"][day].extra
    again = IcechunkCommitOperator(task_id="commit", session=session, message="day")
    assert again.execute(retried(context("commit")))["labels"] == result["labels"]


def opened(folder: Path) -> xr.Dataset:
    store = Repository.open(local_filesystem_storage(folder / "weather")).readonly_session("main")
    return xr.open_zarr(store.store, consolidated=False, chunks=None)


def test_runs_in_any_order_and_again_write_their_own_day_only(folder: Path) -> None:
    for day in (16, 6, 11):
        run(day)
    run(6, value=66)
    found = opened(folder)
    expected = np.zeros((16, 3), np.float32)
    expected[[15, 5, 10]] = [[16], [66], [11]]
    np.testing.assert_array_equal(found.t2m.values, expected)
    assert found.t2m.sel(time="2026-01-06").values.tolist() == [66] * 3


def test_a_backfill_has_each_day_once_the_cleared_one_new_and_the_official_library_reads_it(
    folder: Path,
) -> None:
    import icechunk

    days = (5, 8, 1, 7, 2, 6, 3, 4)
    opened_sessions = {day: open_session({"time": f"2026-01-{day:02}"}, str(day)) for day in days}
    for day, session in opened_sessions.items():
        write(session, day)
    made = {day: commit(session, context("commit", str(day)))
            for day, session in opened_sessions.items()}  # fmt: skip
    killed = retried(context("commit", "7"))
    assert commit(opened_sessions[7], killed) == made[7]
    again = open_session({"time": "2026-01-03"}, "3")
    write(again, 33)
    newer = commit(again, cleared(context("commit", "3")))
    assert newer["supersedes"] == made[3]["snapshot_id"]
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(folder / "weather"))
    )
    assert len(list(repository.ancestry(branch="main"))) == 1 + len(days) + 1
    data = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    expected = np.repeat(np.arange(1, 9, dtype=np.float32)[:, None], 3, axis=1)
    expected[2] = 33
    np.testing.assert_array_equal(data.t2m.values, expected)
    assert [str(day)[:10] for day in data.time.values] == [f"2026-01-0{day}" for day in range(1, 9)]


def commit(session: dict[str, Any], where: Any) -> dict[str, Any]:
    operator = IcechunkCommitOperator(task_id="commit", session=session, message="day")
    return operator.execute(where)


@pytest.mark.usefixtures("folder")
def test_the_description_of_a_session_says_where_writers_belong() -> None:
    session = open_session({"time": "2026-01-06"})
    assert session["placement"] == {
        "regions": {"time": [5, 6]},
        "labels": {"time": ["2026-01-06"]},
        "lengths": {"time": 6, "latitude": 3},
    }
    assert IcechunkDataset.from_json(session["dataset"]) == WEATHER.on(coords={})


def test_a_session_without_a_dataset_is_described_as_before(folder: Path) -> None:
    Repository.create(local_filesystem_storage(folder / "weather"))
    session = IcechunkOpenSessionOperator(task_id="open", repository="weather").execute(context())
    assert set(session) == {"repository", "conn_id", "place", "work_unit", "fragments", "release"}


def test_repository_branch_and_connection_are_those_of_the_dataset() -> None:
    dataset = WEATHER.on(branch="next", icechunk_conn_id="other")
    operator = IcechunkOpenSessionOperator(task_id="open", dataset=dataset, at={"time": "x"})
    assert (operator.repository, operator.branch) == ("weather", "next")
    assert operator.icechunk_conn_id == "other"
    other = IcechunkOpenSessionOperator(
        task_id="open", dataset=dataset, at={"time": "x"}, repository="copy", branch="main",
        icechunk_conn_id="mine",
    )  # fmt: skip
    assert (other.repository, other.branch) == ("copy", "main")
    assert other.icechunk_conn_id == "mine"


def test_an_operator_needs_a_repository_or_a_dataset() -> None:
    with pytest.raises(InvalidInputError, match="needs a `repository`, or a `dataset`"):
        IcechunkOpenSessionOperator(task_id="open")


def test_a_place_without_a_dataset_is_refused_where_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidInputError, match="give dataset= as well"):
        IcechunkOpenSessionOperator(task_id="open", repository="w", at={"time": "2026-01-01"})


@pytest.mark.parametrize(
    "template", ["{{ ds }}", "{{ logical_date }}", "{{ data_interval_start }}"]
)
def test_a_run_without_a_logical_date_is_told_what_to_do(template: str) -> None:
    with DAG("dag"):
        operator = IcechunkOpenSessionOperator(
            task_id="open", dataset=WEATHER, at={"time": template}
        )
    with pytest.raises(InvalidInputError, match="without a logical date"):
        operator.render_template_fields({})


def test_other_undefined_names_keep_their_error() -> None:
    with DAG("dag"):
        operator = IcechunkOpenSessionOperator(
            task_id="open", dataset=WEATHER, at={"time": "{{ days }}"}
        )
    with pytest.raises(Exception, match="'days' is undefined"):
        operator.render_template_fields({"logical_date": None})


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("label", ["", None, "None"])
def test_an_empty_label_is_told_what_to_do(label: Any) -> None:
    with pytest.raises(InvalidInputError, match="partition_key"):
        open_session({"time": label})
