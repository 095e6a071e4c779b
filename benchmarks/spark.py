"""Rates of array writes on Spark, in one run: ours, the official fork and merge, one process.

Run from the repository root: `python -m benchmarks.spark [megabytes] [rounds]`. Chunks are 4 MiB.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import icechunk
import numpy as np
import pyarrow as pa
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.spark.places import cores
from airflow_provider_icechunk.spark.regions import write_regions
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.zarr_store.sessions import Repository

CHUNK = 1 << 20
"""Values of 4 bytes."""
CODECS: dict[str, dict[str, Any]] = {"raw": {"compressors": None}, "zstd": {}}


def values(start: int, stop: int) -> Any:
    """Numbers with some noise in the last bits, as measurements have."""
    noise = np.random.default_rng(start).integers(0, 64, stop - start)
    return (np.arange(start, stop) // 7 + noise).astype("float32")


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


CONTENDERS: dict[str, Callable[[SparkSession, Path, int, str], None]] = {
    "ours on Spark": lambda *given: ours(*given, durable=True),
    "ours on Spark, no fsync": lambda *given: ours(*given, durable=False),
    "official fork and merge on Spark": official,
    "ours, one process, no fsync": one_process,
    "plain tofile, one process": tofile,
}


def main(arguments: list[str]) -> None:
    megabytes, rounds = (int(text) for text in (*arguments, "1024", "3")[:2])
    cells = max(1, megabytes // 4) * CHUNK
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(4).mapInArrow(lambda batches: batches, "id long").collect()
    print(f"{cells * 4 / 1e6:.0f} MB in chunks of 4 MiB, {rounds} rounds, MB/s: median (best)")
    for codec in CODECS:
        rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(rounds):
            for name, write in CONTENDERS.items():
                with tempfile.TemporaryDirectory() as folder:
                    begin = perf_counter()
                    write(spark, Path(folder) / "place", cells, codec)
                    rates[name].append(cells * 4 / 1e6 / (perf_counter() - begin))
        for name, found in rates.items():
            print(f"{codec:5} {name:34} {median(found):8.0f} ({max(found):.0f})")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
