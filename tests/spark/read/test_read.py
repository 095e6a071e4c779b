"""Arrays as frames: the cells that are there, at the snapshot that was asked for."""

from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError
from airflow_provider_icechunk.spark.columns import column_for, to_arrow
from airflow_provider_icechunk.spark.read.frames import read_dataframe, read_task
from airflow_provider_icechunk.spark.read.plan import PlannedRead, Selection, plan_reading

LATITUDES = [90.0, 45.0, 0.0, -45.0, -90.0]


def fill(repository: Repository) -> Session:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    options: Any = {"shape": (4, 5), "chunks": (2, 3), "dimension_names": ("time", "lat")}
    root.create_array("t", dtype="float32", **options)[:] = np.arange(20).reshape(4, 5)
    root.create_array("q", dtype="uint8", **options)[:] = np.arange(20).reshape(4, 5) + 100
    lat = root.create_array("lat", shape=(5,), dtype="float64", dimension_names=("lat",))
    lat[:] = LATITUDES
    session.commit("filled")
    return repository.readonly_session("main")


def plan(session: Session, path: str = "/", **options: Any) -> PlannedRead:
    selection = Selection(options.pop("isel", {}), options.pop("sel", {}))
    defaults: dict[str, Any] = {
        "layout": "long", "variables": None, "coordinates": True, "tasks": None, "cores": 1
    }  # fmt: skip
    return plan_reading(session, path, selection=selection, **defaults | options)


def rows(reading: PlannedRead) -> list[dict[str, Any]]:
    batches = [batch for task in reading.tasks for batch in read_task(reading, task)]
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def session() -> Session:
    return fill(Repository.create(in_memory_storage()))


def test_a_group_is_a_row_for_each_cell_with_coordinates(session: Session) -> None:
    found = {(r["time"], r["lat"]): (r["q"], r["t"]) for r in rows(plan(session, tasks=3))}
    assert found == {
        (time, lat): (100 + 5 * time + row, 5.0 * time + row)
        for time in range(4)
        for row, lat in enumerate(LATITUDES)
    }


def test_a_selection_reads_no_chunk_outside_of_it(session: Session) -> None:
    reading = plan(session, "t", isel={"time": 3}, sel={"lat": (-90, -40)}, tasks=4)
    assert [task.region for task in reading.tasks] == [((3, 4), (3, 5))]
    assert [row["t"] for row in rows(reading)] == [18.0, 19.0]


def test_chunk_rows_hold_whole_chunks_as_bytes(session: Session) -> None:
    (row,) = rows(plan(session, "t", layout="chunks", isel={"time": (3, 4), "lat": (4, 5)}))
    assert (row["chunk"], row["start"], row["shape"]) == ([1, 1], [2, 3], [2, 2])
    assert np.frombuffer(row["data"], "<f4").tolist() == [13, 14, 18, 19]


def test_positions_stand_where_coordinates_are_not_wanted(session: Session) -> None:
    assert {row["lat"] for row in rows(plan(session, "t", coordinates=False))} == set(range(5))
    assert set(rows(plan(session, "lat"))[0]) == {"lat_index", "lat"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "missing"}, "no array and no group"),
        ({"isel": {"depth": 1}}, "no dimension 'depth'"),
        ({"isel": {"time": (2, 9)}}, "are outside"),
        ({"isel": {"lat": 1}, "sel": {"lat": (0, 1)}}, "two ways"),
        ({"sel": {"time": (0, 1)}}, "no coordinate"),
        ({"variables": ["t", "lat"]}, "different dimensions"),
        ({"variables": ["z"]}, "no array 'z'"),
    ],
)
def test_a_read_that_makes_no_sense_is_refused(
    session: Session, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        plan(session, **options)


@pytest.mark.parametrize(
    ("values", "spark_type"),
    [
        (np.array([True, False]), "boolean"),
        (np.array([200], "u1"), "short"),
        (np.array([1.5], ">f2"), "float"),
        (np.array([1 << 31], "u4"), "long"),
        (np.array(["a", "ü"]), "string"),
    ],
)
def test_values_keep_their_meaning_in_columns(values: Any, spark_type: str) -> None:
    column = column_for("x", values.dtype)
    assert column.spark == spark_type
    assert to_arrow(values, column).to_pylist() == values.tolist()


def test_times_are_timestamps_and_complex_numbers_are_refused() -> None:
    times = np.array(["2026-01-02T03:04:05"], "datetime64[s]")
    (answer,) = to_arrow(times, column_for("x", times.dtype)).to_pylist()
    assert answer.isoformat() == "2026-01-02T03:04:05+00:00"
    with pytest.raises(UnsupportedError, match="complex128"):
        column_for("x", np.dtype(complex))


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_spark_reads_the_snapshot_of_the_moment_the_read_was_planned(
    spark: SparkSession, repository: Repository
) -> None:
    fill(repository)
    frame = read_dataframe(spark, repository, tasks=3)
    writing = repository.writable_session("main")
    zarr.open_array(writing.store, path="t", mode="r+")[:] = -1
    writing.commit("later")
    assert [name for name, _ in frame.dtypes] == ["time", "lat", "q", "t"]
    values = {(row["time"], row["lat"]): row["t"] for row in frame.collect()}
    assert values[3, -90.0] == 19.0
    assert len(values) == 20
    now = read_dataframe(spark, repository, "t", branch="main", sel={"lat": (90, 90)})
    assert [row["t"] for row in now.collect()] == [-1.0] * 4
