"""A backfill under a real scheduler: many days at once, workers killed, one day written again."""

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr
from jobs.backfill_jobs import expected
from support.standalone import Airflow, processes, running, settings, until

from airflow_provider_icechunk.api import Repository, SnapshotInfo, local_filesystem_storage

pytestmark = [
    pytest.mark.long,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.timeout(9000),
    pytest.mark.filterwarnings("default"),
]
HERE = Path(__file__).parent
DAG = "backfilled"
DAYS, AT_ONCE = 64, 8
KILLED = {"during": 20, "before": 33, "after": 47}
"""Which day's worker is killed: while Spark writes, before the commit, after the commit."""
CLEARED = 5
SECONDS = 7200.0
COMMANDS = (
    ["db", "migrate"],
    ["dags", "reserialize"],
    ["backfill", "create", "--dag-id", DAG, "--from-date", "2026-01-01", "--to-date", "2026-03-05",
     "--max-active-runs", str(AT_ONCE)],
)  # fmt: skip
"""What makes the backfill, before there is a scheduler: with its tables on SQLite Airflow can do
only one of both at a time."""
PARTS = (["airflow", "api-server"], ["airflow", "scheduler"])
"""All that a backfill needs: its DAG was read before, and no task waits for an event."""
PATIENT = {
    # Eight drivers on few cores: who is silent for minutes is not dead yet.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "600",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "7200",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "300",
    "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "20",
}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("backfill")
    dags, data, signs = home / "dags", home / "data", home / "signs"
    for folder in (dags, data, signs):
        folder.mkdir()
    shutil.copy(HERE / "dags/backfill.py", dags)
    (signs / "value").write_text("1")
    for moment, day in KILLED.items():
        (signs / f"kill-{moment}-{day}").touch()
    connections = {
        "icechunk_default": {
            "conn_type": "icechunk", "host": str(data), "extra": {"storage": "file"},
        },
        "spark_default": {"conn_type": "spark", "host": "local[1]"},
    }  # fmt: skip
    given = settings(home, dags, **connections) | {
        **PATIENT,
        "AIRFLOW__CORE__PARALLELISM": str(AT_ONCE),
        # Eight workers and a scheduler at one file: who finds it locked waits.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=300",
        "TEST_JOBS": str(HERE / "jobs"),
        "TEST_SIGNS": str(signs),
    }
    for command in COMMANDS:
        done = subprocess.run(
            ["airflow", *command], env=given, cwd=home, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stdout + done.stderr
    with closing(sqlite3.connect(home / "airflow.db")) as tables:
        # Kept in the file: from now on those who read and the one who writes do not wait.
        assert tables.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    with running(given, *PARTS, parts=("metadatabase", "scheduler")) as made:
        yield made
    assert not processes(made.home)


def history(airflow: Airflow) -> list[SnapshotInfo]:
    """The commits on `main`, oldest first, without the empty beginning."""
    repository = Repository.open(local_filesystem_storage(airflow.home / "data" / DAG))
    return [info for info in repository.ancestry(branch="main") if info.parent_id is not None][::-1]


def official(airflow: Airflow) -> xr.Dataset:
    """What the official library reads."""
    storage = icechunk.local_filesystem_storage(str(airflow.home / "data" / DAG))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, chunks=None).load()


def kill(airflow: Airflow, moment: str) -> None:
    """Kill the worker of a task that stands still, and the task, without warning."""
    sign = airflow.home / "signs" / f"standing-{moment}"
    stands = f"a task that stands {moment}"
    text = until(lambda: sign.exists() and sign.read_text(), stands, SECONDS)
    task = int(text.split()[0])
    while not (title := command(task)).startswith("airflow worker -- ") or "Executor" in title:
        task = parent_of(task)
    for pid in (parent_of(task), task):
        os.kill(pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def states(airflow: Airflow) -> Counter[str]:
    return Counter(airflow.runs(DAG).values())


def wait_for_all(airflow: Airflow) -> int:
    """Wait for the end of the backfill; returns how many runs were seen at once at most."""
    most = 0

    def done() -> bool:
        nonlocal most
        found = states(airflow)
        most = max(most, found["running"])
        assert not found["failed"], next(
            airflow.explain(DAG, run)
            for run, state in airflow.runs(DAG).items()
            if state == "failed"
        )
        return found["success"] == DAYS

    until(done, "the end of the backfill", SECONDS)
    return most


def wanted(values: Any) -> tuple[Any, Any]:
    """What is there in the end, by NumPy alone."""
    days = np.concatenate([expected(np.array([day]), values[day]) for day in range(DAYS)])
    return days.astype("float32"), days.mean(axis=(1, 2))


def test_64_days_8_at_once_with_dead_workers_and_a_cleared_day_are_each_there_once(
    airflow: Airflow,
) -> None:
    began = time.monotonic()
    airflow.pause(DAG, paused=False)
    for moment in KILLED:
        kill(airflow, moment)
    most = wait_for_all(airflow)
    took = time.monotonic() - began
    first = history(airflow)
    days = [f"{np.datetime64('2026-01-01') + day}" for day in range(DAYS)]
    assert sorted(info.message for info in first) == days
    assert most > 1, "one after the other proves nothing"
    tries = Counter(airflow.task(DAG, run, "write")["try_number"] for run in airflow.runs(DAG))
    assert tries[1] < DAYS, "nobody was killed"

    (airflow.home / "signs" / "value").write_text("2")
    run = next(run for run in airflow.runs(DAG) if days[CLEARED] in run)
    airflow.clear(DAG, run, "write")
    until(lambda: len(history(airflow)) == DAYS + 1, "the commit of the cleared day")
    assert airflow.finish(DAG, run) == "success", airflow.explain(DAG, run)
    again = history(airflow)[-1]
    assert (again.message, again.metadata["airflow"]["supersedes"]) == (
        days[CLEARED],
        next(info.id for info in first if info.message == days[CLEARED]),
    )

    data = official(airflow)
    t2m, mean = wanted([2 if day == CLEARED else 1 for day in range(DAYS)])
    np.testing.assert_array_equal(data.t2m.values, t2m)
    np.testing.assert_array_equal(data["mean"].values, mean)
    assert [str(day)[:10] for day in data.time.values] == days
    print(
        f"{DAYS} days in {took:.0f} s, at most {most} runs seen at once, "
        f"attempts {dict(sorted(tries.items()))}"
    )
