"""Frames saved as arrays, with rows that find their cells by label."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError
from airflow_provider_icechunk.spark.read.frames import read_dataframe
from airflow_provider_icechunk.spark.write.tables import _LabelSearch, save_dataframe

on_spark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]
DAYS = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(6)]
SCHEMA = "time timestamp, lat double, station string, t float, n int"


def rows(days: list[datetime], *, plus: float = 0) -> list[tuple[Any, ...]]:
    return [
        (day, lat, station, day.day * 100 + lat + plus, day.day)
        for day in days
        for lat in (10.0, 20.5, 30.0)
        for station in ("a", "b")
    ]


def opened(repository: Repository, group: str | None = None) -> xr.Dataset:
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False).load()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(local_filesystem_storage(str(tmp_path)))


@pytest.mark.parametrize("method", ["exact", "nearest"])
def test_rows_find_their_cells_in_labels_of_any_order(method: Any) -> None:
    labels = np.array([30.0, 10.0, 20.0])
    times = np.array(["2026-01-01", "2026-01-03"], "M8[us]")
    place = _LabelSearch((("double", labels), ("timestamp", times)), method, 3.0 * 86400)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([10.0, 30.0, 21.0, None, 20.0]),
            pa.array(
                [datetime(2026, 1, day, hour, tzinfo=UTC) for day, hour in ((1, 0), (3, 0), (1, 0))]
                + [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 13, tzinfo=UTC)],
                pa.timestamp("us", tz="Europe/Berlin"),
            ),
            pa.array([1, 2, 3, 4, 5]),
        ],
        names=["lat", "time", "t"],
    )
    found = next(iter(place(iter([batch])))).to_pydict()
    lat, time, values = found.values()
    near = method == "nearest"
    assert lat == [1, 0, 2 if near else None, None, 2]
    assert time == [0, 1, 0, 0, 1 if near else None]
    assert values == [1, 2, 3, 4, 5]


def test_what_is_too_far_away_has_no_cell() -> None:
    place = _LabelSearch((("double", np.array([0.0, 10.0])),), "nearest", 1.0)
    batch = pa.RecordBatch.from_arrays([pa.array([0.9, 1.1, np.nan, 11.0])], names=["x"])
    assert next(iter(place(iter([batch])))).column(0).to_pylist() == [0, None, None, 1]


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_a_table_is_created_appended_and_written_over(
    spark: SparkSession, repository: Repository
) -> None:
    def save(found: list[tuple[Any, ...]], job: str, **more: Any) -> Any:
        frame = spark.createDataFrame(found, SCHEMA)
        dimensions = ["time", "lat", "station"]
        return save_dataframe(frame, repository, dimensions, job=job, group="obs", **more)

    first = save(rows(DAYS[:3]), "1", chunks={"time": 2})
    assert first.snapshot_id == repository.lookup_branch("main")
    assert save(rows(DAYS[:3]), "1").replayed
    found = opened(repository, "obs")
    assert found["t"].dims == ("time", "lat", "station")
    assert found["t"].dtype == np.float32
    assert found["t"].encoding["chunks"] == (2, 3, 2)
    assert found["station"].values.tolist() == ["a", "b"]
    assert found["t"].sel(time="2026-01-02", lat=20.5, station="b").item() == 220.5

    with pytest.raises(AlreadyExistsError, match="'obs/t' exists already"):
        save(rows(DAYS[:3]), "2")
    head = repository.lookup_branch("main")
    assert save(rows(DAYS[:3]), "3", mode="ignore") is None
    assert repository.lookup_branch("main") == head

    with pytest.raises(InvalidInputError, match="is a label of 'obs/time' already"):
        save(rows(DAYS[2:4]), "4", mode="append")
    save(rows(DAYS[3:6]), "5", mode="append")
    found = opened(repository, "obs")
    assert found.sizes == {"time": 6, "lat": 3, "station": 2}
    assert np.array_equal(found["n"].values[:, 0, 0], [1, 2, 3, 4, 5, 6])
    assert not found["t"].isnull().any()

    part = [row for row in rows(DAYS[1:2], plus=1000) if row[1] > 15]
    save(part, "6", mode="overwrite")
    again = opened(repository, "obs")
    changed = (again["t"] != found["t"]).values
    assert changed.sum() == 4
    assert again["t"].sel(time="2026-01-02", lat=20.5, station="b").item() == 1220.5

    moved = [(row[0] + timedelta(minutes=3), row[1] + 0.1, *row[2:]) for row in part]
    with pytest.raises(Exception, match="rows lie outside of"):
        save(moved, "7", mode="overwrite")
    save(moved, "8", mode="overwrite", method="nearest", tolerance=600)
    cells = read_dataframe(spark, repository, "obs/t", sel={"lat": (20.5, 20.5)})
    assert cells.count() == 12


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_cells_without_rows_are_missing_or_refused(
    spark: SparkSession, repository: Repository
) -> None:
    frame = spark.createDataFrame(rows(DAYS[:2])[1:], SCHEMA)
    dimensions = ["time", "lat", "station"]
    with pytest.raises(InvalidInputError, match=r"11 rows have values for 12 cells.*'n' .*`fill`"):
        save_dataframe(frame, repository, dimensions, job="1")
    save_dataframe(frame, repository, dimensions, job="2", fill={"n": -1})
    found = opened(repository)
    assert np.isnan(found["t"].values[0, 0, 0])
    assert np.isnan(found["n"].values[0, 0, 0])
    assert found["n"].encoding["_FillValue"] == -1
    with pytest.raises(InvalidInputError, match="cannot be values of an array"):
        save_dataframe(frame, repository, ["time", "lat"], job="3", group="x")
    with pytest.raises(InvalidInputError, match="no column 'height'"):
        save_dataframe(frame, repository, ["height"], job="4")
