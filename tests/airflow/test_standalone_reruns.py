"""Retries, clears and backfills under a real scheduler: who does the work again, and who must not.

Airflow's own numbers tell a retry from a run again; only a real scheduler shows that they do.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.standalone import Airflow, processes, running, settings, until

from airflow_provider_icechunk.api import Repository, SnapshotInfo, local_filesystem_storage

pytestmark = [
    pytest.mark.long,
    pytest.mark.airflow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),
]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("reruns")
    dags, data, signs = home / "dags", home / "data", home / "signs"
    for folder in (dags, data, signs):
        folder.mkdir()
    shutil.copy(HERE / "dags/reruns.py", dags)
    connection = {"conn_type": "icechunk", "host": str(data), "extra": {"storage": "file"}}
    given = settings(home, dags, icechunk_default=connection) | {"TEST_SIGNS": str(signs)}
    with running(given) as made:
        yield made
    assert not processes(made.home)


def upstream(airflow: Airflow, value: int) -> None:
    """Change the file that the tasks read."""
    (airflow.home / "signs" / "value").write_text(str(value))


def history(airflow: Airflow, name: str) -> list[SnapshotInfo]:
    made = Repository.open(local_filesystem_storage(airflow.home / "data" / name))
    return [info for info in made.ancestry(branch="main") if info.parent_id is not None]


def array(airflow: Airflow, name: str, path: str) -> list[int]:
    made = Repository.open(local_filesystem_storage(airflow.home / "data" / name))
    store = made.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=path, mode="r")[:]).tolist()


def tasks(airflow: Airflow, run: str, dag: str = "reruns") -> dict[tuple[str, int], dict[str, Any]]:
    found = airflow.ask("GET", f"dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
    return {(one["task_id"], one["map_index"]): one for one in found}


def snapshot_of(airflow: Airflow, run: str, task: str, map_index: int = -1) -> dict[str, Any]:
    path = f"dags/reruns/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value"
    query = f"?deserialize=false&stringify=false&map_index={map_index}"
    return dict(airflow.ask("GET", f"{path}{query}")["value"])


def again(airflow: Airflow, run: str, *chosen: Any) -> None:
    """Clear tasks, mapped ones by index too, and wait until the run has succeeded again."""
    body = {
        "dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True,
        "task_ids": [[*one] if isinstance(one, tuple) else one for one in chosen] or None,
    }  # fmt: skip
    airflow.ask("POST", "dags/reruns/clearTaskInstances", body)
    assert airflow.finish("reruns", run) == "success", airflow.explain("reruns", run)


def log_of(airflow: Airflow, run: str, task: str, attempt: int, dag: str = "reruns") -> str:
    folder = airflow.home / "logs" / f"dag_id={dag}" / f"run_id={run}"
    (file,) = folder.rglob(f"task_id={task}/**/attempt={attempt}.log")
    return file.read_text()


def events(airflow: Airflow, task: str = "alone") -> list[dict[str, Any]]:
    found = airflow.ask("GET", "assets/events?limit=100&order_by=timestamp")["asset_events"]
    return [one["extra"] for one in found if one["source_task_id"] == task]


@pytest.fixture(scope="module")
def first(airflow: Airflow) -> str:
    """A run in which one task died after its commit and was retried."""
    upstream(airflow, 1)
    return airflow.succeed("reruns")


def test_a_retry_after_a_crash_commits_once_and_returns_what_the_first_attempt_did(
    airflow: Airflow, first: str
) -> None:
    told = tasks(airflow, first)["alone", -1]
    assert (told["try_number"], told["max_tries"]) == (2, 1)
    alone = snapshot_of(airflow, first, "alone")
    assert alone["result"] == {"wrote": 1}
    assert [info.metadata["airflow"]["try_number"] for info in history(airflow, "reruns")][-2] == 1
    assert len(history(airflow, "reruns")) == 6
    text = log_of(airflow, first, "alone", 2)
    assert f"snapshot {alone['snapshot_id']} (attempt 1," in text
    assert [event["snapshot_id"] for event in events(airflow)] == [alone["snapshot_id"]]


def test_a_task_that_writes_nothing_makes_no_event(airflow: Airflow, first: str) -> None:
    assert tasks(airflow, first)["idle", -1]["state"] == "success"
    assert events(airflow, "idle") == []


def test_a_cleared_task_that_shall_skip_returns_its_snapshot_and_makes_no_event(
    airflow: Airflow, first: str
) -> None:
    before = snapshot_of(airflow, first, "once")
    upstream(airflow, 2)
    again(airflow, first, "once")
    assert tasks(airflow, first)["once", -1]["try_number"] == 2
    after = snapshot_of(airflow, first, "once")
    assert after == {**before, "committed": False}
    assert [event["snapshot_id"] for event in events(airflow, "once")] == [before["snapshot_id"]]


def test_a_cleared_task_does_its_work_and_says_what_it_supersedes(
    airflow: Airflow, first: str
) -> None:
    before = snapshot_of(airflow, first, "alone")
    upstream(airflow, 2)
    again(airflow, first, "alone")
    told = tasks(airflow, first)["alone", -1]
    assert (told["try_number"], told["max_tries"]) == (3, 3)
    after = snapshot_of(airflow, first, "alone")
    assert after["supersedes"] == before["snapshot_id"]
    assert after["result"] == {"wrote": 2}
    newest = history(airflow, "reruns")[0]
    assert newest.id == after["snapshot_id"]
    assert newest.metadata["airflow"]["supersedes"] == before["snapshot_id"]
    assert array(airflow, "reruns", "alone") == [2, 0, 0, 0]
    assert before["snapshot_id"] in log_of(airflow, first, "alone", 3)
    assert [event["snapshot_id"] for event in events(airflow)][-1] == after["snapshot_id"]
    assert events(airflow)[-1]["supersedes"] == before["snapshot_id"]


def test_a_cleared_map_index_does_its_own_work_alone(airflow: Airflow, first: str) -> None:
    before = [snapshot_of(airflow, first, "mapped", index) for index in range(3)]
    upstream(airflow, 3)
    again(airflow, first, ("mapped", 1))
    after = [snapshot_of(airflow, first, "mapped", index) for index in range(3)]
    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1]["supersedes"] == before[1]["snapshot_id"]
    assert array(airflow, "reruns", "mapped")[1] == 3
    assert array(airflow, "reruns", "mapped")[::2] == [1, 1]


def test_a_chain_whose_commit_alone_is_cleared_commits_again(airflow: Airflow, first: str) -> None:
    before = snapshot_of(airflow, first, "commit")
    again(airflow, first, "commit")
    after = snapshot_of(airflow, first, "commit")
    assert after["supersedes"] == before["snapshot_id"]
    assert array(airflow, "reruns", "chained") == [1, 1, 1, 1]


def test_a_chain_whose_writer_and_commit_are_cleared_has_what_both_writers_wrote(
    airflow: Airflow, first: str
) -> None:
    upstream(airflow, 4)
    again(airflow, first, ("write", 1), "commit")
    assert array(airflow, "reruns", "chained") == [1, 1, 4, 4]


def test_a_cleared_run_does_all_of_its_work(airflow: Airflow, first: str) -> None:
    before = history(airflow, "reruns")
    upstream(airflow, 5)
    again(airflow, first)
    after = history(airflow, "reruns")
    assert len(after) == len(before) + 5
    assert {info.metadata["airflow"]["supersedes"] for info in after[:5]} <= {x.id for x in before}
    assert array(airflow, "reruns", "alone")[0] == 5
    assert array(airflow, "reruns", "mapped")[:3] == [5, 5, 5]
    assert array(airflow, "reruns", "chained") == [5] * 4


def test_a_backfill_does_the_work_of_completed_runs_again(airflow: Airflow) -> None:
    upstream(airflow, 6)
    airflow.pause("daily", paused=False)
    until(lambda: list(airflow.runs("daily").values()) == ["success"] * 2, "two days")
    before = history(airflow, "daily")
    upstream(airflow, 7)
    body = {
        "dag_id": "daily", "from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-02T00:00:00Z",
        "run_backwards": False, "dag_run_conf": {}, "reprocess_behavior": "completed",
        "max_active_runs": 1,
    }  # fmt: skip
    airflow.ask("POST", "backfills", body)
    until(lambda: len(history(airflow, "daily")) == 4, "the work of two days again")
    until(lambda: set(airflow.runs("daily").values()) == {"success"}, "the end of the backfill")
    after = history(airflow, "daily")
    assert array(airflow, "daily", "field") == [7, 7, 0, 0]
    superseded = {info.metadata["airflow"]["supersedes"] for info in after[:2]}
    assert superseded == {info.id for info in before}


def test_a_task_cleared_while_it_runs_says_what_it_found(airflow: Airflow) -> None:
    upstream(airflow, 8)
    run = airflow.start("lingering")
    until((airflow.home / "signs" / "lingering").exists, "a commit")
    upstream(airflow, 9)
    airflow.clear("lingering", run, "stand")
    assert airflow.finish("lingering", run) == "success", airflow.explain("lingering", run)
    made = history(airflow, "lingering")
    assert f"snapshot {made[-1].id} (attempt 1," in log_of(airflow, run, "stand", 2, "lingering")
    # Whether Airflow raises the number depends on how the first attempt is reported to have ended.
    raised = airflow.task("lingering", run, "stand")["max_tries"] > 0
    assert len(made) == (2 if raised else 1)
    assert array(airflow, "lingering", "field")[0] == (9 if raised else 8)
