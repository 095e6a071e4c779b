"""A driver must not outlive the `spark-submit` that Airflow kills."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import sys, time
sys.path.insert(0, {root!r})
from airflow_provider_icechunk.spark.environment import die_with_parent
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
