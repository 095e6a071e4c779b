"""Reads on Spark against Xarray on the same cores: the mean of all cells, and of one in a hundred.

From the repository root: `python -m benchmarks.spark_reads [megabytes] [rounds]`. Where Dask is
installed it reads for Xarray, otherwise a thread for each core, chunk by chunk, which is what Dask
does for a mean.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import xarray as xr
import zarr
from pyspark.sql import SparkSession, functions

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.spark import IcechunkSource
from benchmarks.spark import start

SIDE, DAYS_PER_CHUNK = 512, 4
GOALS = {"mean of everything": 3.0, "mean of one in a hundred": 1.5}


def create(place: Path, megabytes: int) -> int:
    """An array of days and its coordinates; returns how many days it has."""
    days = max(100, megabytes * (1 << 20) // (SIDE * SIDE * 4) // DAYS_PER_CHUNK * DAYS_PER_CHUNK)
    repository = Repository.create(LocalStorage(place, durable=False))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    for name, length in (("time", days), ("y", SIDE), ("x", SIDE)):
        one = root.create_array(name, shape=(length,), dtype="i8", dimension_names=(name,))
        one[...] = np.arange(length)
    array = root.create_array(
        "t2m",
        shape=(days, SIDE, SIDE),
        chunks=(DAYS_PER_CHUNK, SIDE, SIDE),
        dtype="f4",
        dimension_names=("time", "y", "x"),
    )
    block = np.round(np.random.default_rng(1).normal(280, 10, (DAYS_PER_CHUNK, SIDE, SIDE)), 1)
    for first in range(0, days, DAYS_PER_CHUNK):
        array[first : first + DAYS_PER_CHUNK] = block[: days - first] + first % 7
    session.commit("days")
    return days


def opened(place: Path) -> xr.Dataset:
    session = Repository.open(LocalStorage(place)).readonly_session("main")
    return xr.open_zarr(session.store, consolidated=False, chunks={} if find_spec("dask") else None)


def by_xarray(place: Path, cores: int) -> float:
    values = opened(place)["t2m"]
    if find_spec("dask"):
        import dask

        with dask.config.set(scheduler="threads", num_workers=cores):
            return float(values.mean(dtype="f8"))
    firsts = range(0, values.sizes["time"], DAYS_PER_CHUNK)
    with ThreadPoolExecutor(cores) as pool:
        parts = pool.map(lambda n: float(values[n : n + DAYS_PER_CHUNK].sum(dtype="f8")), firsts)
        return sum(parts) / values.size


def by_spark(spark: SparkSession, place: Path) -> float:
    frame = _frame(spark, place, columns="t2m")
    return float(frame.agg(functions.avg("t2m")).first()[0])


def part_by_xarray(place: Path, days: int) -> float:
    return float(opened(place)["t2m"].sel(time=slice(0, days // 100 - 1)).mean(dtype="f8"))


def part_by_spark(spark: SparkSession, place: Path, days: int) -> float:
    frame = _frame(spark, place, columns="time,t2m").where(f"time <= {days // 100 - 1}")
    return float(frame.agg(functions.avg("t2m")).first()[0])


def _frame(spark: SparkSession, place: Path, **options: str) -> Any:
    return spark.read.format("icechunk").options(node="t2m", **options).load(str(place))


def seconds(work: Callable[[], float], rounds: int) -> tuple[float, float]:
    """The median, and what was computed."""
    took, found = [], 0.0
    for _ in range(rounds):
        begin = perf_counter()
        found = work()
        took.append(perf_counter() - begin)
    return median(took), found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_reads")
    parser.add_argument("megabytes", type=int, nargs="?", default=1024)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "repository"
        days = create(place, given.megabytes)
        spark = start(f"local[{given.cores}]")
        try:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
            spark.dataSource.register(IcechunkSource)
            works = {
                "mean of everything": (
                    lambda: by_xarray(place, given.cores),
                    lambda: by_spark(spark, place),
                ),
                "mean of one in a hundred": (
                    lambda: part_by_xarray(place, days),
                    lambda: part_by_spark(spark, place, days),
                ),
            }
            for name, (xarray, ours) in works.items():
                (theirs, expected), (took, found) = (
                    seconds(one, given.rounds) for one in (xarray, ours)
                )
                if abs(expected - found) > 1e-3:
                    raise SystemExit(f"{name}: Xarray says {expected}, Spark {found}")
                print(
                    f"{name}: Xarray {theirs:.2f} s, Spark {took:.2f} s, "
                    f"{took / theirs:.1f} times (goal {GOALS[name]})",
                    flush=True,
                )
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
