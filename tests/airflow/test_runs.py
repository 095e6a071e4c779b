"""A whole Dag run on a real Airflow: the quickstart with Spark."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.spark.generators import temperature

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("airflow_home"),
]


def run(home: Path, name: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(home / "dags" / f"{name}.py")
    assert not bag.import_errors
    dag = bag.dags[name]
    return dag.test()


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
