"""The same functions over Spark Connect, where the program has no Java side and no context."""

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
import json, sys
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.spark.write.frames import write_chunks
from airflow_provider_icechunk.spark.progress import is_connect
from airflow_provider_icechunk.spark.read.frames import read_dataframe
from airflow_provider_icechunk.spark.write.regions import RegionWriter, plan_part, write_regions
from airflow_provider_icechunk.spark.write.job import SparkWriteJob

(place,) = sys.argv[1:]

def create(*names):
    def prepare(session):
        root = zarr.open_group(session.store, mode="a")
        for name in names:
            root.create_array(name, shape=(8, 6), chunks=(2, 4), dtype="int64")
    return prepare

def values(part):
    rows, columns = (np.arange(one.start, one.stop) for one in part)
    return 6 * rows[:, None] + columns[None, :]

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert is_connect(spark)
write_regions(spark, place, "a", values, job="1", prepare=create("a", "b"), tasks=3)
lines = []
job = SparkWriteJob.open(spark, place, job="2")
array = zarr.open_array(job.view.store, path="b", mode="r")
writer = RegionWriter("b", tuple(plan_part(array, {}, 3, 2)), values)
job.run(writer.names, writer, say=lines.append)
job.commit("b")
chunks = read_dataframe(spark, place, "a", layout="chunks")
write_chunks(chunks, place, "c", job="3", prepare=create("c"))
total = read_dataframe(spark, place, "c").groupBy().sum("c").collect()[0][0]
print(json.dumps([total, lines[-1]]))
spark.stop()
"""


def test_jobs_and_reads_work_over_connect(tmp_path: Path) -> None:
    place = tmp_path / "repository"
    repository = Repository.create(local_filesystem_storage(place))
    total, line = json.loads(last_line(start(DRIVER, place, env=environment())))
    assert total == sum(range(48))
    assert line.startswith("icechunk: 3/3 tasks 100% after ")
    assert len(list(repository.ancestry(branch="main"))) == 4
    store = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)))
    for name in ("a", "b", "c"):
        opened = zarr.open_array(store.readonly_session("main").store, path=name, mode="r")
        assert np.array_equal(np.asarray(opened[:]), np.arange(48).reshape(8, 6)), name
