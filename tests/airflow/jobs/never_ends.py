"""A Spark job that writes its part, says which process it is, and then does not end."""

import json
import os
import sys
import time
from pathlib import Path

import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder

signs, text = sys.argv[1:]
session = parse_session(json.loads(text)["session"])
spark = SparkSession.builder.getOrCreate()
assert spark.range(2).count() == 2
repository = Repository.open(session.place.storage())
fork = repository.fork(session.work_unit)
zarr.open_array(fork.store, path="field", mode="r+")[:] = 7
JobFolder(repository.storage, fork.work.job).put_fragment("only", fork.fragment("only"))
Path(signs, "job").write_text(f"{os.getpid()} {os.getppid()}")
time.sleep(900)
