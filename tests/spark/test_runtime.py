"""A driver must not outlive the `spark-submit` that Airflow kills, nor guess its Python."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_icechunk.exceptions import SessionError
from airflow_provider_icechunk.spark.runtime import parent, python_of_tasks, refuse_orphan

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import sys, time
sys.path.insert(0, {root!r})
from airflow_provider_icechunk.spark.runtime import die_with_parent
die_with_parent()
print("ready", flush=True)
time.sleep(600)
"""
SUBMIT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process of its parent's end"
)
def test_the_driver_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SUBMIT, DRIVER.format(root=str(ROOT))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(signal.SIGKILL)
        # The driver holds the other end of the pipe: it reads as finished when the driver is gone.
        assert parent.stdout.read() == ""
    parent.wait()


@pytest.mark.parametrize(
    ("name", "words"),
    [("PYSPARK_GATEWAY_PORT", "spark-submit"), ("AIRFLOW_CTX_DAG_RUN_ID", "Airflow task")],
)
def test_a_driver_that_lost_its_parent_refuses_to_commit(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("PYSPARK_GATEWAY_PORT", "AIRFLOW_CTX_DAG_RUN_ID"):
        monkeypatch.delenv(key, raising=False)
    refuse_orphan(-1)
    monkeypatch.setenv(name, "1")
    refuse_orphan(parent())
    with pytest.raises(SessionError, match=words):
        refuse_orphan(-1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent")
@pytest.mark.parametrize(
    ("master", "named", "chosen"),
    [
        ("local[2]", None, sys.executable),
        ("local[2]", "/other/python", sys.executable),
        ("spark://host:7077", None, sys.executable),
        ("spark://host:7077", "", sys.executable),
        ("spark://host:7077", "./environment/bin/python", "./environment/bin/python"),
    ],
)
def test_tasks_never_run_whatever_python_is_first_on_the_path(
    master: str, named: str | None, chosen: str
) -> None:
    assert python_of_tasks(master, named) == chosen


def test_a_driver_that_starts_after_its_parent_ended_stops_at_once() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from airflow_provider_icechunk.spark import runtime
runtime._BORN = runtime._BORN[0], -1
runtime.die_with_parent()
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 1
    assert "has ended" in answer.stderr
