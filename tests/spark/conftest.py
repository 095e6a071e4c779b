"""One Spark for all tests of the folder: starting it takes longer than most of them."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zarr
from pyspark.sql import SparkSession
from support.drivers import kill_leftovers

from airflow_provider_icechunk.api import Repository, local_filesystem_storage


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    root, here = Path(__file__).resolve().parents[2], Path(__file__).resolve().parent
    # Where the build puts it: Spark has to find the data source without being told.
    installed = tmp_path_factory.mktemp("site")
    shutil.copy(root / "airflow_provider_icechunk" / "spark" / "pyspark_icechunk.py", installed)
    # Functions of tests travel by name, so executors have to find the modules that define them.
    folders = [here, *sorted(folder for folder in here.iterdir() if folder.is_dir())]
    path = os.pathsep.join(map(str, [root, *folders, installed]))
    patch.setenv("PYTHONPATH", path)
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    # Plain `local[2]` never tries a failed task again.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "3")
    # A JVM that an earlier test left running has the environment of that test.
    builder = builder.config("spark.executorEnv.PYTHONPATH", path)
    session = builder.appName("tests").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    patch.undo()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(local_filesystem_storage(tmp_path / "repository"))


@pytest.fixture(autouse=True)
def no_leftover_drivers() -> Iterator[None]:
    yield
    kill_leftovers()


@pytest.fixture
def place(repository: Repository, tmp_path: Path) -> str:
    """The folder of a repository with an array `a`."""
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(8, 10), chunks=(1, 4), dtype="int64", compressors=None)
    session.commit("first")
    return str(tmp_path / "repository")
