"""On a real standalone cluster, with a killed driver and a killed executor: one snapshot."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import icechunk
import numpy as np
import pyspark
import pytest
import zarr

from airflow_provider_icechunk.api import Repository, local_filesystem_storage

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import json, sys, time
from pathlib import Path
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.spark.regions import write_regions
from airflow_provider_icechunk.spark.shipping import zipped_package

master, place, signs = sys.argv[1:]

def create(session):
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(8, 1000), chunks=(1, 1000), dtype="int64", compressors=None)

def values(region):
    rows, columns = region
    here = Path(signs)
    (here / f"began-{rows.start}").touch()
    until = time.monotonic() + 300
    while rows.start >= 4 and not (here / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return 1000 * np.arange(rows.start, rows.stop)[:, None] + np.arange(1000)[None, columns]

spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .getOrCreate()
)
spark.sparkContext.addPyFile(str(zipped_package()))
result = write_regions(spark, place, "a", values, job="one", prepare=create, tasks=8)
print(json.dumps([result.snapshot_id, result.replayed, result.resumed, result.chunks]))
spark.stop()
"""


def until(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.1)


def children(parent: int, name: str) -> list[int]:
    """Processes started by `parent` whose command line has `name`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if ours and name in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@contextmanager
def running(arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[int]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return keep | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
    }


@pytest.fixture
def cluster(tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[str, list[int]]]:
    """A master and two workers with one core each: its address, and the workers' processes."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    home = Path(pyspark.__file__).parent
    start = [str(home / "bin" / "spark-class")]
    package = "org.apache.spark.deploy"
    address = f"spark://127.0.0.1:{port}"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        master = [*start, f"{package}.master.Master", *common, "--port", str(port)]
        log = tmp_path / "master.log"
        stack.enter_context(running(master, environment, log))
        until(lambda: "New state: ALIVE" in log.read_text(), "the master")
        workers = []
        for number in range(2):
            worker = [*start, f"{package}.worker.Worker", *common, "--cores", "1", "--memory"]
            worker += ["1g", "--work-dir", str(tmp_path / f"work-{number}"), address]
            workers.append(
                stack.enter_context(running(worker, environment, tmp_path / f"{number}.log"))
            )
        until(lambda: log.read_text().count("Registering worker") == 2, "two workers")
        yield address, workers


def test_killed_drivers_and_executors_leave_one_snapshot_with_the_right_data(
    cluster: tuple[str, list[int]], environment: dict[str, str], tmp_path: Path
) -> None:
    address, workers = cluster
    place, signs = tmp_path / "repository", tmp_path / "signs"
    signs.mkdir()
    repository = Repository.create(local_filesystem_storage(place))
    command = [sys.executable, "-c", DRIVER, address, str(place), str(signs)]

    def driver() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def answer(process: subprocess.Popen[str]) -> list[object]:
        output, _ = process.communicate(timeout=400)
        assert process.returncode == 0
        parsed: list[object] = json.loads(output.splitlines()[-1])
        return parsed

    first = driver()
    until(lambda: len(list(signs.glob("began-[4-7]"))) == 2, "tasks that wait")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert len(list(repository.ancestry(branch="main"))) == 1
    for sign in signs.iterdir():
        sign.unlink()

    second = driver()
    until(lambda: len(list(signs.glob("began-[4-7]"))) == 2, "tasks that wait again")
    executors = [pid for worker in workers for pid in children(worker, "CoarseGrainedExecutor")]
    os.kill(executors[0], signal.SIGKILL)
    (signs / "go").touch()
    snapshot, replayed, resumed, chunks = answer(second)
    assert (replayed, resumed, chunks) == (False, 4, 8)
    assert answer(driver())[:2] == [snapshot, True]

    assert len(list(repository.ancestry(branch="main"))) == 2
    storage = icechunk.local_filesystem_storage(str(place))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    found = np.asarray(zarr.open_array(store, path="a", mode="r")[:])
    assert np.array_equal(found, np.arange(8000).reshape(8, 1000))
