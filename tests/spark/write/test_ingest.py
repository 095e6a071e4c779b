"""Files as virtual references: what HDF5 reads is what Zarr reads, or the file says why not."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from support import actors

from airflow_provider_icechunk.api import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    local_filesystem_storage,
    local_filesystem_store,
    refer_to_files,
)
from airflow_provider_icechunk.engine.tree.chunk_table import ChunkType
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    InvalidInputError,
    VirtualAccessDeniedError,
    VirtualChunkChangedError,
)
from airflow_provider_icechunk.spark.write.virtual import ingest_virtual, plan_virtual

# Zarr warns of every codec that its own specification does not have.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

WHOLE = np.random.default_rng(5).normal(size=(12, 6, 8)).astype("float32")


def write_file(path: Path, start: int, stop: int, **changes: Any) -> str:
    """A file as NetCDF4 has it: dimension scales, CF attributes, filters."""
    options = {"chunks": (2, 3, 8), "compression": "gzip", "shuffle": True, **changes}
    units = options.pop("units", "days since 2026-01-01")
    data = WHOLE[start:stop].astype(options.pop("dtype", "float32"))
    with h5py.File(path, "w") as file:
        file.attrs["title"] = f"weather {start}"
        file["time"] = np.arange(start, stop, dtype="int64")
        file["lat"] = np.linspace(40, 60, 6)
        file["lon"] = np.linspace(0, 30, 8)
        for name in ("time", "lat", "lon"):
            file[name].make_scale(name)
        file["time"].attrs["units"] = units
        file["time"].attrs["calendar"] = "standard"
        t2m = file.create_dataset("t2m", data=data, **options)
        t2m.attrs["units"] = "K"
        t2m.attrs["_FillValue"] = np.array([-999], data.dtype)
        count = file.create_dataset(
            "quality/count", data=np.arange(6 * (stop - start), dtype=">i2").reshape(-1, 6)
        )
        for dataset in (t2m, count):
            dataset.dims[0].attach_scale(file["time"])
            dataset.dims[1].attach_scale(file["lat"])
        t2m.dims[2].attach_scale(file["lon"])
        file["mask"] = np.arange(48).reshape(6, 8) % 3 == 0
        file["mask"].dims[0].attach_scale(file["lat"])
        file["mask"].dims[1].attach_scale(file["lon"])
        file["crs"] = np.int32(7)
        file["crs"].attrs["grid_mapping_name"] = "latitude_longitude"
        file["crs"].attrs["range"] = np.array([np.nan, 1.5])
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "files"
    folder.mkdir()
    return [write_file(folder / f"{n} a.nc", 4 * n, 4 * n + 4) for n in range(3)]


def granting(tmp_path: Path, spec_version: int = 1) -> Repository:
    prefix = f"file://{tmp_path}/files/"
    config = RepositoryConfig.default()
    store = local_filesystem_store(f"{tmp_path}/files")
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    return Repository.create(
        local_filesystem_storage(str(tmp_path / "repository")),
        config,
        {prefix: None},
        spec_version=spec_version,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return granting(tmp_path)


def refer(repository: Repository, files: list[str], **choice: Any) -> int:
    session = repository.writable_session("main")
    count = refer_to_files(session, files, **choice)
    session.commit("files")
    return count


def read(repository: Any) -> zarr.Group:
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def values(root: zarr.Group, path: str) -> np.ndarray[Any, np.dtype[Any]]:
    array = root[path]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[...])


def check_equal(root: zarr.Group, files: list[str], into: Mapping[str, str]) -> None:
    opened = [h5py.File(file) for file in files]
    for name, path in into.items():
        parts = [file[name][()] for file in opened]
        grows = name in ("t2m", "quality/count", "time")
        expected = np.concatenate(parts) if grows else parts[0]
        found = values(root, path)
        assert found.dtype == expected.dtype.newbyteorder("="), name
        assert np.array_equal(found, expected), name


NAMES = ("t2m", "quality/count", "time", "lat", "lon", "mask", "crs")


@pytest.mark.parametrize("generation", [1, 2])
def test_arrays_of_references_read_as_the_files_do_also_officially(
    tmp_path: Path, files: list[str], generation: int
) -> None:
    repository = granting(tmp_path, generation)
    # Of each file four chunks and one; of the first file alone the two that do not grow.
    assert refer(repository, files) == 3 * 4 + 3 + 2
    same = {name: name for name in NAMES}
    check_equal(read(repository), files, same)
    session = repository.readonly_session("main")
    assert session.chunk_type("/t2m", (5, 1, 0)) is ChunkType.VIRTUAL
    assert session.chunk_type("/time", (0,)) is not ChunkType.VIRTUAL
    if generation == 1:
        storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
        official = icechunk.Repository.open(
            storage,
            authorize_virtual_chunk_access=icechunk.containers_credentials(
                {f"file://{tmp_path}/files/": None}
            ),
        )
        check_equal(read(official), files, same)


READ = """
import sys, warnings, icechunk, zarr, numpy as np
warnings.simplefilter("ignore")
storage = icechunk.local_filesystem_storage(sys.argv[1])
repository = icechunk.Repository.open(
    storage, authorize_virtual_chunk_access=icechunk.containers_credentials({sys.argv[2]: None})
)
root = zarr.open_group(repository.readonly_session("main").store, mode="r")
np.savez(sys.argv[3], **{name.replace("/", "."): root[name][...] for name in sys.argv[4:]})
"""


@actors.needs_icechunk2
@pytest.mark.parametrize("generation", [1, 2])
def test_official_icechunk_2_reads_the_references(
    tmp_path: Path, files: list[str], generation: int
) -> None:
    assert actors.PYTHON is not None
    refer(granting(tmp_path, generation), files)
    given = [str(tmp_path / "repository"), f"file://{tmp_path}/files/", str(tmp_path / "out.npz")]
    subprocess.run([actors.PYTHON, "-c", READ, *given, *NAMES], check=True, env={})
    with np.load(tmp_path / "out.npz") as found:
        assert np.array_equal(found["t2m"], WHOLE)
        assert np.array_equal(found["time"], np.arange(12))
        with h5py.File(files[0]) as first:
            assert np.array_equal(found["quality.count"][:4], first["quality/count"])
            assert np.array_equal(found["mask"], first["mask"])


def test_xarray_sees_one_data_set_with_its_dimensions_and_attributes(
    repository: Repository, files: list[str]
) -> None:
    refer(repository, files)
    store = repository.readonly_session("main").store
    with xr.open_zarr(store, consolidated=False) as found, xr.open_dataset(files[0]) as first:
        assert found["t2m"].dims == ("time", "lat", "lon")
        assert found.sizes == {"time": 12, "lat": 6, "lon": 8}
        assert found.attrs == {"title": "weather 0"}
        assert found["crs"].attrs == {
            "grid_mapping_name": "latitude_longitude",
            "range": ["NaN", 1.5],
        }
        assert np.array_equal(found["t2m"].isel(time=slice(4)), first["t2m"])
        assert found["time"].values[11] == np.datetime64("2026-01-12")
        assert found["t2m"].encoding["_FillValue"] == -999


def test_files_are_appended_and_what_does_not_grow_stays_that_of_the_first(
    repository: Repository, files: list[str]
) -> None:
    refer(repository, files[:1])
    assert refer(repository, files[1:]) == 2 * 4 + 2
    check_equal(read(repository), files, {name: name for name in NAMES})


def test_files_replace_others_at_their_place(repository: Repository, files: list[str]) -> None:
    refer(repository, files)
    session = repository.writable_session("main")
    refer_to_files(session, [files[2]], start=4)
    session.commit("again")
    assert np.array_equal(values(read(repository), "t2m")[4:8], WHOLE[8:12])


def test_variables_are_chosen_and_named_and_may_be_copied(
    repository: Repository, files: list[str]
) -> None:
    chosen = {"t2m": "air/temperature", "lat": "lat"}
    refer(repository, files, variables=chosen, load=("t2m",), into="here")
    root = read(repository)
    check_equal(root, files, {"t2m": "here/air/temperature", "lat": "here/lat"})
    session = repository.readonly_session("main")
    assert session.chunk_type("/here/air/temperature", (0, 0, 0)) is not ChunkType.VIRTUAL
    assert session.chunk_type("/here/lat", (0,)) is ChunkType.VIRTUAL
    assert "t2m" not in root


@pytest.mark.parametrize(
    "options",
    [
        {"compression": None, "shuffle": False},
        {"compression": None, "shuffle": False, "chunks": None},
        {"fletcher32": True},
        {"dtype": ">f8", "compression_opts": 9},
        {"dtype": "int16", "fillvalue": -999},
        {"dtype": "complex64", "compression": None},
    ],
)
def test_every_storage_that_zarr_can_express_reads_equal(
    tmp_path: Path, repository: Repository, options: dict[str, Any]
) -> None:
    (tmp_path / "files").mkdir()
    files = [
        write_file(tmp_path / "files" / f"{n}.nc", 4 * n, 4 * n + 4, **options) for n in (0, 1)
    ]
    refer(repository, files, variables={"t2m": "t2m"})
    check_equal(read(repository), files, {"t2m": "t2m"})


def test_chunks_that_were_never_written_are_the_fill_value(
    tmp_path: Path, repository: Repository
) -> None:
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "sparse.h5"
    with h5py.File(path, "w") as file:
        sparse = file.create_dataset("v", (6, 4), "f4", chunks=(2, 4), fillvalue=np.nan)
        sparse[2:4] = 1
        file.create_dataset("empty", (6,), "i4", fillvalue=5)
    assert refer(repository, [str(path)], along=0) == 1
    root = read(repository)
    found = values(root, "v")
    assert np.isnan(found[[0, 1, 4, 5]]).all()
    assert (found[2:4] == 1).all()
    assert np.array_equal(values(root, "empty"), np.full(6, 5))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chunks": (1, 3, 8)}, r"1\.nc: the chunk shape of 't2m' is \(1, 3, 8\)"),
        ({"compression": None}, r"1\.nc: the filter pipeline of 't2m'"),
        ({"dtype": "float64"}, r"1\.nc: the type of 't2m' is <f8"),
        ({"compression": "lzf"}, r"1\.nc: the filter pipeline|lzf"),
        ({"units": "hours"}, r"1\.nc: the values of 'time' are no times"),
    ],
)
def test_files_that_differ_are_refused_with_the_file_and_the_reason(
    tmp_path: Path, repository: Repository, changes: dict[str, Any], reason: str
) -> None:
    (tmp_path / "files").mkdir()
    files = [
        write_file(tmp_path / "files" / "0.nc", 0, 4),
        write_file(tmp_path / "files" / "1.nc", 4, 8, **changes),
    ]
    with pytest.raises(IcechunkError, match=reason):
        refer(repository, files)


def test_unsupported_filters_types_and_borders_are_named(
    tmp_path: Path, repository: Repository
) -> None:
    (tmp_path / "files").mkdir()
    lzf = write_file(tmp_path / "files" / "lzf.nc", 0, 4, compression="lzf")
    with pytest.raises(IcechunkError, match=r"lzf\.nc: 't2m'.*filter 32000 \(lzf\).*`load`"):
        refer(repository, [lzf])
    uneven = [write_file(tmp_path / "files" / f"{n}.nc", n, n + 3) for n in (0, 3)]
    with pytest.raises(InvalidInputError, match=r"3\.nc: 't2m' would begin at 3, inside"):
        refer(repository, uneven, variables={"t2m": "t2m"})
    with h5py.File(lzf, "a") as file:
        file["text"] = "words"
    with pytest.raises(IcechunkError, match=r"'text' cannot be referred to.*no counterpart"):
        refer(repository, [lzf], variables={"text": "text", "time": "time"})
    with pytest.raises(InvalidInputError, match="no selected variable has the dimension 'month'"):
        refer(repository, [lzf], along="month", variables={"lat": "lat"})
    (tmp_path / "files" / "no.nc").write_bytes(b"no HDF5")
    with pytest.raises(InvalidInputError, match=r"no\.nc: not an HDF5"):
        refer(repository, [str(tmp_path / "files" / "no.nc")])


def test_an_array_that_is_stored_in_another_way_is_not_appended_to(
    tmp_path: Path, repository: Repository, files: list[str]
) -> None:
    refer(repository, files[:1], variables={"t2m": "t2m"})
    other = write_file(tmp_path / "files" / "other.nc", 4, 8, chunks=(4, 6, 8))
    with pytest.raises(IcechunkError, match=r"other\.nc: the chunk shape of 't2m' is \(4, 6"):
        refer(repository, [other], variables={"t2m": "t2m"})


def test_nothing_is_read_that_no_container_covers(
    tmp_path: Path, repository: Repository, files: list[str]
) -> None:
    outside = write_file(tmp_path / "outside.nc", 0, 4)
    with pytest.raises(VirtualAccessDeniedError, match="no virtual chunk container"):
        refer(repository, [outside])
    closed = Repository.open(local_filesystem_storage(str(tmp_path / "repository")))
    with pytest.raises(VirtualAccessDeniedError, match="not authorized"):
        refer(closed, files)


@pytest.mark.parametrize("checksum", ["auto", "etag", "modified"])
def test_a_file_that_changes_afterwards_is_not_read(
    repository: Repository, files: list[str], checksum: str
) -> None:
    refer(repository, files, variables={"t2m": "t2m"}, checksum=checksum)
    array = read(repository)["t2m"]
    assert isinstance(array, zarr.Array)
    with Path(files[1]).open("r+b") as file:
        file.write(b"x")
    os.utime(files[1], (4e9, 4e9))
    assert np.array_equal(np.asarray(array[:4]), WHOLE[:4])
    with pytest.raises(VirtualChunkChangedError):
        array[4:8]


@settings(max_examples=20)
@given(data=st.data())
def test_any_shape_chunks_and_filters_read_as_the_file_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(1, 3))
    chunks = data.draw(st.tuples(*[st.integers(1, 4)] * rank))
    cross = data.draw(st.tuples(*[st.integers(1, 7)] * (rank - 1)))
    # All files but the last end at the border of a chunk.
    lengths = [chunks[0] * data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))]
    dtype = data.draw(st.sampled_from(["<f4", ">f8", "<i2", ">u4", "|u1", "|i1", "<c8"]))
    compression = data.draw(st.sampled_from([None, "gzip"]))
    flags = {name: data.draw(st.booleans()) for name in ("shuffle", "fletcher32")}
    root = tmp_path_factory.mktemp("any")
    (root / "files").mkdir()
    parts, files = [], []
    for number, length in enumerate(lengths):
        part = np.random.default_rng(number).integers(0, 99, (length, *cross)).astype(dtype)
        path = root / "files" / f"{number}.h5"
        limits = (None, *(None for _ in cross))
        with h5py.File(path, "w") as file:
            file.create_dataset(
                "v", data=part, chunks=chunks, maxshape=limits, compression=compression, **flags
            )
        parts.append(part)
        files.append(str(path))
    repository = granting(root)
    refer(repository, files, along=0)
    assert np.array_equal(values(read(repository), "v"), np.concatenate(parts))


def test_a_file_that_is_cut_off_is_refused_with_its_name(
    repository: Repository, files: list[str]
) -> None:
    whole = Path(files[0]).read_bytes()
    for size in range(0, len(whole), 997):
        Path(files[0]).write_bytes(whole[:size])
        with pytest.raises(IcechunkError, match=r"0%20a\.nc"):
            refer(repository, files[:1])


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_spark_commits_once_what_one_process_would(
    spark: SparkSession, repository: Repository, files: list[str]
) -> None:
    plan = plan_virtual(spark, repository, files[:2])
    assert [len(plan.rows()), plan.series[""].end, plan.problems] == [len(NAMES), 8, ()]
    first = ingest_virtual(spark, repository, files[:2], job="one", tasks=2)
    assert (first.chunks, first.size, first.tasks) == (2 * 4 + 2 + 2, 0, 2)
    ingest_virtual(spark, repository, files[2:], job="two", message="more")
    assert ingest_virtual(spark, repository, files[2:], job="two").replayed
    check_equal(read(repository), files, {name: name for name in NAMES})
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert messages[:2] == ["more", "refer to 2 files"]
    with pytest.raises(VirtualAccessDeniedError, match="no virtual chunk container"):
        ingest_virtual(spark, repository, ["/outside.nc"], job="three")
