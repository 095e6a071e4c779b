"""A million chunk references through a whole job, with a driver of one gigabyte."""

import json
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from support.drivers import environment, last_line, start

from airflow_provider_icechunk.api import Repository, local_filesystem_storage

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

DRIVER = """
import json, resource, sys
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.spark.write.job import SparkWriteJob

(place,) = sys.argv[1:]

def create(session):
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(1000, 1000), chunks=(1, 1), dtype="int64", compressors=None)

def write(fork, number):
    for row in range(50 * number, 50 * number + 50):
        for column in range(1000):
            data = (1000 * row + column).to_bytes(8, "little")
            fork.tree.put_chunk("/a", (row, column), data)
    return 8 * 50 * 1000

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
heap = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()
job = SparkWriteJob.open(spark, place, job="million", prepare=create)
job.run([f"rows-{number}" for number in range(20)], write, say=lambda line: print(line, flush=True))
result = job.commit("a million chunks")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(json.dumps([result.chunks, heap, peak, result.seconds]))
spark.stop()
"""


def test_a_million_chunks_pass_through_a_driver_of_one_gigabyte(tmp_path: Path) -> None:
    place = tmp_path / "repository"
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    official = icechunk.local_filesystem_storage(str(place))
    icechunk.Repository.create(official, config).save_config()
    memory = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell"}
    answer = last_line(start(DRIVER, place, env=environment(**memory)))
    chunks, heap, peak, seconds = json.loads(answer)
    print(f"\nJava heap {heap >> 20} MiB, Python peak {peak >> 20} MiB, {seconds} s")
    assert chunks == 1_000_000
    assert heap <= 1 << 30
    assert peak <= 1 << 30
    repository = Repository.open(local_filesystem_storage(place))
    assert len(list(repository.ancestry(branch="main"))) == 2
    tree = repository.readonly_session("main").tree
    assert len(tree.references(tree.array("/a"))) == 1_000_000
    store = icechunk.Repository.open(official).readonly_session("main").store
    found = np.asarray(zarr.open_array(store, path="a", mode="r")[997:, ::333])
    assert found.tolist() == [
        [1000 * row + c for c in (0, 333, 666, 999)] for row in (997, 998, 999)
    ]
