"""Many files into one array: each cell from its file, whatever the chunks are."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.write.files import FileSlabs, ingest_files

WHOLE = np.arange(11 * 6, dtype="float32").reshape(11, 6)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Files of 3, 5 and 3 rows: two in HDF5, one in Zarr."""
    paths = []
    for number, (start, stop) in enumerate([(0, 3), (3, 8), (8, 11)]):
        path = tmp_path / f"{number}.nc"
        if number == 1:
            group = zarr.open_group(str(path), mode="w")
            group.create_array("v", data=WHOLE[start:stop])
        else:
            with h5py.File(path, "w") as file:
                file["v"] = WHOLE[start:stop]
        paths.append(str(path))
    return paths


def make(session: Session) -> None:
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(0, 6), chunks=(4, 4), dtype="float64")


def slabs(files: list[str], first: int, *regions: Any, variable: str = "v") -> FileSlabs:
    borders = (first, first + 3, first + 8, first + 11)
    return FileSlabs("a", variable, 0, tuple(files), borders, regions)


@pytest.fixture
def fork() -> ForkSession:
    session = Repository.create(in_memory_storage()).writable_session("main")
    make(session)
    array = zarr.open_array(session.store, path="a", mode="r+")
    array.resize((16, 6))
    array[:] = -1
    return session.fork()


def test_regions_take_their_cells_from_files_and_keep_the_rest(
    fork: ForkSession, files: list[str]
) -> None:
    work = slabs(files, 2, ((0, 8), (0, 6)), ((8, 16), (0, 4)), ((8, 16), (4, 6)))
    for number in range(3):
        work(fork, number)
    found = np.asarray(zarr.open_array(fork.store, path="a", mode="r")[:])
    expected = np.full((16, 6), -1.0)
    expected[2:13] = WHOLE
    assert np.array_equal(found, expected)


def test_tasks_have_other_names_for_other_files(files: list[str]) -> None:
    region = ((0, 8), (0, 6))
    assert slabs(files, 2, region).names == slabs(files, 2, region).names
    assert slabs(files, 2, region).names != slabs(files[::-1], 2, region).names
    assert slabs(files, 2, region).names != slabs(files, 3, region).names


def test_what_cannot_be_read_is_refused_with_its_file(fork: ForkSession, files: list[str]) -> None:
    with pytest.raises(InvalidInputError, match=r"0\.nc: there is no variable 'w'"):
        slabs(files, 0, ((0, 4), (0, 6)), variable="w")(fork, 0)
    Path(files[0]).write_bytes(b"something else")
    with pytest.raises(InvalidInputError, match=r"0\.nc: not an HDF5"):
        slabs(files, 0, ((0, 4), (0, 6)))(fork, 0)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_files_are_ingested_and_appended_on_spark(
    spark: SparkSession, repository: Repository, files: list[str]
) -> None:
    first = ingest_files(spark, repository, files, "v", "a", job="one", prepare=make)
    assert first.chunks == 6
    # The old end, at 11, lies inside of a chunk: its old cells stay.
    ingest_files(spark, repository, files[:2], "v", "a", job="two")
    again = ingest_files(spark, repository, files[:2], "v", "a", job="two")
    assert again.replayed
    store = repository.readonly_session("main").store
    found = np.asarray(zarr.open_array(store, path="a", mode="r")[:])
    assert np.array_equal(found, np.concatenate([WHOLE, WHOLE[:8]]))
    assert len(list(repository.ancestry(branch="main"))) == 3
    with h5py.File(files[0], "w") as file:
        file["v"] = np.zeros((3, 5), "float32")
    with pytest.raises(InvalidInputError, match=r"0\.nc.*\(5,\)"):
        ingest_files(spark, repository, [files[2], files[0]], "v", "a", job="x")
