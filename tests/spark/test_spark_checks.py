"""Checks on Spark: the same report as in one process, to the last bit."""

from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.checks.checks import parse_checks
from airflow_provider_icechunk.engine.checks.run import run_checks
from airflow_provider_icechunk.exceptions import TaskError
from airflow_provider_icechunk.spark.checks import run_checks as run_checks_on_spark

pytestmark = pytest.mark.spark


def no_hole(values: Any, region: dict[str, tuple[int, int]], allowed: int) -> str | bool:
    holes = int(np.isnan(values).sum())
    return holes <= allowed or f"{holes} holes from day {region['time'][0]}"


def broken(values: Any, region: dict[str, tuple[int, int]]) -> bool:
    raise ZeroDivisionError(f"{values.shape}")


CHECKS = [
    {"check": "range", "array": "t2m", "minimum": 200, "maximum": 320},
    {"check": "missing", "array": "t2m", "most": 0.1},
    {"check": "missing", "array": "t2m", "most": 0.0, "region": {"time": [3, 30], "x": [1, 5]}},
    {"check": "complete", "array": "t2m", "dim": "time", "least": 50},
    {"check": "drift", "array": "t2m", "tag": "v1", "most": 0.01},
    {"check": "monotone", "array": "time", "direction": "increasing"},
    {"check": "blocks", "array": "t2m", "function": "test_spark_checks:no_hole",
     "arguments": {"allowed": 3}},
]  # fmt: skip


@pytest.fixture
def written(repository: Repository) -> Repository:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    values = np.random.default_rng(5).normal(280, 15, (40, 7)).astype("float32")
    t2m = root.create_array("t2m", shape=(40, 7), chunks=(3, 4), dtype="float32",
                            fill_value=np.nan, dimension_names=("time", "x"))  # fmt: skip
    t2m[:33] = values[:33]
    root.create_array("time", shape=(40,), dtype="int64", dimension_names=("time",))[:] = range(40)
    repository.create_tag("v1", session.commit("first"))
    session = repository.writable_session("main")
    t2m = zarr.open_array(session.store, path="t2m", mode="r+")
    t2m[5:9, 2:6] = np.nan
    t2m[20] = values[20] + np.float32(0.1)
    session.commit("second")
    return repository


def test_the_report_is_the_same_as_in_one_process(spark: SparkSession, written: Repository) -> None:
    session, wanted = written.readonly_session("main"), parse_checks(CHECKS)
    here = run_checks(written, session, wanted)
    assert run_checks_on_spark(spark, written, session, wanted) == here
    assert {one["passed"] for one in here[1]["checks"]} == {True, False}


def test_an_error_of_an_own_function_reaches_the_driver(
    spark: SparkSession, written: Repository
) -> None:
    session = written.readonly_session("main")
    bad = [{"check": "blocks", "array": "t2m", "function": "test_spark_checks:broken"}]
    with pytest.raises(TaskError, match=r"test_spark_checks:broken.*Zero"):
        run_checks_on_spark(spark, written, session, parse_checks(bad))
