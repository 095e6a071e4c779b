"""A streaming query whose driver is killed at each point of a batch: every batch once."""

import os
import subprocess
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from support.drivers import environment, kill_at, last_line, start

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.spark.source.stream_write import BATCH_KEY, QUERY_KEY

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

DRIVER = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from airflow_provider_icechunk.spark.source.source import IcechunkSource
from airflow_provider_icechunk.spark.source.stream_write import IcechunkStreamWriter

folder, place, checkpoint, sign, point, batch = sys.argv[1:]

def wait_to_be_killed():
    Path(sign).touch()
    time.sleep(600)

class Stopping(IcechunkStreamWriter):
    def write(self, iterator):
        from pyspark import TaskContext
        here = TaskContext.get().getLocalProperty("streaming.sql.batchId") == batch
        if here and point == "before the chunks":
            wait_to_be_killed()
        return super().write(iterator)

    def commit(self, messages, batchId):
        here = str(batchId) == batch
        if here and point == "before the commit":
            wait_to_be_killed()
        super().commit(messages, batchId)
        if here and point == "after the commit":
            wait_to_be_killed()

class Source(IcechunkSource):
    def streamWriter(self, schema, overwrite):
        return Stopping.begin(self._options(), (0, 1))

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(Source)
stream = (
    spark.readStream.schema("row long, value long")
    .option("maxFilesPerTrigger", 1)
    .json(folder)
    .repartition(2, "row")
    .selectExpr("array(row) as chunk", "unhex(rpad(hex(value), 16, '0')) as data")
)
query = (
    stream.writeStream.format("icechunk")
    .options(node="a", path=place, checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print("done")
"""


def put_input(folder: Path, number: int) -> None:
    """A batch of two rows; every batch also writes row 0, so order and repetition would show."""
    file = folder / f"{number}.json"
    rows = {0: number + 32, number + 1: number + 20}
    file.write_text("\n".join(f'{{"row": {row}, "value": {rows[row]}}}' for row in rows))
    os.utime(file, (1_000_000 + number, 1_000_000 + number))


def test_a_driver_killed_at_each_point_of_a_batch_writes_every_batch_once(tmp_path: Path) -> None:
    folder, place, sign = tmp_path / "in", tmp_path / "repository", tmp_path / "sign"
    folder.mkdir()
    repository = Repository.create(local_filesystem_storage(place))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(8,), chunks=(1,), dtype="int64", compressors=None)
    session.commit("first")
    for number in range(4):
        put_input(folder, number)

    def driver(point: str, batch: int) -> subprocess.Popen[str]:
        arguments = [folder, place, tmp_path / "checkpoint", sign, point, batch]
        return start(DRIVER, *arguments, env=environment())

    def batches() -> list[int]:
        history = repository.ancestry(branch="main")
        return [info.metadata[BATCH_KEY] for info in history if BATCH_KEY in info.metadata][::-1]

    points = {"before the chunks": [0], "before the commit": [0, 1], "after the commit": [0, 1, 2]}
    for number, (point, expected) in enumerate(points.items()):
        # The Python driver and its Java process are killed; their workers end with them.
        kill_at(sign, driver(point, number))
        committed = expected if point == "after the commit" else expected[:-1]
        assert batches() == committed, point

    assert last_line(driver("never", 0)) == "done"
    assert batches() == [0, 1, 2, 3]
    queries = {info.metadata.get(QUERY_KEY) for info in repository.ancestry(branch="main")}
    assert len(queries - {None}) == 1
    storage = icechunk.local_filesystem_storage(str(place))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    found = np.asarray(zarr.open_array(store, path="a", mode="r")[:])
    assert found.tolist() == [35, 20, 21, 22, 23, 0, 0, 0]
