"""One Spark for all tests of the folder: starting it takes longer than most of them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository, local_filesystem_storage


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    root, here = Path(__file__).resolve().parents[2], Path(__file__).resolve().parent
    patch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(here)]))
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    # Plain `local[2]` never tries a failed task again.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "3")
    session = builder.appName("tests").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    patch.undo()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(local_filesystem_storage(tmp_path / "repository"))
