"""Whole Dag runs on a real Airflow: the quickstart with Spark, and that secrets stay inside."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import zarr
from moto.server import ThreadedMotoServer

from airflow_provider_icechunk import api
from airflow_provider_icechunk.spark.generators import temperature

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("airflow_home"),
]
KEY, SECRET, TOKEN = "marker-key-51", "marker-secret-52", "marker-token-53"


def run(home: Path, name: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(home / "dags" / f"{name}.py")
    assert not bag.import_errors
    dag = bag.dags[name]
    return dag.test()


@pytest.fixture
def moto_url() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def stored_texts(run_id: str) -> dict[str, str]:
    """All that Airflow keeps of a run: results, rendered fields, the Dag itself."""
    from airflow.models.asset import AssetEvent
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        results = session.scalars(select(XComModel.value).where(XComModel.run_id == run_id)).all()
        rendered = session.scalars(
            select(RenderedTaskInstanceFields.rendered_fields).where(
                RenderedTaskInstanceFields.run_id == run_id
            )
        ).all()
        dags = session.scalars(select(SerializedDagModel._data)).all()
        events = session.scalars(
            select(AssetEvent.extra).where(AssetEvent.source_run_id == run_id)
        ).all()
    return {
        "events": repr(events),
        "results": repr(results),
        "rendered": repr(rendered),
        "dags": repr(dags),
    }


@pytest.mark.parametrize("name", ["transaction", "everything"])
def test_no_secret_of_the_connection_leaves_the_hook(
    name: str,
    airflow_home: Path,
    connect: Callable[..., str],
    moto_url: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=moto_url, **keys)
    client.create_bucket(Bucket="bucket")
    extra = {
        "endpoint_url": moto_url, "allow_http": True, "force_path_style": True,
        "region": "us-east-1", "session_token": TOKEN, "prefix": "below",
    }  # fmt: skip
    connect(host="bucket", login=KEY, password=SECRET, extra=extra)
    caplog.set_level(logging.DEBUG, "airflow")
    caplog.set_level(logging.DEBUG, "airflow_provider_icechunk")
    finished = run(airflow_home, name)
    assert finished.state == "success"
    storage = api.s3_storage(
        bucket="bucket", prefix=f"below/{name}", endpoint_url=moto_url, allow_http=True,
        force_path_style=True, region="us-east-1", access_key_id=KEY, secret_access_key=SECRET,
    )  # fmt: skip
    repository = api.Repository.open(storage)
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert finished.run_id in messages
    client.close()
    texts = stored_texts(finished.run_id)
    assert "work_unit" in texts["results"]
    output = capfd.readouterr()
    texts |= {"log": caplog.text, "out": output.out, "err": output.err}
    for place, text in texts.items():
        for secret in (SECRET, TOKEN):
            assert secret not in text, place
    assert KEY not in texts["results"] + texts["rendered"] + texts["events"]
    if name == "everything":
        told = [info.id for info in repository.ancestry(branch="main")][1:3]
        assert all(f"'snapshot_id': '{identity}'" in texts["events"] for identity in told)


@pytest.mark.spark
def test_the_quickstart_runs_and_the_official_library_reads_its_result(
    airflow_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import icechunk

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    assert run(airflow_home, "icechunk_quickstart").state == "success"
    storage = icechunk.local_filesystem_storage(str(folder / "weather"))
    repository = icechunk.Repository.open(storage)
    assert len(list(repository.ancestry(branch="main"))) == 2
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    values = np.asarray(root["temperature"][:])
    expected = temperature(tuple((0, length) for length in values.shape), values.shape)
    assert np.array_equal(values, expected)
    assert np.asarray(root["latitude"][:]).tolist() == list(range(-89, 90, 2))
