"""A session holds at least what a dataset declares, in whatever order runs come."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from airflow_provider_icechunk.api import Repository, Session, in_memory_storage
from airflow_provider_icechunk.dataset import (
    Coordinate,
    Growing,
    IcechunkDataset,
    Placement,
    Variable,
)
from airflow_provider_icechunk.engine.commit.merge import MergeSolver
from airflow_provider_icechunk.engine.commit.records import read_record
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError

DAYS = Growing(start="2026-01-01", every="1D")


def weather(every: str = "1D", start: str = "2026-01-01", **changes: Any) -> IcechunkDataset:
    values: dict[str, Any] = {
        "dims": {"time": Growing(start=start, every=every), "latitude": 4},
        "variables": {
            "t2m": Variable(
                "float32", ("time", "latitude"), attrs={"units": "K"}, fill_value=float("nan")
            )
        },
        "coords": {"latitude": Coordinate(start=90, step=-0.5, attrs={"units": "degrees_north"})},
        "attrs": {"title": "weather"},
    }
    return IcechunkDataset("weather", **(values | changes))


@pytest.fixture
def repository() -> Repository:
    return Repository.create(in_memory_storage())


def written(
    repository: Repository, dataset: IcechunkDataset, at: Any, value: float
) -> tuple[Session, Placement]:
    session = repository.writable_session("main")
    placed = ensure(session, dataset, dataset.place(at))
    for name, variable in dataset.variables.items():
        array = zarr.open_array(session.store, path=dataset.path(name), mode="r+")
        region = placed.region(variable.dims)
        with session.recording({dataset.path(name): region}):
            array[tuple(slice(*span) for span in region)] = value
    return session, placed


def run(repository: Repository, dataset: IcechunkDataset, at: Any, value: float) -> Placement:
    """What one run does: declare, write its own part, commit."""
    session, placed = written(repository, dataset, at, value)
    session.commit(f"{at}")
    return placed


def opened(repository: Repository, group: str | None = None) -> xr.Dataset:
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False, chunks=None)


def test_the_sixth_day_can_come_after_the_sixteenth(repository: Repository) -> None:
    for day in (16, 6, 11, 6):
        placed = run(repository, weather(), {"time": f"2026-01-{day:02}"}, day)
        assert placed.regions == {"time": (day - 1, day)}
        assert placed.lengths == {"time": 16, "latitude": 4}
    found = opened(repository)
    assert found.sizes == {"time": 16, "latitude": 4}
    assert found.attrs == {"title": "weather"}
    assert found.t2m.attrs["units"] == "K"
    assert found.latitude.values.tolist() == [90.0, 89.5, 89.0, 88.5]
    expected = np.full((16, 4), np.nan, np.float32)
    for day in (6, 11, 16):
        expected[day - 1] = day
        assert found.t2m.sel(time=f"2026-01-{day:02}").values.tolist() == [day] * 4
    np.testing.assert_array_equal(found.t2m.values, expected)


@pytest.mark.parametrize("days", [(6, 16), (16, 6)])
@pytest.mark.parametrize("exists", [False, True])
def test_runs_side_by_side_all_land(
    repository: Repository, days: tuple[int, ...], exists: bool
) -> None:
    if exists:
        run(repository, weather(), {"time": "2026-01-02"}, 2)
    open_sessions = [
        written(repository, weather(), {"time": f"2026-01-{day:02}"}, day)[0] for day in days
    ]
    for session in open_sessions:
        session.commit("side by side", rebase_with=MergeSolver())
    found = opened(repository)
    for day in (*days, *((2,) if exists else ())):
        assert found.t2m.sel(time=f"2026-01-{day:02}").values.tolist() == [day] * 4
    assert found.sizes["time"] == 16
    assert found.latitude.values.tolist() == [90.0, 89.5, 89.0, 88.5]
    assert np.isfinite(found.t2m.values).sum() == 4 * (3 if exists else 2)


def test_a_commit_says_which_labels_it_wrote(repository: Repository) -> None:
    run(repository, weather(), {"time": "2026-01-06"}, 2)
    info = next(iter(repository.ancestry(branch="main")))
    record = read_record(info.metadata)
    assert record is not None
    assert record.labels == {"time": ("2026-01-06",)}
    assert record.arrays["/t2m"] == (((5, 6), (0, 4)),)


@pytest.mark.parametrize(
    ("every", "start", "label", "length"),
    [
        ("1D", "2026-01-01", "2026-03-01", 60),
        ("6h", "2026-01-01T03:00", "2026-01-02T09:00", 6),
        ("15min", "2026-01-01", "2026-01-01T01:15", 6),
        ("30s", "2026-01-01", "2026-01-01T00:01:30", 4),
        ("1W", "2026-01-05", "2026-02-02", 5),
        ("1M", "2026-01-01", "2026-12-01", 12),
        ("3M", "2026-02-10", "2027-02-10", 5),
        ("1Y", "1999-01-01", "2005-01-01", 7),
    ],
)
def test_xarray_decodes_the_labels_of_the_whole_length(
    repository: Repository, every: str, start: str, label: str, length: int
) -> None:
    dataset = weather(every, start)
    run(repository, dataset, {"time": label}, 1)
    dim = dataset.growing["time"]
    found = opened(repository).time.values.astype("M8[s]")
    wanted = [dim.label(place).replace(tzinfo=None) for place in range(length)]
    assert found.tolist() == wanted
    assert found[-1] == np.datetime64(label)


def test_repeating_a_declaration_changes_nothing(repository: Repository) -> None:
    run(repository, weather(), {"time": "2026-01-16"}, 1)
    session = repository.writable_session("main")
    ensure(session, weather(), weather().place({"time": "2026-01-06"}))
    assert not session.has_uncommitted_changes


def test_a_new_variable_is_as_long_as_the_others(repository: Repository) -> None:
    run(repository, weather(), {"time": "2026-01-16"}, 1)
    rain = Variable("int16", ("time",))
    both = weather(variables={**weather().variables, "rain": rain})
    run(repository, both, {"time": "2026-01-06"}, 2)
    found = opened(repository)
    assert found.rain.shape == (16,)
    assert found.t2m.shape == (16, 4)


def test_variables_that_are_no_longer_declared_stay_and_keep_up(repository: Repository) -> None:
    rain = Variable("int16", ("time",))
    both = weather(variables={**weather().variables, "rain": rain})
    run(repository, both, {"time": "2026-01-02"}, 2)
    run(repository, weather(), {"time": "2026-01-05"}, 3)
    found = opened(repository)
    assert found.rain.values.tolist() == [0, 2, 0, 0, 0]


def test_a_dataset_can_live_in_a_group(repository: Repository) -> None:
    dataset = weather(group="models/ifs")
    run(repository, dataset, {"time": "2026-01-02"}, 2)
    assert opened(repository, "models/ifs").t2m.shape == (2, 4)


def test_shards_are_made_as_declared(repository: Repository) -> None:
    variable = Variable("int32", ("time", "latitude"), chunks=(1, 2), shards=(10, 4))
    with pytest.warns(UserWarning, match="share shards"):
        dataset = weather(variables={"x": variable})
    run(repository, dataset, {"time": "2026-01-02"}, 2)
    array = zarr.open_array(repository.readonly_session("main").store, path="x", mode="r")
    assert (array.chunks, array.shards) == ((1, 2), (10, 4))
    run(repository, dataset, {"time": "2026-01-12"}, 3)
    assert opened(repository).x.sum() == 4 * 5


def t2m(dtype: str = "float32", dims: tuple[str, ...] = ("time", "latitude"), **more: Any) -> Any:
    return {"t2m": Variable(dtype, dims, **({"fill_value": float("nan")} | more))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variables": t2m("float64")}, "t2m exists with dtype float32, declared as float64"),
        (
            {"variables": t2m(chunks=(1, 2))},
            r"t2m exists with chunks \(1, 4\), declared as \(1, 2\)",
        ),
        (
            {"variables": t2m(dims=("latitude", "time"), chunks=(4, 1))},
            r"dimension_names \('time', 'latitude'\), declared as \('latitude', 'time'\)",
        ),
        ({"variables": t2m(fill_value=0.0)}, "fill_value nan, declared as 0.0"),
        (
            {"dims": {"time": DAYS, "latitude": 5}, "variables": t2m(chunks=(1, 4))},
            "length 4 along 'latitude', declared as 5",
        ),
        (
            {"dims": {"time": DAYS, "latitude": 3}, "coords": {}, "variables": t2m(chunks=(1, 4))},
            "length 4 along 'latitude', declared as 3",
        ),
        ({"coords": {"latitude": Coordinate(start=90, step=-0.25)}}, r"holds 89.5 .* as 89.75"),
        ({"start": "2025-01-01"}, "'days since 2026-01-01', declared as 'days since 2025-01-01'"),
        ({"every": "2D"}, "holds 2 at place 2, and by the declaration 2026-01-05"),
    ],
)
def test_a_mismatch_names_both_sides(
    repository: Repository, changes: dict[str, Any], message: str
) -> None:
    run(repository, weather(), {"time": "2026-01-16"}, 1)
    other = weather(**changes)
    session = repository.writable_session("main")
    with pytest.raises(AlreadyExistsError, match=message):
        ensure(session, other, other.place({"time": "2026-01-05"}))


def test_an_axis_that_was_grown_without_labels_gets_them(repository: Repository) -> None:
    run(repository, weather(), {"time": "2026-01-02"}, 1)
    session = repository.writable_session("main")
    for name, shape in (("time", (9,)), ("t2m", (9, 4))):
        zarr.open_array(session.store, path=name, mode="r+").resize(shape)
    session.commit("longer")
    run(repository, weather(), {"time": "2026-01-06"}, 6)
    assert opened(repository).sel(time="2026-01-06").t2m.values.tolist() == [6] * 4
    assert opened(repository).time.values[-1] == np.datetime64("2026-01-09")


def stations(dtype: str = "str") -> IcechunkDataset:
    dims: dict[str, Any] = {"station": Growing(by="labels", dtype=dtype), "level": 2}
    return IcechunkDataset("s", dims, {"x": Variable("int16", ("station", "level"))})


@pytest.mark.parametrize(
    ("dtype", "labels"),
    [
        ("str", ["zurich", "basel", "bern"]),
        ("int64", [7, -3, 5]),
        ("float64", [0.5, 1e300, -0.25]),
        ("datetime64[s]", ["2026-05-01", "2026-01-01T00:00:07", "1969-01-01"]),
    ],
)
def test_labels_without_steps_are_found_or_appended(
    repository: Repository, dtype: str, labels: list[Any]
) -> None:
    dataset = stations(dtype)
    for value, label in enumerate(labels, 1):
        placed = run(repository, dataset, {"station": label}, value)
        assert placed.regions == {"station": (value - 1, value)}
    again = run(repository, dataset, {"station": labels[1]}, 9)
    assert again.regions == {"station": (1, 2)}
    found = opened(repository)
    assert found.x.values.tolist() == [[1, 1], [9, 9], [3, 3]]
    wanted = np.array(labels, "M8[ns]") if dtype.startswith("d") else np.array(labels)
    assert found.station.values.tolist() == wanted.tolist()
    assert found.x.sel(station=wanted[2]).values.tolist() == [3, 3]


def test_labels_that_lie_apart_are_not_one_run(repository: Repository) -> None:
    dataset = stations()
    for label in ("a", "b", "c"):
        run(repository, dataset, {"station": label}, 1)
    placed = run(repository, dataset, {"station": ["c", "d", "e"]}, 5)
    assert placed.regions == {"station": (2, 5)}
    session: Session = repository.writable_session("main")
    with pytest.raises(InvalidInputError, match=r"at the places \[0, 2\], which are not one block"):
        ensure(session, dataset, dataset.place({"station": ["a", "c"]}))


def test_an_array_without_labels_for_its_end_is_refused(repository: Repository) -> None:
    run(repository, stations(), {"station": "a"}, 1)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="x", mode="r+").resize((3, 2))
    session.commit("longer")
    with pytest.raises(AlreadyExistsError, match=r"/x is 3 long along 'station', .* 1 labels"):
        run(repository, stations(), {"station": "b"}, 1)
