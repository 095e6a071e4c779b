"""Jobs whose drivers are killed at their commit, or run twice at once: one snapshot, no rest."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from support.drivers import environment, kill_at, last_line, start, until

from airflow_provider_icechunk.api import Repository, local_filesystem_storage

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

DRIVER = """
import json, os, sys, time
from pathlib import Path
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.engine.refs.v1 import V1Refs
from airflow_provider_icechunk.spark.write.regions import write_regions

place, signs, point = sys.argv[1:]
move = V1Refs.commit

def stopping(refs, *arguments):
    if point == "before":
        (Path(signs) / "before").touch()
        time.sleep(600)
    if point == "together":
        (Path(signs) / f"ready-{os.getpid()}").touch()
        until = time.monotonic() + 300
        while not (Path(signs) / "go").exists() and time.monotonic() < until:
            time.sleep(0.01)
    outcome = move(refs, *arguments)
    if point == "after":
        (Path(signs) / "after").touch()
        time.sleep(600)
    return outcome

def create(session):
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(8, 1000), chunks=(1, 1000), dtype="int64", compressors=None)

def values(region):
    rows, columns = region
    if point == "orphan":
        (Path(signs) / "began").touch()
        until = time.monotonic() + 300
        while not (Path(signs) / "go").exists() and time.monotonic() < until:
            time.sleep(0.1)
    return 1000 * np.arange(rows.start, rows.stop)[:, None] + np.arange(1000)[None, columns]

V1Refs.commit = stopping
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
result = write_regions(spark, place, "a", values, job="one", prepare=create, tasks=4)
print(json.dumps([result.snapshot_id, result.replayed, result.resumed]))
spark.stop()
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def check_content(place: Path) -> None:
    storage = icechunk.local_filesystem_storage(str(place))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    found = np.asarray(zarr.open_array(store, path="a", mode="r")[:])
    assert np.array_equal(found, np.arange(8000).reshape(8, 1000))


def check_nothing_left(repository: Repository, place: Path) -> None:
    """After a collection there is not one file that no snapshot of the branch needs."""
    repository.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    tree = repository.readonly_session("main").tree
    refs = tree.references(tree.array("/a"))
    used = {bytes(identity) for identity in refs.native_ids()}
    assert len(list(place.glob("chunks/*"))) == len(used)
    assert len(list(place.glob("snapshots/*"))) == len(list(repository.ancestry(branch="main")))
    assert [file for file in place.glob("jobs/**/*") if file.is_file()] == []
    assert repository.verify().ok


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def repository(place: Path) -> Repository:
    return Repository.create(local_filesystem_storage(place))


def test_a_driver_killed_right_before_and_right_after_its_commit_makes_one_snapshot(
    repository: Repository, place: Path, tmp_path: Path
) -> None:
    def driver(point: str) -> Any:
        return start(DRIVER, place, tmp_path, point, env=environment())

    kill_at(tmp_path / "before", driver("before"))
    assert len(list(repository.ancestry(branch="main"))) == 1
    kill_at(tmp_path / "after", driver("after"))
    (committed, _) = repository.ancestry(branch="main")
    assert json.loads(last_line(driver("never"))) == [committed.id, True, 0]
    assert repository.lookup_branch("main") == committed.id
    check_content(place)
    check_nothing_left(repository, place)
    check_content(place)


def test_two_drivers_of_one_job_that_commit_at_once_make_one_snapshot(
    repository: Repository, place: Path, tmp_path: Path
) -> None:
    both = [start(DRIVER, place, tmp_path, "together", env=environment()) for _ in range(2)]
    until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "two drivers before their commit")
    (tmp_path / "go").touch()
    answers = [json.loads(last_line(one)) for one in both]
    assert len(list(repository.ancestry(branch="main"))) == 2
    head = repository.lookup_branch("main")
    assert [snapshot for snapshot, *_ in answers] == [head, head]
    check_content(place)
    check_nothing_left(repository, place)
    check_content(place)


def test_a_driver_whose_airflow_task_was_killed_never_commits(
    repository: Repository, place: Path, tmp_path: Path
) -> None:
    env = environment(AIRFLOW_CTX_DAG_RUN_ID="run")
    task = start(PARENT, DRIVER, place, tmp_path, "orphan", env=env)
    until((tmp_path / "began").exists, "a task that waits", task)
    task.kill()
    (tmp_path / "go").touch()
    # The driver holds the other ends of the pipes: they read as finished when it is gone.
    output, errors = task.communicate()
    assert output == ""
    assert "an Airflow task, which has ended: nothing is committed" in errors
    assert len(list(repository.ancestry(branch="main"))) == 1
    again = json.loads(last_line(start(DRIVER, place, tmp_path, "never", env=env)))
    assert again == [repository.lookup_branch("main"), False, 4]
    check_content(place)
