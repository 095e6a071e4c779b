"""A real Airflow on SQLite in a folder of its own; its settings must be there before its import."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(tempfile.mkdtemp(prefix="airflow-home-"))
DAGS = HOME / "dags"
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    "SPARK_LOCAL_IP": "127.0.0.1",
}

Connect = Callable[..., str]


@pytest.fixture(autouse=True)
def closed_pipes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the output of `spark-submit`, which the Spark provider leaves to the garbage collector.

    In a worker the process ends anyway. Here it would warn in the middle of something else.
    """
    if request.node.get_closest_marker("airflow") is None:
        return
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    submit = SparkSubmitHook.submit

    def submit_and_close(hook: SparkSubmitHook, *args: Any, **options: Any) -> str | None:
        try:
            return submit(hook, *args, **options)
        finally:
            if hook._submit_sp is not None:
                hook._submit_sp.stdout.close()

    monkeypatch.setattr(SparkSubmitHook, "submit", submit_and_close)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """Airflow's tables, made once, and the Dags of this project and of these tests."""
    DAGS.mkdir(exist_ok=True)
    for file in [*(ROOT / "dags").glob("*.py"), *Path(__file__).parent.glob("dags/*.py")]:
        shutil.copy(file, DAGS)
    shutil.copytree(ROOT / "dags" / "jobs", DAGS / "jobs", dirs_exist_ok=True)
    answer = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return HOME


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Define an Airflow connection for one test."""

    def define(conn_id: str = "icechunk_default", **fields: object) -> str:
        value = json.dumps({"conn_type": "icechunk", **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)
        return conn_id

    return define


@pytest.fixture
def folder(connect: Connect, tmp_path: Path) -> Path:
    """A directory that `icechunk_default` points to."""
    root = tmp_path / "root"
    root.mkdir()
    connect(host=str(root), extra={"storage": "file"})
    return root
