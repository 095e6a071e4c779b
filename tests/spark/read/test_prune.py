"""Filters on dimensions: what they exclude is not read, and no row that passes is lost."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.read.frames import read_task
from airflow_provider_icechunk.spark.read.plan import PlannedRead, Selection, plan_reading
from airflow_provider_icechunk.spark.read.prune import ColumnFilter, prune


@pytest.fixture
def session() -> Session:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    names = ("time", "lat", "place")
    array = root.create_array(
        "t", shape=(6, 4, 3), chunks=(2, 2, 3), dtype="int16", dimension_names=names
    )
    array[:] = np.arange(72).reshape(6, 4, 3)
    coordinates: dict[str, Any] = {
        "time": np.arange(6),
        "lat": np.array([80, 40, 0, -40], "float32"),
        "place": np.array(["b", "a", "c"], np.dtypes.StringDType()),
    }
    for name, values in coordinates.items():
        root.create_array(name, data=values, dimension_names=(name,))
    root["time"].attrs["units"] = "days since 2026-01-01"
    session.commit("filled")
    return repository.readonly_session("main")


def plan(session: Session, **options: Any) -> PlannedRead:
    return plan_reading(
        session,
        "t",
        layout="long",
        variables=None,
        selection=Selection({}, {}),
        coordinates=True,
        tasks=6,
        cores=1,
        **options,
    )


def rows(reading: PlannedRead) -> list[dict[str, Any]]:
    batches = [batch for task in reading.tasks for batch in read_task(reading, task)]
    return [row for batch in batches for row in batch.to_pylist()]


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


PASSES: dict[str, Any] = {
    "=": lambda cell, value: cell == value,
    "<": lambda cell, value: cell < value,
    "<=": lambda cell, value: cell <= value,
    ">": lambda cell, value: cell > value,
    ">=": lambda cell, value: cell >= value,
    "in": lambda cell, value: cell in value,
    "is not null": lambda cell, _: cell is not None,
}


def passes(row: dict[str, Any], filters: list[tuple[str, Any, Any]]) -> bool:
    """Whether a row passes; a comparison that makes no sense is passed by none."""
    try:
        return all(PASSES[how](row[column], value) for column, how, value in filters)
    except TypeError:
        return False


@pytest.mark.parametrize(
    ("filters", "box", "left"),
    [
        ([("time", ">=", day(3))], ((2, 6), (0, 4), (0, 3)), []),
        ([("time", ">", day(2)), ("time", "<=", day(4))], ((2, 4), (0, 4), (0, 3)), []),
        ([("lat", "<", 40.0), ("time", "=", day(1))], ((0, 1), (2, 4), (0, 3)), []),
        ([("lat", "in", (80.0, 0.0))], ((0, 6), (0, 3), (0, 3)), [0]),
        ([("place", "=", "c")], ((0, 6), (0, 4), (2, 3)), []),
        ([("place", "<", "c")], ((0, 6), (0, 4), (0, 2)), []),
        ([("place", ">", "a")], ((0, 6), (0, 4), (0, 3)), [0]),
        ([("t", ">", 5), ("lat", ">", 0.0)], ((0, 6), (0, 2), (0, 3)), [0]),
        ([("lat", "is not null", None)], ((0, 6), (0, 4), (0, 3)), []),
        ([("lat", "=", 7.0)], ((0, 6), (0, 0), (0, 3)), []),
        ([("lat", ">", None)], ((0, 6), (0, 4), (0, 3)), [0]),
        ([("time", ">", datetime(2026, 1, 2))], ((0, 6), (0, 4), (0, 3)), [0]),  # noqa: DTZ001
        ([("lat", ">", "warm")], ((0, 6), (0, 4), (0, 3)), [0]),
    ],
)
def test_filters_on_dimensions_narrow_what_is_read(
    session: Session, filters: list[tuple[str, Any, Any]], box: Any, left: list[int]
) -> None:
    reading, remaining = prune(plan(session), [ColumnFilter(*one) for one in filters])
    assert reading.box == box
    assert remaining == left
    everything, shown = rows(plan(session)), rows(reading)
    done = [one for number, one in enumerate(filters) if number not in left]
    assert all(passes(row, done) for row in shown)
    assert [row for row in shown if passes(row, filters)] == [
        row for row in everything if passes(row, filters)
    ]


def test_a_filter_that_nothing_is_known_about_is_left_to_spark(session: Session) -> None:
    before = plan(session)
    reading, left = prune(before, [None])
    assert reading is before
    assert left == [0]


def test_a_coordinate_without_numbers_is_left_to_spark() -> None:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("x", data=np.array([1.0, np.nan, 3.0]), dimension_names=("x",))
    root.create_array("t", data=np.arange(3), dimension_names=("x",))
    filters = [ColumnFilter("x", ">", 2.0)]
    _, left = prune(plan(session, decode=False), filters)
    assert left == [0]
    reading, left = prune(plan(session), filters)  # A missing value is NULL, which is not larger.
    assert (reading.box, left) == (((2, 3),), [])


def test_only_wanted_columns_are_made(session: Session) -> None:
    everything = rows(plan(session))
    for names in (["t"], ["lat"], ["place", "t"]):
        found = rows(plan(session, columns=names))
        assert found == [{name: row[name] for name in names} for row in everything]
    with pytest.raises(InvalidInputError, match="no column 'tt': the columns are time, lat"):
        plan(session, columns=["tt"])
