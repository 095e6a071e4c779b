"""The example Dags, run as a whole on a real Airflow."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import Repository, local_filesystem_storage

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("airflow_home"),
]


def load(home: Path, name: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(home / "dags" / f"{name}.py")
    assert not bag.import_errors
    return bag.dags[name]


def opened(folder: Path, name: str) -> Repository:
    return Repository.open(local_filesystem_storage(folder / name))


def values(repository: Repository, path: str) -> Any:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=path, mode="r")[:])


def write(repository: Repository, message: str, value: int) -> str:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    field = root.require_array("field", shape=(400,), chunks=(400,), dtype="int64")
    # Noise, because what compresses well is kept inline, and then there are no chunks to delete.
    field[:] = np.random.default_rng(value).integers(1 << 60, size=400)
    field[0] = value
    return session.commit(message)


def test_each_run_appends_its_day_and_a_day_again_changes_its_place_only(
    airflow_home: Path, folder: Path
) -> None:
    dag = load(airflow_home, "icechunk_append_daily")
    for day in (2, 1, 3):
        run = dag.test(logical_date=datetime(2026, 1, day, tzinfo=UTC))
        assert run.state == "success"
    repository = opened(folder, "daily")
    assert [info.message for info in repository.ancestry(branch="main")][:-1] == [
        "2026-01-03", "2026-01-01", "2026-01-02",
    ]  # fmt: skip
    temperature = values(repository, "temperature")
    assert temperature.shape == (3, 18, 36)
    assert (np.diff(temperature[:, 0, 0]) > 0).all()


def test_bad_data_is_written_audited_and_never_published(airflow_home: Path, folder: Path) -> None:
    dag = load(airflow_home, "icechunk_write_audit_publish")
    assert dag.test(run_conf={"value": 5}).state == "success"
    repository = opened(folder, "audited")
    published = repository.lookup_branch("main")
    assert (values(repository, "field") == 5).all()
    assert repository.list_branches() == {"main"}
    assert dag.test(run_conf={"value": -1}).state == "failed"
    repository = opened(folder, "audited")
    assert repository.lookup_branch("main") == published
    assert repository.list_branches() == {"main"}


def test_a_consumer_is_started_by_a_watcher_and_describes_each_commit_once(
    airflow_home: Path, folder: Path
) -> None:
    dag = load(airflow_home, "icechunk_event_driven")
    (asset,) = dag.timetable.asset_condition.objects
    (watcher,) = asset.watchers
    assert watcher.trigger.watcher_id == "weather_main"
    repository = Repository.create(local_filesystem_storage(folder / "weather"))
    begin = repository.lookup_branch("main")
    new = write(repository, "from outside", 1)
    payload = {"snapshot_id": new, "parent_id": begin, "message": "from outside"}
    event = SimpleNamespace(extra={"from_trigger": True, "payload": payload})
    described = dag.get_task("describe_commits").python_callable({"asset": [event, event]})
    assert described == [{"snapshot_id": new, "message": "from outside", "arrays": ["/field"]}]
    assert dag.test().state == "success"


def test_maintenance_keeps_the_newest_and_stops_when_too_much_would_go(
    airflow_home: Path, folder: Path
) -> None:
    repository = Repository.create(local_filesystem_storage(folder / "weather"))
    for number in range(12):
        write(repository, f"{number}", number + 1)
    dag = load(airflow_home, "icechunk_maintenance")
    now = {"older_than": "0s", "minimum_age": "0s"}
    stopped = dag.test(run_conf={**now, "most_gigabytes": 0})
    assert stopped.state == "failed"
    chunks = len(list(repository.storage.scan("chunks/")))
    assert dag.test(run_conf={**now, "most_gigabytes": 1}).state == "success"
    assert len(list(repository.storage.scan("chunks/"))) == 10 < chunks
    kept = [info.message for info in opened(folder, "weather").ancestry(branch="main")]
    assert kept[:10] == [str(number) for number in range(11, 1, -1)]
    assert values(opened(folder, "weather"), "field")[0] == 12
