"""`airflow standalone`: real scheduler, triggerer and workers, and what can happen to them."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.standalone import (
    MARK,
    ROOT,
    Airflow,
    end_processes,
    processes,
    running,
    settings,
    until,
)

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.triggers.branch import WATERMARK

pytestmark = [
    pytest.mark.long,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),
]
HERE = Path(__file__).parent
EXAMPLES = {file.stem for file in (ROOT / "dags").glob("*.py")}
TESTED_BELOW = {
    f"icechunk_{name}"
    for name in (
        "quickstart", "append_daily", "write_audit_publish", "event_driven", "maintenance",
        "release", "roll_back", "migrate", "own_function", "wait_for_days", "xarray",
    )
}  # fmt: skip
ON_THE_QUICKSTART = {"icechunk_append_year", "icechunk_downstream"}
"""Examples that go on with what the quickstart made."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("standalone")
    dags, data, signs = home / "dags", home / "data", home / "signs"
    for folder in (dags, data, signs):
        folder.mkdir()
    for file in [*(ROOT / "dags").glob("*.py"), HERE / "dags/deaths.py", HERE / "dags/waiting.py"]:
        shutil.copy(file, dags)
    shutil.copytree(ROOT / "dags/jobs", dags / "jobs")
    # Nobody here has the time to catch up with a year.
    own = dags / "icechunk_own_function.py"
    own.write_text(own.read_text().replace("catchup=True", "catchup=False"))
    connections = {
        "icechunk_default": {
            "conn_type": "icechunk", "host": str(data), "extra": {"storage": "file"},
        },
        "spark_default": {"conn_type": "spark", "host": "local[1]"},
    }  # fmt: skip
    given = settings(home, dags, **connections)
    return given | {
        "ICECHUNK_ARCHIVE": str(home / "archive"),
        "TEST_JOBS": str(HERE / "jobs"),
        "TEST_SIGNS": str(signs),
    }


@pytest.fixture(scope="module")
def airflow(environment: dict[str, str]) -> Iterator[Airflow]:
    with running(environment) as made:
        stored = json.loads(environment["AIRFLOW_CONN_ICECHUNK_DEFAULT"])
        stored |= {"connection_id": "icechunk_stored", "extra": json.dumps(stored["extra"])}
        made.ask("POST", "connections", stored)
        yield made
    assert not processes(made.home)


@pytest.fixture(scope="module")
def quickstart(airflow: Airflow) -> str:
    """A run of the quickstart, which made the repository `quick`."""
    return airflow.succeed("icechunk_quickstart", {"repository": "quick"})


def repository(airflow: Airflow, name: str) -> Repository:
    return Repository.open(local_filesystem_storage(airflow.home / "data" / name))


def create(airflow: Airflow, name: str) -> Repository:
    storage = local_filesystem_storage(airflow.home / "data" / name)
    return Repository.open_or_create(storage)


def commit(made: Repository, message: str, path: str = "field") -> str:
    """A commit from outside of Airflow."""
    session = made.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.require_array(path, shape=(2,), chunks=(2,), dtype="int64")[:] = hash(message) % 1000
    return session.commit(message)


def snapshots(made: Repository) -> list[str]:
    """Ids of the commits on `main`, newest first, without the empty beginning."""
    return [info.id for info in made.ancestry(branch="main") if info.parent_id is not None]


