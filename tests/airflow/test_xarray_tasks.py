"""`@task.icechunk` with Xarray: what is read is one version, what is returned is committed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from airflow.sdk import Asset
from support.airflow_contexts import cleared, make_context, retried

from airflow_provider_icechunk.api import Repository, local_filesystem_storage, to_icechunk
from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.decorators.icechunk import icechunk_task
from airflow_provider_icechunk.engine.commit.records import WRITTEN_KEY
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    NotFoundError,
    RebaseFailedError,
    SessionStateError,
)
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


def days(count: int, first: int = 0, value: float = 1.0) -> xr.Dataset:
    times = np.datetime64("2026-01-01", "ns") + np.arange(first, first + count) * np.timedelta64(
        1, "D"
    )
    return xr.Dataset(
        {
            "t2m": (("time", "x"), np.full((count, 3), value)),
            "height": (("x",), np.arange(3.0)),
        },
        coords={"time": times, "x": [10, 20, 30]},
    )


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    session = made.writable_session("main")
    to_icechunk(days(4), session, encoding={"t2m": {"chunks": (1, 3)}})
    session.commit("begin")
    return made


def t2m(repository: Repository) -> list[float]:
    store = repository.readonly_session("main").store
    with xr.open_zarr(store, consolidated=False, chunks=None) as found:
        return found["t2m"][:, 0].values.tolist()


def run(function: Any, *args: Any, context: Any = None, **arguments: Any) -> dict[str, Any]:
    task = icechunk_task(repository="weather", **arguments)(function)
    return task(*args).operator.execute(context or make_context())


def started_by(*events: tuple[Asset, dict[str, Any]]) -> Any:
    told: dict[Asset, list[Any]] = {}
    for number, (asset, extra) in enumerate(events):
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
        told.setdefault(asset, []).append(SimpleNamespace(extra=extra, timestamp=when))
    return make_context() | {"triggering_asset_events": told}


WEATHER = Asset(name="weather", uri="icechunk://example/weather?branch=main")
OTHER = Asset(name="other", uri="icechunk://example/other?branch=main")


def mean(dataset: Any) -> float:
    return float(dataset["t2m"].mean())


def rewrite(repository: Repository, value: float) -> str:
    session = repository.writable_session("main")
    to_icechunk(days(4, value=value), session, mode="w")
    return session.commit(f"all {value}")


def test_a_task_reads_the_snapshot_of_the_event_that_started_its_run(
    repository: Repository,
) -> None:
    five = rewrite(repository, 5)
    rewrite(repository, 9)
    head = repository.lookup_branch("main")
    context = started_by((WEATHER, {"snapshot_id": head}), (WEATHER, {"snapshot_id": five}))
    result = run(mean, read="event", context=context)
    assert (result["result"], result["committed"]) == (5.0, False)
    assert repository.lookup_branch("main") == head
    watched = {"from_trigger": True, "payload": {"repository": "weather", "snapshot_id": five}}
    assert run(mean, read=True, context=started_by((WEATHER, watched)))["result"] == 5.0


def test_events_of_other_repositories_are_not_taken_for_ours(repository: Repository) -> None:
    five = rewrite(repository, 5)
    rewrite(repository, 9)
    foreign = {"snapshot_id": "ZZZZZZZZZZZZZZZZZZZG"}
    context = started_by((WEATHER, {"snapshot_id": five}), (OTHER, foreign))
    assert run(mean, read="event", context=context)["result"] == 5.0
    named = {"payload": {"repository": "other", **foreign}}
    assert run(mean, read=True, context=started_by((OTHER, named)))["result"] == 9.0
    third = Asset(name="third", uri="icechunk://example/third?branch=main")
    unclear = started_by((third, foreign), (OTHER, foreign))
    with pytest.raises(InvalidInputError, match="none or several of these addresses"):
        run(mean, read="event", context=unclear)


def test_a_run_that_no_event_started_reads_the_head_or_says_what_is_missing(
    repository: Repository,
) -> None:
    rewrite(repository, 7)
    assert run(mean, read=True)["result"] == 7.0
    with pytest.raises(InvalidInputError, match="read=True to fall back"):
        run(mean, read="event")


def test_a_tag_a_branch_an_id_and_a_time_can_be_read(repository: Repository) -> None:
    five = rewrite(repository, 5)
    repository.create_tag("v1", five)
    between = repository.lookup_snapshot(five).written_at
    rewrite(repository, 9)
    assert run(mean, read={"tag": "v1"})["result"] == 5.0
    assert run(mean, read={"snapshot_id": five})["result"] == 5.0
    assert run(mean, read={"as_of": between.isoformat()})["result"] == 5.0
    assert run(mean, read={"branch": "main"})["result"] == 9.0
    for wrong in ({"tag": "v1", "branch": "main"}, {"tag": ""}, {"label": "v1"}, "v1", {}):
        with pytest.raises(InvalidInputError, match="read"):
            run(mean, read=wrong)


def test_what_is_read_is_loaded_when_it_is_used_and_cannot_be_written(
    repository: Repository,
) -> None:
    def look(dataset: Any) -> bool:
        lazy = dataset["t2m"].variable._data
        assert not dataset["t2m"].variable._in_memory
        while not hasattr(lazy, "_array"):
            lazy = lazy.array
        assert lazy._array.store.read_only
        return True

    assert run(look, read=True)["result"] is True


def test_a_returned_dataset_is_written_to_its_region_and_committed_once(
    repository: Repository,
) -> None:
    def second_day(value: float) -> xr.Dataset:
        return days(1, first=1, value=value)

    context, asset = make_context(), Asset("icechunk://bucket/weather?branch=main")
    first = run(second_day, 6.0, context=context, region={"time": "1:2"}, outlets=[asset])
    assert t2m(repository) == [1, 6, 1, 1]
    assert first["committed"] is True
    assert first["result"] == {"variables": ["t2m"], "sizes": {"time": 1, "x": 3}}
    assert context["outlet_events"][asset].extra["snapshot_id"] == first["snapshot_id"]
    assert run(second_day, 8.0, context=retried(make_context()), region={"time": 1}) == first
    again = run(second_day, 8.0, context=cleared(make_context()), region={"time": [1, 2]})
    assert again["supersedes"] == first["snapshot_id"]
    assert t2m(repository) == [1, 8, 1, 1]
    run(second_day, 3.0, context=make_context(run_id="auto"), region={"time": "auto"})
    assert t2m(repository) == [1, 3, 1, 1]


def test_what_is_read_can_be_changed_and_returned(repository: Repository) -> None:
    def warmer(dataset: xr.Dataset) -> xr.Dataset:
        return dataset[["t2m"]] + 1

    run(warmer, read=True)
    assert t2m(repository) == [2, 2, 2, 2]
    store = repository.readonly_session("main").store
    assert "height" in xr.open_zarr(store, consolidated=False, chunks=None)


def test_a_whole_dataset_creates_what_is_missing_and_the_same_again_gives_the_same(
    folder: Path,
) -> None:
    Repository.create(local_filesystem_storage(folder / "weather"))

    def whole(value: float) -> xr.Dataset:
        return days(2, value=value)

    run(whole, 1.0, group="daily")
    run(whole, 2.0, group="daily", context=cleared(make_context()))
    found = IcechunkHook().to_xarray("weather", group="daily")
    assert found["t2m"][:, 0].values.tolist() == [2, 2]


def test_an_append_that_is_cleared_is_refused_and_not_done_twice(repository: Repository) -> None:
    def next_day() -> xr.Dataset:
        return days(1, first=4, value=4).drop_vars(["height", "x"])

    run(next_day, append_dim="time")
    assert t2m(repository) == [1, 1, 1, 1, 4]
    with pytest.raises(SessionStateError, match="would append the same data again"):
        run(next_day, append_dim="time", context=cleared(make_context()))
    assert t2m(repository) == [1, 1, 1, 1, 4]


def test_a_region_that_cannot_be_is_named_before_anything_is_written(
    repository: Repository,
) -> None:
    def day() -> xr.Dataset:
        return days(1)

    head = repository.lookup_branch("main")
    for region in ({"height": 0}, {"time": "first"}, {"time": [2, 1]}, "all", {"time": True}):
        with pytest.raises(InvalidInputError, match="region"):
            run(day, region=region, context=make_context(run_id=str(region)))

    def nothing() -> str:
        return "nothing"

    with pytest.raises(TypeError, match="returned str"):
        run(nothing, mode="a")
    assert repository.lookup_branch("main") == head


def test_a_parameter_called_dataset_is_an_ordinary_one_where_nothing_is_read(
    repository: Repository,
) -> None:
    def named(session: Any, dataset: str) -> str:
        return dataset

    assert run(named, "era5")["result"] == "era5"
    with pytest.raises(TypeError, match="no parameter `dataset`"):
        icechunk_task(repository="weather", read=True)(lambda session: session)


def test_a_hook_gives_sessions_and_datasets_of_any_version(repository: Repository) -> None:
    five = rewrite(repository, 5)
    repository.create_tag("v1", five)
    rewrite(repository, 9)
    hook = IcechunkHook()
    assert hook.get_session("weather").read_only
    assert hook.get_session("weather", tag="v1").snapshot_id == five
    assert float(hook.to_xarray("weather", tag="v1")["t2m"].mean()) == 5
    assert float(hook.to_xarray("weather")["t2m"].mean()) == 9
    session = hook.get_session("weather", writable=True)
    to_icechunk(days(4, value=2), session, mode="w")
    session.commit("by hook")
    assert t2m(repository) == [2] * 4
    with pytest.raises(InvalidInputError, match="head of a branch"):
        hook.get_session("weather", tag="v1", writable=True)
    with pytest.raises(NotFoundError, match="no group '/nowhere'"):
        hook.to_xarray("weather", group="nowhere")


def test_a_hook_lists_repositories_by_their_entry_points(
    repository: Repository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Repository.create(local_filesystem_storage(folder / "teams" / "a" / "sst"), spec_version=2)
    (folder / "notes").mkdir()
    (folder / "notes" / "readme.txt").write_text("nothing")
    hook = IcechunkHook()
    assert hook.list_repositories() == ["teams/a/sst", "weather"]
    assert hook.list_repositories("teams") == ["teams/a/sst"]
    assert hook.list_repositories("notes") == []
    monkeypatch.setattr("airflow_provider_icechunk.engine.pipelines.repositories._MOST_FOLDERS", 2)
    with pytest.raises(InvalidInputError, match="use a longer prefix"):
        hook.list_repositories()


DAYS = IcechunkDataset(
    "daily",
    dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 3},
    variables={
        "t2m": Variable("float32", ("time", "latitude"), fill_value=float("nan")),
        "rain": Variable(
            "int16", ("latitude", "time"), attrs={"scale_factor": 0.5, "_FillValue": -1}
        ),
    },
    coords={"latitude": Coordinate(start=90, step=-1)},
)


def at_place(function: Any, at: Any, context: Any = None, **arguments: Any) -> dict[str, Any]:
    given = {"task_id": "task", "dataset": DAYS, "at": at} | arguments
    task = icechunk_task(**given)(function)
    return task().operator.execute(context or make_context(run_id=str(at)))


def found(folder: Path, name: str = "daily") -> xr.Dataset:
    store = Repository.open(local_filesystem_storage(folder / name)).readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, chunks=None)


def test_a_run_gets_its_place_and_what_it_returns_is_written_there(folder: Path) -> None:
    def six(place: xr.Dataset) -> xr.Dataset:
        assert place["time"].values.tolist() == [np.datetime64("2026-01-06", "ns").item()]
        assert place["latitude"].values.tolist() == [90, 89, 88]
        assert np.isnan(place["t2m"].values).all()
        return place[["t2m"]].fillna(6.0).astype("float64")

    result = at_place(six, {"time": "2026-01-06"})
    assert result["result"] == {"variables": ["t2m"], "sizes": {"time": 1, "latitude": 3}}
    assert result["labels"] == {"time": ["2026-01-06"]}

    def two(placement: Any) -> xr.DataArray:
        assert placement.regions == {"time": (1, 2)}
        return xr.DataArray([1.5, 2.5, 3.5], {"latitude": [90, 89, 88]}, "latitude", "rain")

    at_place(two, {"time": "2026-01-02"})
    data = found(folder)
    assert data.sizes == {"time": 6, "latitude": 3}
    assert data.t2m.sel(time="2026-01-06").values.tolist() == [6, 6, 6]
    assert data.rain.sel(time="2026-01-02").values.tolist() == [1.5, 2.5, 3.5]
    assert int(np.isfinite(data.t2m).sum()) == 3
    repository = Repository.open(local_filesystem_storage(folder / "daily"))
    written = next(iter(repository.ancestry(branch="main"))).metadata[WRITTEN_KEY]
    assert written["arrays"]["/rain"] == [[[0, 3], [1, 2]]]


def test_a_cleared_run_writes_its_place_again(folder: Path) -> None:
    context = make_context()
    for value, one in ((1.0, context), (2.0, cleared(context))):

        def fill(place: xr.Dataset, value: float = value) -> xr.Dataset:
            return xr.full_like(place[["t2m"]], value)

        at_place(fill, {"time": "2026-01-01"}, one)
    assert found(folder).t2m.values.tolist() == [[2, 2, 2]]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (
            xr.Dataset({"wind": ("latitude", [1, 2, 3])}),
            "'wind' is not a variable .*'rain'",
        ),
        (xr.Dataset({"t2m": ("x", [1.0])}), "'t2m' has the dimensions 'time', 'x', declared are"),
        (
            xr.Dataset({"t2m": ("latitude", [1.0, 2, 3])}, {"latitude": [88, 89, 90]}),
            "the labels 88, 89, 90 along 'latitude', but this run belongs at 90, 89, 88",
        ),
        (
            days(2).rename(x="latitude")[["t2m"]],
            "2 steps along 'time', but this run has 1: 2026-01-02",
        ),
        (
            days(1).rename(x="latitude")[["t2m"]].drop_vars("latitude"),
            "the labels 2026-01-01 00:00:00 along 'time', but this run belongs at 2026-01-02",
        ),
        (xr.Dataset({"t2m": ("latitude", [1j, 2, 3])}), "holds complex128, declared as float32"),
        (xr.Dataset(), "has no variables"),
    ],
)
def test_what_belongs_elsewhere_is_refused_before_it_is_written(
    folder: Path, returned: xr.Dataset, words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        at_place(lambda: returned, {"time": "2026-01-02"})
    repository = Repository.open(local_filesystem_storage(folder / "daily"))
    assert len(list(repository.ancestry(branch="main"))) == 1


def test_a_run_without_a_logical_date_has_no_place(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="without a logical date"):
        at_place(lambda place: place, {"time": ""})
    assert not (folder / "daily").exists()


def test_where_to_write_is_said_once(folder: Path) -> None:
    with pytest.raises(TypeError, match="leave out `region`"):
        at_place(lambda place: place, {"time": "2026-01-02"}, region={"time": 1})
    with pytest.raises(InvalidInputError, match="give dataset= as well"):
        at_place(lambda store: None, {"time": "2026-01-02"}, repository="daily", dataset=None)
    with pytest.raises(TypeError, match="its function returned NoneType"):
        at_place(lambda place: None, {"time": "2026-01-02"})


def test_tasks_that_append_a_station_at_once_both_land(folder: Path) -> None:
    dims: Any = {"station": Growing(by="labels", dtype="str")}
    stations = IcechunkDataset("stations", dims, {"n": Variable("int32", ("station",))})

    def beside(*names: str) -> Any:
        def outer(place: xr.Dataset) -> xr.Dataset:
            for name in names:
                at_place(lambda place: place + 2, {"station": name}, dataset=stations)
            return place + 1

        return outer

    late = make_context(run_id="late")
    with pytest.raises(RebaseFailedError, match="both appended station basel"):
        at_place(beside("bern", "basel"), {"station": "basel"}, late, dataset=stations)
    result = at_place(
        beside("chur"),
        {"station": ["uri", "chur"]},
        dataset=stations,
        on_existing_label="replace",
    )
    assert result["labels"] == {"station": ["uri", "chur"]}
    data = found(folder, "stations")
    assert data.station.values.tolist() == ["bern", "basel", "chur", "uri"]
    assert data.n.values.tolist() == [2, 2, 1, 1]
