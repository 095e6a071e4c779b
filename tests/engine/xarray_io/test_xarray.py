"""Xarray and Zarr features over our store, round trip through a commit."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
import zarr
from support import trees
from support.zarr_cases import UNSURE
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import airflow_provider_icechunk.api as icechunk

pytestmark = [
    pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 spec"),
    pytest.mark.filterwarnings(UNSURE),
]


@pytest.fixture
def repo(backend):
    return icechunk.Repository.create(backend())


def weather(start="2024-01-01", days=6):
    times = np.datetime64(start, "ns") + np.arange(days) * np.timedelta64(1, "D")
    values = np.arange(days * 6, dtype="f4").reshape(days, 2, 3)
    values[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "temperature": (("time", "lat", "lon"), values, {"unit": "K", "größe": [1, 2.5]}),
            "station": (("lat",), np.array(["Köln", "東京"])),
            "flag": (("time",), np.arange(days) % 2 == 0),
            "scale": ((), 2.5),
        },
        coords={
            "time": times,
            "lat": [10.0, 20.0],
            "lon": ("lon", [1, 2, 3], {"axis": "X"}),
            "name": ("lon", ["a", "bb", "ccc"]),
        },
        attrs={"title": "Wetter", "version": 3, "nested": {"a": [1, None]}},
    )


def write(repo, data, **options):
    session = repo.writable_session("main")
    data.to_zarr(session.store, zarr_format=3, consolidated=False, **options)
    return session.commit("write")


def read(repo, **options):
    store = repo.readonly_session("main").store
    return xr.open_zarr(store, zarr_format=3, consolidated=False, chunks=None, **options).load()


def test_a_data_set_comes_back_as_it_was(repo):
    write(repo, weather())
    xr.testing.assert_identical(read(repo), weather())


def test_appending_along_time(repo):
    write(repo, weather(), encoding={"temperature": {"chunks": (2, 2, 3)}})
    write(repo, weather("2024-01-07", 3), append_dim="time")
    expected = xr.concat(
        [weather(), weather("2024-01-07", 3)],
        "time",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="outer",
    )
    xr.testing.assert_equal(read(repo), expected)
    assert len(list(repo.ancestry(branch="main"))) == 3


def test_regions_are_written_by_separate_sessions_and_merged_by_rebase(repo):
    write(repo, weather(), encoding={"temperature": {"chunks": (2, 2, 3)}})
    sessions = [repo.writable_session("main") for _ in range(3)]
    only = weather()[["temperature"]].drop_vars(["lat", "lon", "name"]) + 100
    for number, session in enumerate(sessions):
        piece = slice(2 * number, 2 * number + 2)
        only.isel(time=piece).drop_vars("time").to_zarr(
            session.store, region={"time": piece}, zarr_format=3, consolidated=False
        )
    for session in sessions:
        session.commit("region", rebase_with=icechunk.ConflictDetector())
    xr.testing.assert_equal(
        read(repo)["temperature"].drop_vars(["lat", "lon", "name", "time"]),
        only["temperature"].drop_vars("time"),
    )


def test_groups_hold_data_sets(repo):
    write(repo, weather(), group="eu/weather")
    write(repo, weather("2025-01-01"), group="us/weather")
    xr.testing.assert_identical(read(repo, group="us/weather"), weather("2025-01-01"))
    xr.testing.assert_identical(read(repo, group="eu/weather"), weather())


def committed(repo, make):
    session = repo.writable_session("main")
    make(zarr.open_group(session.store, mode="a"))
    session.commit("made")
    return zarr.open_group(repo.readonly_session("main").store, mode="r")


def test_sharded_arrays_are_read_in_parts(repo):
    data = np.arange(10_000, dtype="i4").reshape(100, 100)
    root = committed(repo, lambda g: g.create_array("x", data=data, chunks=(5, 5), shards=(50, 50)))
    assert (root["x"][...] == data).all()
    assert (root["x"][3:60:7, 48:52] == data[3:60:7, 48:52]).all()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="x")[49:51, 49:51] = -1
    session.commit("across four shards")
    data[49:51, 49:51] = -1
    assert (trees.values(repo.readonly_session("main"), "/x") == data).all()


@pytest.mark.parametrize(
    "data",
    [
        np.array(5.5),
        np.zeros((0,), "i4"),
        np.zeros((3, 0, 2), "f8"),
        np.array(["a", "ünï", ""], dtype=np.dtypes.StringDType()),
        np.array([True, False]),
        np.array([1 + 2j, np.nan]),
        np.array(["2024-01-01", "NaT"], dtype="M8[s]"),
        np.array([b"ab", b"c"], dtype="S2"),
    ],
    ids=["0-d", "empty", "empty side", "strings", "booleans", "complex", "times", "bytes"],
)
def test_every_kind_of_array_comes_back(repo, data):
    root = committed(repo, lambda g: g.create_array("x", data=data))
    found = root["x"][...]
    assert root["x"].shape == data.shape
    np.testing.assert_array_equal(np.asarray(found), data)


def test_names_may_be_anything_but_slashes(repo):
    names = ["ünï", "a b", "a.b", "c", "c0", "zarr", "日本", "%20", "a-b", "a"]

    def make(group):
        for number, name in enumerate(names):
            group.create_array(f"{name}/x", data=np.array([number]))

    root = committed(repo, make)
    assert sorted(root) == sorted(names)
    assert [int(root[f"{name}/x"][0]) for name in names] == list(range(len(names)))


def test_an_array_below_a_group_called_c_is_no_chunk(repo):
    root = committed(repo, lambda g: g.create_array("c/0/c", data=np.arange(3), chunks=(1,)))
    assert root["c/0/c"][...].tolist() == [0, 1, 2]
    assert sorted(root["c/0"]) == ["c"]


def test_consolidated_metadata_is_kept_like_any_document(repo):
    root = committed(repo, lambda g: g.create_array("x", data=np.arange(3)))
    del root
    session = repo.writable_session("main")
    store = session.store
    document = sync(store.get("zarr.json", default_buffer_prototype())).to_bytes()
    given = document.replace(
        b'"node_type"',
        b'"consolidated_metadata":{"kind":"inline","must_understand":false,"metadata":{}},'
        b'"node_type"',
    )
    sync(store.set("zarr.json", default_buffer_prototype().buffer.from_bytes(given)))
    session.commit("consolidated")
    reader = repo.readonly_session("main").store
    assert sync(reader.get("zarr.json", default_buffer_prototype())).to_bytes() == given
    assert zarr.open_group(reader, mode="r", use_consolidated=False)["x"][...].tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [10, 600, 2 << 20], ids=["inline", "packed", "alone"])
@pytest.mark.parametrize("stored", [False, True], ids=["pending", "committed"])
def test_parts_of_chunks(repo, size, stored):
    data = np.arange(size, dtype="u1")
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="x", data=data, chunks=(size,), compressors=None)
    if stored:
        session.commit("stored")
    whole = data.tobytes()
    for request, expected in [
        (None, whole),
        (RangeByteRequest(2, 7), whole[2:7]),
        (RangeByteRequest(5, size + 9), whole[5:]),
        (OffsetByteRequest(4), whole[4:]),
        (SuffixByteRequest(3), whole[-3:]),
        (SuffixByteRequest(size + 3), whole),
    ]:
        found = sync(session.store.get("x/c/0", default_buffer_prototype(), request))
        assert found.to_bytes() == expected
        assert session.store.get_sync("x/c/0", byte_range=request).to_bytes() == expected
    assert sync(session.store.getsize("x/c/0")) == size


def test_read_only_follows_the_session(repo):
    session = repo.writable_session("main")
    store = session.store
    assert not store.read_only
    zarr.group(store)
    session.commit("done")
    assert store.read_only
    with pytest.raises(ValueError, match="read-only"):
        zarr.create_group(store, path="late")


def test_delete_dir_takes_nodes_or_chunks(repo):
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    array = root.create_array("g/x", data=np.ones((3, 3)), chunks=(1, 1))
    sync(session.store.delete_dir("g/x/c/1"))
    assert array[...].tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    sync(session.store.delete_dir("g/x"))
    assert sorted(root["g"]) == []
    sync(session.store.delete_dir(""))
    assert sync(session.store.is_empty(""))


def rows(first, count=1, value=1.0):
    days = np.datetime64("2024-01-01", "ns") + np.arange(first, first + count) * np.timedelta64(
        1, "D"
    )
    field = np.full((count, 3), value, "f4")
    return xr.Dataset({"t": (("time", "x"), field)}, {"time": days, "x": [1, 2, 3]})


@pytest.mark.parametrize("auto", [True, False])
def test_regions_of_one_chunk_that_two_tasks_write_are_both_kept(auto):
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    first = repo.writable_session("main")
    icechunk.to_icechunk(rows(0, 4), first, encoding={"t": {"chunks": (4, 3)}})
    first.commit("four days in one chunk")
    sessions = [repo.writable_session("main") for _ in range(3)]
    for day, session in enumerate(sessions):
        region = {"time": "auto"} if auto else {"time": slice(day, day + 1)}
        icechunk.to_icechunk(rows(day, value=10 + day).drop_vars("x"), session, region=region)
    for session in sessions:
        session.commit("day", rebase_with=icechunk.MergeSolver())
    assert read(repo).t.values[:, 0].tolist() == [10, 11, 12, 1]


def test_datasets_that_are_appended_at_once_come_one_behind_the_other():
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    first = repo.writable_session("main")
    icechunk.to_icechunk(rows(0, 3), first, encoding={"t": {"chunks": (2, 3)}})
    first.commit("three days")
    days = (rows(3, 1, 5.0), rows(4, 2, 6.0), rows(3, 1, 5.0))
    sessions = [repo.writable_session("main") for _ in days]
    for session, dataset in zip(sessions, days, strict=True):
        icechunk.to_icechunk(dataset, session, append_dim="time")
    for session in sessions[1], sessions[0], sessions[2]:
        if session.has_uncommitted_changes:
            session.commit("days", rebase_with=icechunk.MergeSolver())
    found = read(repo)
    assert found.t.values[:, 1].tolist() == [1, 1, 1, 6, 6, 5]
    assert found.time.dt.day.values.tolist() == [1, 2, 3, 5, 6, 4]


def test_what_xarray_wrote_is_recorded():
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repo.writable_session("main")
    icechunk.to_icechunk(rows(0, 3).t, session, group="g")
    session.commit("three days")
    session = repo.writable_session("main")
    icechunk.to_icechunk(rows(3, 2), session, group="g", append_dim="time")
    session.commit("two more")
    second, first = list(repo.ancestry(branch="main"))[:2]
    written = "airflow_provider_icechunk.written"
    assert first.metadata[written]["arrays"]["/g/t"] == [[[0, 3], [0, 3]]]
    assert second.metadata[written]["arrays"]["/g/t"] == [[[3, 5], [0, 3]]]
    assert second.metadata[written]["appends"] == {"/g/time": [3, 5]}
