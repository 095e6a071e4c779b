"""A job without Spark: writes the array `y` of a session and leaves its fragment."""

import json
import sys

import zarr

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder

session = parse_session(json.loads(sys.argv[-1])["session"])
repository = Repository.open(session.place.storage())
fork = repository.fork(session.work_unit)
zarr.open_array(fork.store, path="y", mode="r+")[:] = 7
JobFolder(repository.storage, fork.work.job).put_fragment("only", fork.fragment("only"))
