"""A repository worth looking at: a week of weather with branches, tags, growth and gaps.

Made up, and the same each time except for ids and times: the pictures of the documentation, the
tests of the page and `make demo-ui` show it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray

from airflow_provider_icechunk.api import Repository, Session, local_filesystem_storage

HOURS, ROWS, COLUMNS = 24, 90, 180
DAYS = 7


def make_weather(folder: Path, *, days: int = DAYS) -> Repository:
    """Create the example repository in an empty folder."""
    repository = Repository.create(local_filesystem_storage(folder))
    session = repository.writable_session("main")
    _declare(session)
    session.commit("Declare the grid", metadata=_made_by("declare", 0))
    for day in range(days):
        if day == 4:
            repository.create_tag("2026-03-04", repository.lookup_branch("main"))
            repository.create_branch("calibration", repository.lookup_branch("main"))
        session = repository.writable_session("main")
        _grow(session, day, missing=day == 5)
        session.commit(
            f"Temperature and wind of 2026-03-{day + 1:02}", metadata=_made_by("day", day)
        )
        if day == 4:
            session = repository.writable_session("calibration")
            warmer = zarr.open_array(session.store, path="surface/temperature", mode="r+")
            warmer[24:48] = np.asarray(warmer[24:48]) + _bump()
            session.commit("Correct the sensor drift of 2 March", metadata=_made_by("drift", day))
    repository.create_tag("v1", repository.lookup_branch("main"))
    session = repository.writable_session("main")
    _stations(session)
    session.commit("Add the station list\n\nNames come from the archive, <b>as they are</b>.")
    return repository


def temperature(day: int) -> NDArray[np.float32]:
    """One day of a made-up field, in degrees Celsius."""
    hour = np.arange(HOURS)[:, None, None]
    row = np.linspace(90, -90, ROWS)[None, :, None]
    column = np.linspace(-180, 180, COLUMNS, endpoint=False)[None, None, :]
    sun = np.cos(np.radians(column + 15 * (hour - 12)))
    waves = 6 * np.sin(np.radians(3 * column + 40 * day)) * np.cos(np.radians(2 * row))
    noise = np.random.default_rng(day).normal(0, 0.6, (HOURS, ROWS, COLUMNS))
    field = 28 * np.cos(np.radians(row)) ** 1.5 - 12 + 5 * sun * np.cos(np.radians(row)) + waves
    made: NDArray[np.float32] = (field + noise).astype(np.float32)
    return made


def _bump() -> NDArray[np.float32]:
    row = np.linspace(90, -90, ROWS)[:, None]
    column = np.linspace(-180, 180, COLUMNS, endpoint=False)[None, :]
    made: NDArray[np.float32] = (
        3 * np.exp(-((row - 45) ** 2) / 300 - ((column - 20) ** 2) / 900)
    ).astype(np.float32)
    return made


def _declare(session: Session) -> None:
    root = zarr.create_group(session.store, attributes={"title": "A week of made-up weather"})
    group = root.create_group("surface", attributes={"institution": "Nowhere"})
    for name, values, units in (
        ("latitude", np.linspace(90, -90, ROWS), "degrees_north"),
        ("longitude", np.linspace(-180, 180, COLUMNS, endpoint=False), "degrees_east"),
    ):
        axis = group.create_array(
            name, shape=values.shape, dtype="f8", dimension_names=[name],
            attributes={"units": units},
        )  # fmt: skip
        axis[:] = values
    group.create_array(
        "time", shape=(0,), chunks=(24,), dtype="i8", dimension_names=["time"],
        attributes={"units": "hours since 2026-03-01", "calendar": "standard"},
    )  # fmt: skip
    for name, units, title in (
        ("temperature", "°C", "Air temperature at 2 m"),
        ("wind_speed", "m s-1", "Wind speed at 10 m"),
    ):
        group.create_array(
            name, shape=(0, ROWS, COLUMNS), chunks=(6, 45, 60), dtype="f4", fill_value=np.nan,
            dimension_names=["time", "latitude", "longitude"],
            attributes={"units": units, "long_name": title},
        )  # fmt: skip


def _grow(session: Session, day: int, *, missing: bool) -> None:
    group = zarr.open_group(session.store, path="surface", mode="r+")
    start, stop = day * HOURS, (day + 1) * HOURS
    values = temperature(day)
    wind = np.abs(values / 4 + 3).astype(np.float32)
    for name, made in (("temperature", values), ("wind_speed", wind)):
        array = group[name]
        assert isinstance(array, zarr.Array)
        array.resize((stop, ROWS, COLUMNS))
        if missing and name == "wind_speed":
            array[start : start + 6, :45] = made[:6, :45]
            continue
        array[start:stop] = made
    axis = group["time"]
    assert isinstance(axis, zarr.Array)
    axis.resize((stop,))
    axis[start:stop] = np.arange(start, stop)


def _stations(session: Session) -> None:
    group = zarr.create_group(session.store, path="stations")
    names = np.asarray(["Arnhem", "Bergen", "Cádiz", "Dover", "<script>alert(1)</script>", "Évora"])
    array = group.create_array("name", shape=names.shape, dtype="string", dimension_names=["id"])
    array[:] = names.astype(np.dtypes.StringDType())
    height = group.create_array("height", shape=(6,), dtype="f4", dimension_names=["id"],
                                attributes={"units": "m"})  # fmt: skip
    height[:] = [12, 30, 11, 6, 0, 309]


def _made_by(task: str, day: int) -> dict[str, object]:
    return {
        "airflow": {
            "dag_id": "weather_daily",
            "run_id": f"scheduled__2026-03-{day + 1:02}T00:00:00+00:00",
            "task_id": task,
            "map_index": -1,
        }
    }
