"""Transfers: files in and out, backup and restore, and a commit taken back by a task."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from support.airflow_contexts import cleared, make_context, retried

from airflow_provider_icechunk.api import Repository, local_filesystem_storage, to_icechunk
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.operators.transfer import (
    IcechunkBackupOperator,
    IcechunkExportOperator,
    IcechunkImportOperator,
    IcechunkRestoreOperator,
    IcechunkRevertOperator,
)

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


def data(value: float = 1.0) -> xr.Dataset:
    times = np.datetime64("2026-01-01", "ns") + np.arange(3) * np.timedelta64(1, "D")
    return xr.Dataset(
        {"t2m": (("time", "x"), np.full((3, 2), value), {"units": "K"})},
        coords={"time": times, "x": [1.5, 2.5]},
        attrs={"title": "Wetter"},
    )


@pytest.fixture
def repository(folder: Path) -> Repository:
    return Repository.create(local_filesystem_storage(folder / "weather"))


def stored() -> xr.Dataset:
    return IcechunkHook().to_xarray("weather").load()


def run(kind: Any, context: Any = None, **arguments: Any) -> dict[str, Any]:
    return kind(task_id="task", **{"repository": "weather", **arguments}).execute(
        context or make_context()
    )


def save(dataset: xr.Dataset, path: Path) -> str:
    if path.suffix == ".zarr":
        dataset.to_zarr(path, mode="w", consolidated=False)
    else:
        dataset.to_netcdf(path, engine="h5netcdf", encoding={"t2m": {"zlib": True}})
    return str(path)


@pytest.mark.parametrize("name", ["in.nc", "in.zarr"])
def test_a_file_becomes_one_commit_and_again_the_same(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    first = run(IcechunkImportOperator, source=save(data(), tmp_path / name))
    xr.testing.assert_identical(stored(), data())
    assert first["result"] == {"variables": ["t2m"], "sizes": {"time": 3, "x": 2}}
    source = save(data(2), tmp_path / name)
    assert run(IcechunkImportOperator, retried(make_context()), source=source) == first
    again = run(IcechunkImportOperator, cleared(make_context()), source=source)
    assert again["supersedes"] == first["snapshot_id"]
    xr.testing.assert_identical(stored(), data(2))


def test_a_file_goes_to_its_region_by_its_coordinate(
    repository: Repository, tmp_path: Path
) -> None:
    run(IcechunkImportOperator, source=save(data(), tmp_path / "all.nc"))
    day = save(data(7).isel(time=[1]), tmp_path / "day.nc")
    context = make_context(run_id="day")
    run(IcechunkImportOperator, context, source=day, region={"time": "auto"})
    assert stored()["t2m"][:, 0].values.tolist() == [1, 7, 1]


def test_a_grib_file_becomes_one_commit(repository: Repository, tmp_path: Path) -> None:
    pytest.importorskip("cfgrib", reason="the extra `grib` is not installed")
    import eccodes

    message = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    field = np.linspace(250, 300, eccodes.codes_get_size(message, "values"))
    eccodes.codes_set_long(message, "dataDate", 20260106)
    eccodes.codes_set(message, "shortName", "2t")
    eccodes.codes_set_values(message, field)
    with (tmp_path / "in.grib2").open("wb") as file:
        eccodes.codes_write(message, file)
    eccodes.codes_release(message)
    done = run(IcechunkImportOperator, source=str(tmp_path / "in.grib2"))
    assert done["result"]["variables"] == ["t2m"]
    found = stored()
    assert str(found["time"].values.astype("M8[D]")) == "2026-01-06"
    assert np.allclose(found["t2m"].values.ravel(), field, atol=0.01)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".idx"] == []


def test_what_cannot_be_read_is_said_with_its_remedy(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cfgrib", None)
    with pytest.raises(UnsupportedError, match=r"airflow-provider-icechunk\[grib\]"):
        run(IcechunkImportOperator, source="/data/forecast.grib2")
    with pytest.raises(InvalidInputError, match="set file_format"):
        run(IcechunkImportOperator, source="/data/forecast")
    with pytest.raises(NotFoundError, match="no file"):
        run(IcechunkImportOperator, source=str(tmp_path / "nothing.nc"))
    source = save(data(), tmp_path / "in.nc")
    with pytest.raises(NotFoundError, match="no variable wind"):
        run(IcechunkImportOperator, source=source, variables=["wind"])


@pytest.mark.parametrize("name", ["out.nc", "out.zarr"])
def test_a_snapshot_goes_out_as_a_whole_file(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    session = repository.writable_session("main")
    to_icechunk(data(), session, encoding={"t2m": {"chunks": (1, 2)}})
    repository.create_tag("v1", session.commit("begin"))
    session = repository.writable_session("main")
    to_icechunk(data(9), session, mode="w")
    session.commit("later")
    target = tmp_path / "deep" / name
    result = run(IcechunkExportOperator, target=str(target), tag="v1")
    assert (result["snapshot_id"], result["written"]) == (repository.lookup_tag("v1"), True)
    engine = {"engine": "h5netcdf"} if name.endswith("nc") else {"engine": "zarr", "consolidated": False}  # fmt: skip # noqa: E501
    with xr.open_dataset(target, **engine) as out:
        xr.testing.assert_identical(out.load(), data())
    run(IcechunkExportOperator, target=str(target), region={"time": [0, 2]})
    with xr.open_dataset(target, **engine) as out:
        assert out["t2m"].values.tolist() == [[9, 9], [9, 9]]
    assert run(IcechunkExportOperator, target=str(target), if_exists="skip")["written"] is False
    with pytest.raises(AlreadyExistsError, match="already exists"):
        run(IcechunkExportOperator, target=str(target), if_exists="error")
    assert [one.name for one in target.parent.iterdir()] == [name]


def test_a_backup_is_restored_and_commits_after_it_are_not_lost_by_accident(
    repository: Repository, folder: Path
) -> None:
    session = repository.writable_session("main")
    to_icechunk(data(), session)
    saved = session.commit("begin")
    done = run(IcechunkBackupOperator, target="copies/weather")
    assert done["branches"] == {"main": saved}
    session = repository.writable_session("main")
    to_icechunk(data(5), session, mode="w")
    later = session.commit("later")
    with pytest.raises(ConflictError, match="overwrite=True"):
        run(IcechunkRestoreOperator, target="copies/weather")
    assert repository.lookup_branch("main") == later
    run(IcechunkRestoreOperator, target="copies/weather", overwrite=True)
    xr.testing.assert_identical(stored(), data())
    run(IcechunkRestoreOperator, target="copies/weather", repository="new")
    xr.testing.assert_identical(IcechunkHook().to_xarray("new").load(), data())


def test_a_task_takes_a_commit_back_once(repository: Repository) -> None:
    session = repository.writable_session("main")
    to_icechunk(data(), session)
    session.commit("begin")
    session = repository.writable_session("main")
    to_icechunk(data(5), session, mode="a")
    bad = session.commit("bad")
    first = run(IcechunkRevertOperator, snapshot_id=bad)
    assert first["result"] == {"reverts": bad}
    xr.testing.assert_identical(stored(), data())
    assert run(IcechunkRevertOperator, retried(make_context()), snapshot_id=bad) == first
    assert repository.lookup_branch("main") == first["snapshot_id"]
    with pytest.raises(ConflictError, match="was already reverted"):
        run(IcechunkRevertOperator, make_context(run_id="next"), snapshot_id=bad)
