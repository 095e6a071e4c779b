"""What runs on an executor, without Spark: on S3, with credentials of the environment alone."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import zarr
from pyspark.serializers import CloudPickleSerializer
from support import moto_server

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.pipelines.description import SessionDescription
from airflow_provider_icechunk.engine.workers.codec import decode_fragment
from airflow_provider_icechunk.spark.write.generated import GeneratedRegion, GeneratedWriter
from airflow_provider_icechunk.spark.write.job import run_tasks

KEY, SECRET = "marker-key-61", "marker-secret-62"


@pytest.fixture
def moto_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with moto_server.running("bucket") as url:
        yield url


def description(url: str) -> tuple[Repository, SessionDescription]:
    place = {
        "kind": "s3", "bucket": "bucket", "prefix": "a/b", "region": "us-east-1",
        "endpoint_url": url, "allow_http": True, "force_path_style": True,
    }  # fmt: skip
    value = {
        "repository": "b", "conn_id": "c", "place": place, "work_unit": {}, "fragments": "jobs/x/",
    }  # fmt: skip
    repository = Repository.create(SessionDescription.model_validate(value).place.storage())
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("inside/field", shape=(4, 4), chunks=(2, 2), dtype="int64")
    work = session.work_unit("job").to_json()
    return repository, SessionDescription.model_validate(value | {"work_unit": work})


def test_tasks_write_to_s3_with_the_credentials_of_their_environment(moto_url: str) -> None:
    repository, session = description(moto_url)
    regions = [((0, 2), (0, 4)), ((2, 4), (0, 4))]
    writer = GeneratedWriter(
        tuple(GeneratedRegion("/inside/field", "index", region) for region in regions)
    )
    fork = repository.fork(session.work_unit)
    travelling = CloudPickleSerializer().dumps(
        partial(run_tasks, fork, writer, writer.names, (0, 1), True)
    )
    assert KEY.encode() not in travelling
    assert SECRET.encode() not in travelling
    work = CloudPickleSerializer().loads(travelling)
    batches = [pa.RecordBatch.from_arrays([pa.array([number])], names=["id"]) for number in (1, 0)]
    rows = [row for batch in work(iter(batches)) for row in batch.to_pylist()]
    assert [row["task"] for row in rows] == [1, 0]
    fragments = [decode_fragment(row["fragment"], where="a row") for row in rows]
    writing = repository.resume(session.work_unit)
    assert writing.merge_fragments(fragments) == 4
    writing.commit("both halves")
    store = repository.readonly_session("main").store
    values = np.asarray(zarr.open_array(store, path="inside/field", mode="r")[:])
    assert values.tolist() == np.arange(16).reshape(4, 4).tolist()
