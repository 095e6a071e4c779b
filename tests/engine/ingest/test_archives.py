"""Archives as they are: epochs of their own, short ends, variables that come and go, groups."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from airflow_provider_icechunk.api import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    local_filesystem_storage,
    local_filesystem_store,
    plan_files,
    refer_to_files,
)
from airflow_provider_icechunk.engine.tree.chunk_table import ChunkType
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir()
    return made


@pytest.fixture
def repository(tmp_path: Path, folder: Path) -> Repository:
    prefix = f"file://{folder}/"
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, local_filesystem_store(str(folder)))
    )
    storage = local_filesystem_storage(str(tmp_path / "repository"))
    return Repository.create(storage, config, {prefix: None})


def day(first: str, count: int, *, names: tuple[str, ...] = ("t",), hours: int = 24) -> xr.Dataset:
    """A data set with a value for each step that is told apart from all others."""
    time = np.datetime64(first, "ns") + np.arange(count) * np.timedelta64(hours, "h")
    number = (time - np.datetime64("2000-01-01", "ns")) / np.timedelta64(1, "h")
    values = number[:, None] + np.arange(4)
    variables = {name: (("time", "x"), (values + n).astype("f4")) for n, name in enumerate(names)}
    return xr.Dataset(variables, {"time": time, "x": np.arange(4)})


def save(
    path: Path, data: xr.Dataset, mode: Any = "w", group: str | None = None, **time: Any
) -> str:
    units = time.pop("units", f"days since {str(data.time.values[0])[:10]}")
    encoding: dict[str, dict[str, Any]] = {"time": {"units": units, "dtype": "int64"} | time}
    for name, one in data.data_vars.items():
        if name in ("t", "u"):
            encoding[str(name)] = {"chunksizes": one.shape, "zlib": True}
    data.to_netcdf(path, engine="h5netcdf", mode=mode, group=group, encoding=encoding)
    return str(path)


def refer(repository: Repository, files: list[str], **choice: Any) -> int:
    session = repository.writable_session("main")
    count = refer_to_files(session, files, **choice)
    session.commit("files")
    return count


def opened(repository: Repository, group: str | None = None) -> xr.Dataset:
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False).load()


def test_an_epoch_in_each_file_is_counted_again_also_in_an_append(
    repository: Repository, folder: Path
) -> None:
    parts = [day(f"2026-01-{1 + 4 * n:02d}", 4) for n in range(4)]
    files = [save(folder / f"{n}.nc", part) for n, part in enumerate(parts)]
    refer(repository, files[:2])
    refer(repository, files[2:])
    xr.testing.assert_equal(opened(repository), xr.concat(parts, "time"))
    with xr.open_dataset(files[2], engine="h5netcdf", decode_times=False) as third:
        assert third.time.values.tolist() == [0, 1, 2, 3]


def test_a_finer_unit_of_a_later_file_becomes_that_of_a_new_array(
    repository: Repository, folder: Path
) -> None:
    parts = [day("2026-01-01", 4), day("2026-01-05", 4, hours=6)]
    files = [
        save(folder / "0.nc", parts[0]),
        save(folder / "1.nc", parts[1], units="hours since 2026-01-05"),
    ]
    refer(repository, files)
    xr.testing.assert_equal(opened(repository), xr.concat(parts, "time"))


def test_times_that_whole_numbers_cannot_say_are_refused(
    repository: Repository, folder: Path
) -> None:
    refer(repository, [save(folder / "0.nc", day("2026-01-01", 4))])
    late = save(folder / "1.nc", day("2026-01-05", 4, hours=6), units="hours since 2026-01-05")
    with pytest.raises(InvalidInputError, match=r"1\.nc: the times of 'time'.*finer units"):
        refer(repository, [late])
    other = save(folder / "2.nc", day("2026-01-05", 4))
    with h5py.File(other, "a") as file:
        file["time"].attrs["calendar"] = "noleap"
    with pytest.raises(InvalidInputError, match=r"calendar noleap"):
        refer(repository, [other])


def with_bounds(data: xr.Dataset) -> xr.Dataset:
    """Bounds without units: they count as the times do."""
    ends = np.stack([data.time.values, data.time.values + np.timedelta64(1, "D")], axis=1)
    data["time_bnds"] = (("time", "nv"), ends)
    data.time.attrs["bounds"] = "time_bnds"
    return data


def test_bounds_of_times_are_counted_with_them(repository: Repository, folder: Path) -> None:
    parts = [with_bounds(day(f"2026-01-{1 + 4 * n:02d}", 4)) for n in range(2)]
    files = [save(folder / f"{n}.nc", part) for n, part in enumerate(parts)]
    with pytest.raises(InvalidInputError, match=r"'time_bnds' count.*copy its values with `load`"):
        refer(repository, files, load=["time"])
    refer(repository, files)
    found = opened(repository)
    expected = np.concatenate([part.time_bnds.values for part in parts])
    assert np.array_equal(found.time_bnds.values, expected)


def test_a_shorter_last_file_is_copied_and_may_be_replaced(
    repository: Repository, folder: Path
) -> None:
    parts = [day("2026-01-01", 4), day("2026-01-05", 4), day("2026-01-09", 3)]
    files = [save(folder / f"{n}.nc", part) for n, part in enumerate(parts)]
    plan = plan_files(repository.readonly_session("main"), files)
    assert [row["copied_from"] for row in plan.rows() if row["array"] == "t"] == [
        [f"file://{files[2]}"]
    ]
    refer(repository, files)
    session = repository.readonly_session("main")
    assert session.chunk_type("/t", (1, 0)) is ChunkType.VIRTUAL
    assert session.chunk_type("/t", (2, 0)) is not ChunkType.VIRTUAL
    xr.testing.assert_equal(opened(repository), xr.concat(parts, "time"))
    whole = day("2026-01-09", 4)
    refer(repository, [save(folder / "whole.nc", whole)], start=8)
    xr.testing.assert_equal(opened(repository), xr.concat([*parts[:2], whole], "time"))
    with pytest.raises(InvalidInputError, match="the chunk shape of 't' is"):
        refer(repository, files[2:] + files[:1])


def test_contiguous_files_of_any_length_are_cut_at_what_divides_them(
    repository: Repository, folder: Path
) -> None:
    lengths, files, start = (6, 4, 8), [], 0
    whole = np.arange(18 * 4, dtype="f8").reshape(18, 4)
    for number, length in enumerate(lengths):
        files.append(str(folder / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            file["v"] = whole[start : start + length]
        start += length
    assert refer(repository, files, along=0) == 9
    array = zarr.open_array(repository.readonly_session("main").store, path="v", mode="r")
    assert array.chunks == (2, 4)
    assert np.array_equal(np.asarray(array[...]), whole)


def test_files_that_store_otherwise_are_copied_on_demand(
    repository: Repository, folder: Path
) -> None:
    parts = [day("2026-01-01", 4), day("2026-01-05", 4), day("2026-01-09", 4)]
    files = [save(folder / f"{n}.nc", part) for n, part in enumerate(parts)]
    parts[1].to_netcdf(
        files[1], engine="h5netcdf", encoding={"t": {"chunksizes": (1, 4), "compression": "lzf"}}
    )
    with pytest.raises(InvalidInputError, match=r'1\.nc: the .* of \'t\' is .*differing="copy"'):
        refer(repository, files)
    refer(repository, files, differing="copy")
    xr.testing.assert_equal(opened(repository), xr.concat(parts, "time"))
    kinds = [repository.readonly_session("main").chunk_type("/t", (n, 0)) for n in range(3)]
    assert [kind is ChunkType.VIRTUAL for kind in kinds] == [True, False, True]


def test_how_hard_a_codec_tried_is_no_difference(repository: Repository, folder: Path) -> None:
    parts = [day("2026-01-01", 4), day("2026-01-05", 4)]
    files = [str(folder / f"{n}.nc") for n in range(2)]
    for level, (path, part) in enumerate(zip(files, parts, strict=True), 3):
        encoding = {"t": {"zlib": True, "complevel": level, "chunksizes": (4, 4)}}
        part.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    assert refer(repository, files[:1]) + refer(repository, files[1:]) == 2
    xr.testing.assert_equal(opened(repository), xr.concat(parts, "time"))


def test_variables_come_and_go_and_their_cells_are_missing_meanwhile(
    repository: Repository, folder: Path
) -> None:
    names: list[tuple[str, ...]] = [("t",), ("t", "u"), ("t",), ("u",), ("t", "u")]
    parts = [day(f"2026-01-{1 + 4 * n:02d}", 4, names=own) for n, own in enumerate(names)]
    files = [save(folder / f"{n}.nc", part) for n, part in enumerate(parts)]
    with pytest.raises(InvalidInputError, match=r"0\.nc: there is no variable 'u', .*1\.nc"):
        refer(repository, files[:3])
    for chosen in (files[:1], files[1:3], files[3:]):
        refer(repository, chosen, missing="fill")
    expected = xr.concat(parts, "time", data_vars="all", join="outer")
    xr.testing.assert_equal(opened(repository)[["t", "u"]], expected[["t", "u"]])


def test_cells_that_would_look_like_values_are_refused(
    repository: Repository, folder: Path
) -> None:
    files = []
    for number, names in enumerate((("t", "n"), ("t",))):
        files.append(str(folder / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            for name in names:
                file.create_dataset(name, data=np.ones((4, 4), "i4"))
    with pytest.raises(InvalidInputError, match=r"'n', and without `_FillValue`.*look like values"):
        refer(repository, files, along=0, missing="fill")


def test_groups_that_count_by_themselves_grow_by_themselves(
    repository: Repository, folder: Path
) -> None:
    files, parts = [], {}
    for number in range(2):
        path = folder / f"{number}.nc"
        daily = day(f"2026-01-{1 + 2 * number:02d}", 2)
        hourly = day(f"2026-01-{1 + 2 * number:02d}", 48, hours=1)
        save(path, daily, group="daily")
        units = "hours since 2026-01-01"
        files.append(save(path, hourly, "a", group="deep/hourly", units=units))
        for name, part in (("daily", daily), ("deep/hourly", hourly)):
            parts.setdefault(name, []).append(part)
    refer(repository, files[:1])
    refer(repository, files[1:])
    for name, own in parts.items():
        xr.testing.assert_equal(opened(repository, name), xr.concat(own, "time"))
    with pytest.raises(InvalidInputError, match="count by themselves"):
        refer(repository, files, start=0)


def test_a_plan_lists_every_problem_and_writes_nothing(
    repository: Repository, folder: Path
) -> None:
    parts = [day(f"2026-01-{1 + 4 * n:02d}", 4) for n in range(4)]
    files = [save(folder / f"{n}.nc", part) for n, part in enumerate(parts)]
    for number in (1, 2):
        parts[number].astype("f8").to_netcdf(files[number], engine="h5netcdf")
    session = repository.writable_session("main")
    plan = plan_files(session, files)
    assert not session.has_uncommitted_changes
    problems = "\n".join(problem.message for problem in plan.problems)
    assert all(f"{number}.nc: the type of 't' is" in problems for number in (1, 2))
    assert "3.nc" not in problems
    assert problems.splitlines()[0] in str(plan)
    with pytest.raises(IcechunkError, match=r"1\.nc: the type") as caught:
        refer_to_files(session, files)
    assert "more; a plan of these files has all" in caught.value.__notes__[0]
    good = plan_files(session, files[:1])
    assert (good.problems, good.series[""].end) == ((), 4)
    rows: Mapping[str, Any] = {row["array"]: row for row in good.rows()}
    assert rows["t"]["shape"] == [4, 4]
    assert rows["t"]["values"] == "referred to"
    assert rows["time"]["values"] == "copied"
    assert "problems" not in str(good)
