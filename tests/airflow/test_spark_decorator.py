"""`@task.icechunk_spark`: a function gets Spark and a job, and what the job wrote is committed."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.airflow_contexts import make_context, retried
from support.drivers import ROOT, environment, last_line, start, until

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.decorators.icechunk_spark import icechunk_spark_task, with_job
from tools.seaweedfs import free_ports

DATA = IcechunkDataset(
    "daily",
    dims={"time": Growing(start="2026-01-01", every="1D"), "x": 3},
    variables={"t2m": Variable("int64", ("time", "x"))},
)


def test_a_function_that_could_write_nothing_is_refused() -> None:
    def only_spark(spark: Any) -> None: ...

    with pytest.raises(TypeError, match="only_spark has no parameter `job`"):
        with_job(only_spark)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(900)
def test_what_the_job_of_a_function_wrote_is_one_commit_and_a_retry_returns_the_same(
    folder: Path,
) -> None:
    def write(spark: Any, job: Any, value: int) -> int:
        def fill(region: Any) -> Any:
            import numpy as np

            return np.full(region.shape, value)

        assert spark.range(3).count() == 3
        job.write_regions("t2m", fill)
        return value

    def run(context: Any) -> dict[str, Any]:
        made = icechunk_spark_task(dataset=DATA, at={"time": "2026-01-06"}, master="local[1]")
        return made(write)(7).operator.execute(context)

    first = run(make_context())
    assert first["result"] == 7
    repository = Repository.open(local_filesystem_storage(folder / "daily"))
    store = repository.readonly_session("main").store
    cells = np.asarray(zarr.open_array(store, path="t2m", mode="r")[:])
    assert cells[5].tolist() == [7] * 3
    assert not cells[:5].any()
    again = run(retried(make_context()))
    assert again == first
    assert len(list(repository.ancestry(branch="main"))) == 2


OVER_CONNECT = """
import json, sys
from support.airflow_contexts import make_context, retried
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.decorators.icechunk_spark import icechunk_spark_task
from airflow_provider_icechunk.spark.progress import is_connect

(remote,) = sys.argv[1:]
data = IcechunkDataset(
    "daily",
    dims={"time": Growing(start="2026-01-01", every="1D"), "x": 3},
    variables={"t2m": Variable("int64", ("time", "x"))},
)

def write(spark, job, value):
    def fill(region):
        import airflow_provider_icechunk
        import numpy as np
        came_along = ".zip" in airflow_provider_icechunk.__file__
        return np.full(region.shape, value if came_along else -1)
    assert is_connect(spark)
    assert spark.range(3).count() == 3
    job.write_regions("t2m", fill)
    return {"value": value, "at": job.at}

def run(context):
    task = icechunk_spark_task(dataset=data, at={"time": "2026-01-06"}, remote=remote)
    return task(write)(7).operator.execute(context)

print(json.dumps([run(make_context()), run(retried(make_context()))]))
"""


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server in a process of its own; its address."""
    (port,) = free_ports(1)
    settings = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false"}
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [
        str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", *options,
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, env=environment(), stdout=log, stderr=log, start_new_session=True, text=True
        )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers, "the server", server)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_function_writes_over_a_spark_connect_server_and_its_executors_get_the_package(
    connect_server: str, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    connection = {"conn_type": "icechunk", "host": str(root), "extra": {"storage": "file"}}
    env = environment(
        AIRFLOW_HOME=str(tmp_path / "airflow"),
        AIRFLOW_CONN_ICECHUNK_DEFAULT=json.dumps(connection),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    )
    root.mkdir()
    first, again = json.loads(last_line(start(OVER_CONNECT, connect_server, env=env)))
    assert first["result"] == {"value": 7, "at": {"time": ["2026-01-06"]}}
    assert again == first
    repository = Repository.open(local_filesystem_storage(root / "daily"))
    store = repository.readonly_session("main").store
    cells = np.asarray(zarr.open_array(store, path="t2m", mode="r")[:])
    assert cells[5].tolist() == [7] * 3
    assert not cells[:5].any()
