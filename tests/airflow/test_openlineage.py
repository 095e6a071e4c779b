"""What OpenLineage's provider tells of a task, with its console transport, in a real run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_icechunk.api import Repository, local_filesystem_storage

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.timeout(1800)]
PROVIDER = "apache-airflow-providers-openlineage==2.20.3"
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where OpenLineage's provider is installed: not here, because it listens to every task."""
    target = tmp_path_factory.mktemp("openlineage")
    uv = Path(sys.executable).with_name("uv")
    install = [uv, "pip", "install", "--quiet", "--target", target, "--constraint", CONSTRAINTS]
    subprocess.run([*install, "--no-deps", PROVIDER], check=True)
    needed = ["openlineage-python", "openlineage-integration-common", "openlineage-sql"]
    subprocess.run([*install, "--only-binary", ":all:", *needed], check=True)
    path = os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])
    return {
        **os.environ,
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "console"}),
        "PYTHONPATH": path,
    }


def told_of(day: str, environment: dict[str, str]) -> dict[str, Any]:
    """The event at the end of the task that appends a day."""
    done = subprocess.run(
        ["airflow", "dags", "test", "icechunk_append_daily", day],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    texts = re.findall(r'\{"eventTime".*', done.stdout + done.stderr)
    events = [json.JSONDecoder().raw_decode(text)[0] for text in texts]
    (event,) = (
        event
        for event in events
        if event["job"]["name"] == "icechunk_append_daily.append_day"
        and event["eventType"] == "COMPLETE"
    )
    return dict(event)


def test_a_run_tells_version_schema_bytes_cells_and_arrays(
    airflow_home: Path, folder: Path, environment: dict[str, str]
) -> None:
    connection = os.environ["AIRFLOW_CONN_ICECHUNK_DEFAULT"]
    environment = {**environment, "AIRFLOW_CONN_ICECHUNK_DEFAULT": connection}
    first = told_of("2026-01-02", environment)
    second = told_of("2026-01-03", environment)
    repository = Repository.open(local_filesystem_storage(folder / "daily"))
    newest, before, _ = (info.id for info in repository.ancestry(branch="main"))

    (made,) = first["outputs"]
    assert (made["namespace"], made["name"]) == ("file", str(folder / "daily"))
    assert made["facets"]["version"]["datasetVersion"] == before
    (field,) = made["facets"]["schema"]["fields"]
    assert (field["name"], field["type"]) == ("/temperature", "float32")
    assert "columnLineage" not in made["facets"]
    assert first["inputs"] == []

    (made,) = second["outputs"]
    assert made["facets"]["version"]["datasetVersion"] == newest
    statistics = made["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (18 * 36, 1)
    assert 0 < statistics["size"] <= 18 * 36 * 4 + 100
    (source,) = made["facets"]["columnLineage"]["fields"]["/temperature"]["inputFields"]
    assert (source["name"], source["field"]) == (str(folder / "daily"), "/temperature")
    (read,) = second["inputs"]
    assert read["facets"]["version"]["datasetVersion"] == before