def sign(airflow: Airflow, name: str) -> list[int]:
    """Wait for a sign of a process: its id and that of its parent."""
    file = airflow.home / "signs" / name
    text = until(lambda: file.exists() and file.read_text(), f"the sign {name}")
    return [int(word) for word in text.split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestExamples:
    """Each example Dag does what it says when it is scheduled, not only in `dag.test()`."""

    def test_quickstart(self, airflow: Airflow, quickstart: str) -> None:
        made = repository(airflow, "quick")
        committed = airflow.result("icechunk_quickstart", quickstart, "commit")
        assert snapshots(made)[-1] == committed["snapshot_id"]
        store = made.readonly_session("main").store
        assert np.asarray(zarr.open_array(store, path="temperature", mode="r")[:]).min() > 0

    def test_append_daily_catches_up_many_days_at_once(self, airflow: Airflow) -> None:
        dag = "icechunk_append_daily"
        airflow.pause(dag, paused=False)
        until(lambda: list(airflow.runs(dag).values()).count("success") >= 3, "three days")
        airflow.pause(dag, paused=True)
        made = repository(airflow, "daily")
        messages = [info.message for info in made.ancestry(branch="main")][:-1]
        assert len(messages) >= 3
        assert len(set(messages)) == len(messages)
        first = zarr.open_array(made.readonly_session("main").store, path="temperature")[:, 0, 0]
        there = np.flatnonzero(np.asarray(first)) + np.datetime64("2026-01-01")
        assert set(map(str, there)) == set(messages)

    def test_write_audit_publish(self, airflow: Airflow) -> None:
        dag = "icechunk_write_audit_publish"
        airflow.succeed(dag, {"value": 5})
        published = repository(airflow, "audited").lookup_branch("main")
        run = airflow.start(dag, {"value": -1})
        assert airflow.finish(dag, run) == "failed"
        made = repository(airflow, "audited")
        assert made.lookup_branch("main") == published
        assert made.list_branches() == {"main"}

    def test_event_driven(self, airflow: Airflow) -> None:
        dag = "icechunk_event_driven"
        made = create(airflow, "weather")
        commit(made, "before anybody watches")
        airflow.pause(dag, paused=False)
        ids: dict[str, str] = {}

        def one_more() -> bool:
            # The watcher begins at the head, some time after the Dag was allowed to run.
            ids[commit(made, f"commit {len(ids)}")] = f"commit {len(ids)}"
            return "success" in airflow.runs(dag).values()

        until(one_more, "a run for a commit")
        airflow.pause(dag, paused=True)
        run = next(run for run, state in airflow.runs(dag).items() if state == "success")
        described = airflow.result(dag, run, "describe_commits")
        assert described
        for told in described:
            assert ids[told["snapshot_id"]] == told["message"]
            assert told["arrays"] == ["/field"]

    def test_maintenance(self, airflow: Airflow) -> None:
        dag = "icechunk_maintenance"
        made = create(airflow, "kept")
        for number in range(12):
            commit(made, f"{number}")
        conf = {"repository": "kept", "older_than": "0s", "minimum_age": "0s"}
        run = airflow.start(dag, {**conf, "most_gigabytes": -1})
        airflow.answer(dag, run, "approve", "Approve")
        assert airflow.finish(dag, run) == "success", airflow.explain(dag, run)
        kept = [info.message for info in repository(airflow, "kept").ancestry(branch="main")]
        assert kept[:10] == [str(number) for number in range(11, 1, -1)]
        assert "0" not in kept

    def test_release_and_roll_back(self, airflow: Airflow) -> None:
        made = create(airflow, "released")
        run = airflow.start("icechunk_release", {"repository": "released", "days": 2})
        sensor = ("icechunk_release", run, "wait_until_complete")
        until(lambda: airflow.is_given_back(*sensor), "the sensor to wait")
        session = made.writable_session("main")
        zarr.create_array(session.store, name="temperature", data=np.ones((2, 2, 2)))
        session.commit("two days")
        finished = airflow.finish("icechunk_release", run)
        assert finished == "success", airflow.explain("icechunk_release", run)
        released = made.lookup_tag("release-1")
        commit(made, "nobody wants this")
        made.create_tag("release-2", made.lookup_branch("main"))
        airflow.succeed("icechunk_roll_back", {"repository": "released"})
        assert made.lookup_branch("main") == released
        assert made.list_tags() == {"release-1"}

    def test_migrate(self, airflow: Airflow) -> None:
        storage = local_filesystem_storage(airflow.home / "data" / "old")
        wanted = commit(Repository.create(storage, spec_version=1), "old")
        airflow.succeed("icechunk_migrate", {"repository": "old"})
        made = repository(airflow, "old")
        assert (made.spec_version, made.lookup_branch("main")) == ("2", wanted)

    def test_an_own_function_for_one_day_and_whoever_waits_for_days(self, airflow: Airflow) -> None:
        dag = "icechunk_own_function"
        run = airflow.start_day(dag, "2026-01-06")
        assert airflow.finish(dag, run) == "success", airflow.explain(dag, run)
        assert airflow.result(dag, run, "write")["labels"] == {"time": ["2026-01-06"]}
        dag = "icechunk_wait_for_days"
        made = create(airflow, "growing")
        session = made.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        days = root.create_array(
            "temperature", shape=(11, 18, 36), chunks=(1, 18, 36), dtype="float32",
            dimension_names=("time", "latitude", "longitude"),
        )  # fmt: skip
        days[4:] = 280
        time = root.create_array("time", data=np.arange(11), dimension_names=("time",))
        time.attrs["units"] = "days since 2026-01-01"
        session.commit("a week")
        run = airflow.succeed(dag)
        assert airflow.result(dag, run, "use_week") == 7

    def test_files_in_and_out(self, airflow: Airflow) -> None:
        import xarray as xr

        source, target = airflow.home / "in.nc", airflow.home / "out.nc"
        data = xr.Dataset({"t2m": (("time", "x"), np.arange(12.0).reshape(4, 3))})
        data.to_netcdf(source, engine="h5netcdf")
        airflow.succeed("icechunk_xarray", {"source": str(source), "target": str(target)})
        assert target.exists()

    def test_those_that_are_tested_are_there(self) -> None:
        assert TESTED_BELOW | ON_THE_QUICKSTART <= EXAMPLES

    @pytest.mark.usefixtures("quickstart")
    @pytest.mark.parametrize("dag", sorted(EXAMPLES - TESTED_BELOW))
    def test_the_others_run_as_they_are(self, airflow: Airflow, dag: str) -> None:
        airflow.succeed(dag, {"repository": "quick"} if dag in ON_THE_QUICKSTART else None)


def test_deferred_sensors_give_the_worker_back_and_answer_in_the_end(airflow: Airflow) -> None:
    made = create(airflow, "watched")
    since = commit(made, "before")
    run = airflow.start("waiting", {"since": since})
    tasks = ("commit", "tag", "node")

    def states() -> set[str]:
        found = {airflow.task("waiting", run, task)["state"] for task in tasks}
        assert "failed" not in found, airflow.explain("waiting", run)
        return found

    until(lambda: states() == {"deferred"}, "all sensors to defer")
    for task in tasks:
        until(lambda task=task: airflow.is_given_back("waiting", run, task), f"{task} to be noted")
    commit(made, "noise")
    wanted = commit(made, "wanted", "late")
    made.create_tag("v1", wanted)
    assert airflow.finish("waiting", run) == "success", airflow.explain("waiting", run)
    answers = {task: airflow.result("waiting", run, task) for task in tasks}
    assert {answer["snapshot_id"] for answer in answers.values()} == {wanted}
    assert answers["commit"]["message"] == "wanted"


def test_a_run_that_succeeds_is_tagged(airflow: Airflow) -> None:
    airflow.succeed("tagging", {"tag": "nightly"})
    made = repository(airflow, "tagged")
    until(lambda: "nightly" in made.list_tags(), "the tag")
    assert made.lookup_tag("nightly") == made.lookup_branch("main")


def told(airflow: Airflow) -> list[str]:
    """The snapshots that successful runs of the consumer were started by."""
    runs = [run for run, state in airflow.runs("following").items() if state == "success"]
    return [one for run in runs for one in airflow.result("following", run, "told")]


def test_a_consumer_runs_for_each_commit_from_outside_also_after_a_dead_triggerer(
    airflow: Airflow, environment: dict[str, str]
) -> None:
    made = create(airflow, "followed")
    airflow.pause("following", paused=False)
    for number in range(2):
        new = commit(made, f"alone {number}")
        until(lambda new=new: new in told(airflow), "a run for a commit")
    many = [commit(made, f"quick {number}") for number in range(3)]
    until(lambda: set(many) <= set(told(airflow)), "runs for three commits")
    assert [one for one in told(airflow) if one in many][:3] == many

    def watermark() -> Any:
        assets = airflow.ask("GET", "assets?name_pattern=followed_main")["assets"]
        return airflow.ask("GET", f"assets/{assets[0]['id']}/state-store")

    until(lambda: many[-1] in str(watermark()), f"{WATERMARK} to be stored")
    for pid, command in processes(airflow.home).items():
        if "triggerer" in command:
            os.kill(pid, signal.SIGKILL)
    missed = [commit(made, f"unwatched {number}") for number in range(2)]
    airflow.start_process(["airflow", "triggerer"], environment)
    until(lambda: set(missed) <= set(told(airflow)), "runs for what was missed")
    assert set(told(airflow)) == set(snapshots(made))
    airflow.pause("following", paused=True)


def test_a_worker_killed_between_spark_and_the_commit_commits_once(airflow: Airflow) -> None:
    run = airflow.start("worker_dies")
    task, worker = sign(airflow, "task")
    assert snapshots(repository(airflow, "worker_dies")) == []
    for pid in (worker, task):
        os.kill(pid, signal.SIGKILL)
    assert airflow.finish("worker_dies", run) == "success", airflow.explain("worker_dies", run)
    assert airflow.task("worker_dies", run, "write")["try_number"] == 2
    made = repository(airflow, "worker_dies")
    committed = airflow.result("worker_dies", run, "write")
    assert snapshots(made) == [committed["snapshot_id"]]
    store = made.readonly_session("main").store
    assert np.asarray(zarr.open_array(store, path="temperature", mode="r")[:]).min() > 0

    # Cleared after it has committed: the job runs again, and one more snapshot.
    airflow.clear("worker_dies", run, "write")
    until(lambda: airflow.task("worker_dies", run, "write")["try_number"] == 3, "a third attempt")
    assert airflow.finish("worker_dies", run) == "success", airflow.explain("worker_dies", run)
    again = airflow.result("worker_dies", run, "write")
    assert again["supersedes"] == committed["snapshot_id"]
    known = [again["snapshot_id"], committed["snapshot_id"]]
    assert snapshots(repository(airflow, "worker_dies")) == known


def test_a_whole_run_cleared_after_its_commit_does_its_work_again(airflow: Airflow) -> None:
    dag = "icechunk_quickstart"
    run = airflow.succeed(dag, {"repository": "cleared"})
    (only,) = snapshots(repository(airflow, "cleared"))
    airflow.clear(dag, run, "create_repository", "open_session", "write_chunks", "commit")
    until(lambda: airflow.task(dag, run, "commit")["try_number"] == 2, "a second attempt")
    assert airflow.finish(dag, run) == "success", airflow.explain(dag, run)
    again = airflow.result(dag, run, "commit")
    assert again["supersedes"] == only
    assert snapshots(repository(airflow, "cleared")) == [again["snapshot_id"], only]


def test_a_task_that_is_stopped_ends_its_job_and_leaves_nothing_visible(airflow: Airflow) -> None:
    run = airflow.start("job_is_killed")
    driver, spark = sign(airflow, "job")
    assert is_running(driver)
    airflow.mark_failed("job_is_killed", run, "write")
    until(lambda: not is_running(driver) and not is_running(spark), "the end of the job", 120)
    assert airflow.finish("job_is_killed", run) == "failed"
    made = repository(airflow, "job_is_killed")
    assert snapshots(made) == []
    assert made.list_branches() == {"main"}


def test_airflow_finds_the_provider(environment: dict[str, str]) -> None:
    answer = subprocess.run(
        ["airflow", "providers", "list", "--output", "json"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "airflow-provider-icechunk" in answer.stdout


def test_no_process_is_left_behind(environment: dict[str, str], tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"env": environment | {MARK: str(tmp_path)}},
        {"cwd": tmp_path, "env": {"PATH": environment["PATH"]}},
    ]
    for way in ways:
        sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True, **way)
        until(lambda pid=sleeper.pid: pid in processes(tmp_path), "the process", 30)
        end_processes(tmp_path)
        assert sleeper.wait() == -signal.SIGTERM
        assert not processes(tmp_path)
