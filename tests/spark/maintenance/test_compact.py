"""Compaction on Spark does what one process would do."""

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.maintenance.compact import CompactionRules
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.spark.maintenance.compact import compact

RULES = CompactionRules(small=1000, target=4000, enough=2000)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_executors_pack_small_chunks_and_a_write_meanwhile_stays(
    spark: SparkSession, repository: Repository
) -> None:
    plain = Repository.open(repository.storage, packing=Packing(below=0))
    session = plain.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    values = np.random.default_rng(1).normal(size=(16, 100))
    array = root.create_array("a", shape=(16, 100), chunks=(1, 100), dtype="f8", compressors=None)
    array[:] = values
    session.commit("values")
    files = len(list(plain.storage.scan("chunks/")))
    # Five chunks make a file; the last one is alone and stays.
    assert compact(spark, plain, rules=RULES, dry_run=True).chunks == 15
    result = compact(spark, plain, rules=RULES, message="packed", metadata={"by": "test"})
    assert (result.chunks, result.bytes, result.files, result.skipped) == (15, 12000, 3, 0)
    assert len(list(plain.storage.scan("chunks/"))) == files + 3
    newest = next(iter(plain.ancestry(branch="main")))
    moved = {"chunks": 15, "bytes": 12000, "files": 3, "skipped": 0}
    assert (newest.message, newest.metadata) == ("packed", {"by": "test", "compaction": moved})
    found = zarr.open_array(plain.readonly_session("main").store, path="a", mode="r")
    assert np.array_equal(np.asarray(found[:]), values)
    assert compact(spark, plain, rules=RULES).snapshot_id is None
