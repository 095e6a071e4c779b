"""Rates of array writes on Spark, in one run: ours, the official fork and merge, one process.

A part of `python -m benchmarks`, which runs it as a process of its own. Alone, from the repository
root: `python -m benchmarks.spark [megabytes] [rounds]`. Chunks are 4 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import icechunk
import numpy as np
import pyarrow as pa
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.spark.runtime import cores
from airflow_provider_icechunk.spark.write.regions import write_regions
from benchmarks.spark_values import CHUNK, values

CODECS: dict[str, dict[str, Any]] = {"raw": {"compressors": None}, "zstd": {}}


def create(store: Any, cells: int, codec: str) -> None:
    root = zarr.open_group(store, mode="a")
    root.create_array("a", shape=(cells,), chunks=(CHUNK,), dtype="float32", **CODECS[codec])


def ours(spark: SparkSession, place: Path, cells: int, codec: str, *, durable: bool) -> None:
    repository = Repository.create(LocalStorage(place, durable=durable))
    write_regions(
        spark,
        repository,
        "a",
        lambda region: values(region[0].start, region[0].stop),
        job="bench",
        prepare=lambda session: create(session.store, cells, codec),
        tasks=cores(spark),
    )


def official(spark: SparkSession, place: Path, cells: int, codec: str) -> None:
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(place)))
    session = repository.writable_session("main")
    create(session.store, cells, codec)
    session.commit("the array")
    session = repository.writable_session("main")
    fork = session.fork()
    parts = cores(spark)
    chunks = cells // CHUNK

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        for batch in batches:
            for number in batch.column(0).to_pylist():
                array = zarr.open_array(fork.store, path="a", mode="r+")
                for chunk in range(chunks * number // parts, chunks * (number + 1) // parts):
                    array[chunk * CHUNK : (chunk + 1) * CHUNK] = values(
                        chunk * CHUNK, (chunk + 1) * CHUNK
                    )
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(fork)])], names=["fork"])

    import pickle

    rows = spark.range(0, parts, 1, parts).mapInArrow(task, "fork binary").collect()
    session.merge(*(pickle.loads(bytes(row["fork"])) for row in rows))
    session.commit("the chunks")


def one_process(_: SparkSession, place: Path, cells: int, codec: str) -> None:
    repository = Repository.create(LocalStorage(place, durable=False))
    session = repository.writable_session("main")
    create(session.store, cells, codec)
    array = zarr.open_array(session.store, path="a", mode="r+")
    for start in range(0, cells, CHUNK):
        array[start : start + CHUNK] = values(start, start + CHUNK)
    session.commit("everything")


def tofile(_: SparkSession, place: Path, cells: int, __: str) -> None:
    place.mkdir()
    for start in range(0, cells, CHUNK):
        values(start, start + CHUNK).tofile(place / str(start))


OURS_ON_SPARK = "ours on Spark, no fsync"
OFFICIAL_ON_SPARK = "official fork and merge on Spark"
CONTENDERS: dict[str, Callable[[SparkSession, Path, int, str], None]] = {
    "ours on Spark": lambda *given: ours(*given, durable=True),
    OURS_ON_SPARK: lambda *given: ours(*given, durable=False),
    OFFICIAL_ON_SPARK: official,
    "ours, one process, no fsync": one_process,
    "plain tofile, one process": tofile,
}
MANY_TASKS = 64


def many_tasks(spark: SparkSession, place: Path, tasks: int) -> None:
    """A job of tiny tasks: what it costs is what tasks cost."""
    repository = Repository.create(LocalStorage(place, durable=False))

    def prepare(session: Any) -> None:
        root = zarr.open_group(session.store, mode="a")
        root.create_array("a", shape=(MANY_TASKS * 1024,), chunks=(1024,), dtype="float32")

    write_regions(
        spark,
        repository,
        "a",
        lambda region: np.zeros(region[0].stop - region[0].start, "float32"),
        job="tiny",
        prepare=prepare,
        tasks=tasks,
    )


def empty_tasks(spark: SparkSession, _: Path, tasks: int) -> None:
    """What Spark itself takes for tasks in Python."""
    spark.range(0, tasks, 1, tasks).mapInArrow(lambda batches: batches, "id long").collect()


def cost_per_task(rounds: int, work: Callable[[Path, int], None]) -> float:
    """Seconds that each additional task of a job takes."""
    few, many = (
        median(timed(lambda place, count=count: work(place, count)) for _ in range(rounds))
        for count in (2, MANY_TASKS)
    )
    return (many - few) / (MANY_TASKS - 2)


def start(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Tasks import the values, so that a worker creates them once.
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(4).mapInArrow(_warm, "id long").collect()
    return spark


def _warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    values(0, 1)
    yield from batches


def timed(work: Callable[[Path], None]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = perf_counter()
        work(Path(folder) / "place")
        return perf_counter() - begin


def write_at(name: str, spark: SparkSession, cells: int, codec: str, place: Path) -> None:
    CONTENDERS[name](spark, place, cells, codec)


def measure(spark: SparkSession, cells: int, rounds: int, names: list[str]) -> dict[str, Any]:
    """Seconds by codec and contender, in turns."""
    found: dict[str, Any] = {}
    for codec in CODECS:
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                seconds[name].append(timed(partial(write_at, name, spark, cells, codec)))
        found[codec] = seconds
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark")
    parser.add_argument("megabytes", type=int, nargs="?", default=1024)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", action="append", choices=list(CONTENDERS))
    parser.add_argument("--json", type=Path, help="write seconds here instead of printing rates")
    given = parser.parse_args(arguments)
    cells = max(1, given.megabytes // 4) * CHUNK
    names = given.only or list(CONTENDERS)
    spark = start(given.master)
    try:
        seconds = measure(spark, cells, given.rounds, names)
        task = cost_per_task(given.rounds, partial(many_tasks, spark))
        empty_task = cost_per_task(given.rounds, partial(empty_tasks, spark))
    finally:
        spark.stop()
    result = {
        "bytes": cells * 4,
        "seconds": seconds,
        "task": task,
        "empty_task": empty_task,
    }
    if given.json is not None:
        given.json.write_text(json.dumps(result))
        return
    print(
        f"{cells * 4 / 1e6:.0f} MB in chunks of 4 MiB, {given.rounds} rounds, MB/s: median (best)"
    )
    for codec, found in seconds.items():
        for name, took in found.items():
            rates = [cells * 4 / 1e6 / one for one in took]
            print(f"{codec:5} {name:34} {median(rates):8.0f} ({max(rates):.0f})")
    print(f"each further task costs {1000 * task:.1f} ms, an empty one {1000 * empty_task:.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
