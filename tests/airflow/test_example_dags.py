"""The example Dags, run as a whole on a real Airflow."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from support.provider_classes import listed

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.dataset import IcechunkDataset
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.spark.write.generated import generate

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("airflow_home"),
]


def load(home: Path, name: str) -> Any:
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # before Airflow 3.2
        from airflow.models.dagbag import DagBag

    bag = DagBag(home / "dags" / f"{name}.py")
    lacking = [text for text in bag.import_errors.values() if "needs Airflow 3.1+" in text]
    if lacking:
        pytest.skip(lacking[0].splitlines()[-1])
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


def test_every_example_is_run_here() -> None:
    here = Path(__file__)
    text = here.read_text()
    examples = {file.stem for file in (here.parents[2] / "dags").glob("*.py")}
    assert len(examples) >= 9
    assert {name for name in examples if f'"{name}"' not in text} == set()


def test_every_operator_and_sensor_has_an_example() -> None:
    folder = Path(__file__).parents[2] / "dags"
    text = "".join(file.read_text() for file in folder.glob("*.py"))
    made = {one.__name__ for one in listed("operators", "sensors")}
    assert {name for name in made if f"{name}(" not in text} == set()


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
    newest = next(iter(repository.ancestry(branch="main")))
    assert newest.metadata["airflow"]["logical_date"] == "2026-01-03T00:00:00+00:00"
    temperature = values(repository, "temperature")
    assert temperature.shape == (3, 18, 36)
    assert (np.diff(temperature[:, 0, 0]) > 0).all()


def test_a_week_is_used_when_all_of_its_days_are_there(airflow_home: Path, folder: Path) -> None:
    dag = load(airflow_home, "icechunk_wait_for_days")
    dataset = dag.get_task("wait_for_week").dataset
    repository = Repository.create(local_filesystem_storage(folder / "growing"))
    for at in ({"from": "2026-01-09", "until": "2026-01-15"}, ["2026-01-05", "2026-01-06"]):
        write_days(repository, dataset, at)
    dag.get_task("wait_for_week").mode = "poke"
    dag.get_task("wait_for_week").timeout = 0.1
    dag.get_task("wait_for_week").poke_interval = 0.1
    dag.get_task("wait_for_week").retries = 0
    assert dag.test().state == "failed"
    write_days(repository, dataset, ["2026-01-07", "2026-01-08"])
    assert dag.test().state == "success"


def test_a_dataset_gets_a_variable_and_keeps_its_newest_days(
    airflow_home: Path, folder: Path
) -> None:
    dag = load(airflow_home, "icechunk_rolling_window")
    dataset = dag.get_task("cut").dataset
    repository = Repository.create(local_filesystem_storage(folder / "window"))
    only = dataset.on(variables={"temperature": dataset.variables["temperature"]})
    write_days(repository, only, {"from": "2026-01-01", "until": "2026-01-11"})
    run = dag.test(run_conf={"keep": 4})
    assert run.state == "success"
    asked, done = (run.get_task_instance(name).xcom_pull(name) for name in ("ask", "cut"))
    assert (asked["dry_run"], asked["committed"], done["committed"]) == (True, False, True)
    assert asked["result"] == done["result"]
    assert (done["result"]["labels"], done["result"]["first"]) == (6, "2026-01-07")
    assert values(repository, "time").tolist() == [6, 7, 8, 9]
    assert (values(repository, "temperature") == 280).all()
    assert values(repository, "rain").shape == (4, 18, 36)
    write_days(repository, dataset, ["2026-01-12"])
    assert values(repository, "time").tolist() == [6, 7, 8, 9, 10, 11]


def write_days(repository: Repository, dataset: IcechunkDataset, at: Any) -> None:
    session = repository.writable_session("main")
    placed = ensure(session, dataset, dataset.place({"time": at}))
    array = zarr.open_array(session.store, path="temperature", mode="r+")
    array[slice(*placed.regions["time"])] = 280
    session.commit("days")


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


def test_a_downstream_works_on_the_version_that_the_sensor_found(
    airflow_home: Path, folder: Path
) -> None:
    repository = Repository.create(local_filesystem_storage(folder / "weather"))
    begin = write(repository, "something else", 1)
    session = repository.writable_session("main")
    field = np.arange(2 * 4 * 6, dtype="float32").reshape(2, 4, 6)
    zarr.create_array(session.store, name="temperature", data=field)
    session.commit("two days")
    dag = load(airflow_home, "icechunk_downstream")
    assert dag.test(run_conf={"since": begin}).state == "success"
    repository = opened(folder, "weather")
    weights = np.cos(np.pi * (np.array([2.5, 3.5]) / 4 - 0.5))
    expected = np.average(field[:, 2:].mean(axis=2), axis=1, weights=weights)
    assert np.allclose(values(repository, "northern_mean"), expected)
    newest = next(iter(repository.ancestry(branch="main")))
    assert newest.metadata["airflow"]["task_id"] == "add_means"


def test_what_is_complete_is_released_and_a_branch_goes_back_to_a_release(
    airflow_home: Path, folder: Path
) -> None:
    repository = Repository.create(local_filesystem_storage(folder / "weather"))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="temperature", data=np.ones((3, 2, 2)))
    written = session.commit("three days")
    release = load(airflow_home, "icechunk_release")
    assert release.test(run_conf={"days": 3}).state == "success"
    released = opened(folder, "weather").lookup_tag("release-1")
    assert opened(folder, "weather").lookup_branch("main") == released != written
    bad = write(opened(folder, "weather"), "nobody wants this", 1)
    opened(folder, "weather").create_tag("release-2", bad)
    back = load(airflow_home, "icechunk_roll_back")
    for _ in range(2):
        assert back.test().state == "success"
        repository = opened(folder, "weather")
        assert repository.lookup_branch("main") == released
        assert repository.list_tags() == {"release-1"}
    assert (values(repository, "temperature") == 1).all()


def test_a_repository_moves_up_between_two_verifications(airflow_home: Path, folder: Path) -> None:
    storage = local_filesystem_storage(folder / "weather")
    write(Repository.create(storage, spec_version=1), "old", 5)
    for _ in range(2):
        assert load(airflow_home, "icechunk_migrate").test().state == "success"
        repository = opened(folder, "weather")
        assert repository.spec_version == "2"
        assert values(repository, "field")[0] == 5


NOW = {"older_than": "0s", "minimum_age": "0s"}


@pytest.fixture
def twelve(folder: Path) -> Repository:
    """A repository with twelve versions of one chunk."""
    repository = Repository.create(local_filesystem_storage(folder / "weather"))
    for number in range(12):
        write(repository, f"{number}", number + 1)
    return repository


def chunk_files(repository: Repository) -> int:
    return len(list(repository.storage.scan("chunks/")))


def test_maintenance_keeps_the_newest_and_frees_the_rest_without_asking(
    airflow_home: Path, folder: Path, twelve: Repository
) -> None:
    before = chunk_files(twelve)
    dag = load(airflow_home, "icechunk_maintenance")
    finished = dag.test(run_conf={**NOW, "most_gigabytes": 1})
    assert finished.state == "success"
    assert states(finished)["approve"] == "skipped"
    assert chunk_files(twelve) == 10 < before
    kept = [info.message for info in opened(folder, "weather").ancestry(branch="main")]
    assert kept[:10] == [str(number) for number in range(11, 1, -1)]
    assert values(opened(folder, "weather"), "field")[0] == 12


@pytest.mark.parametrize(("answer", "left"), [("Approve", 10), ("Reject", None)])
def test_a_person_decides_when_more_would_go_than_expected(
    airflow_home: Path, twelve: Repository, answer: str, left: int | None
) -> None:
    before = chunk_files(twelve)
    dag = load(airflow_home, "icechunk_maintenance")
    with answering("icechunk_maintenance", "approve", answer):
        finished = dag.test(run_conf={**NOW, "most_gigabytes": 0})
    assert finished.state == "success"
    assert states(finished)["collect"] == ("success" if left else "skipped")
    assert states(finished)["verify"] == "success"
    assert chunk_files(twelve) == (left or before)


def states(finished: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in finished.get_task_instances()}


@contextmanager
def answering(dag_id: str, task_id: str, answer: str) -> Iterator[None]:
    """Somebody who looks for a question of a task and answers it, as the web page would."""
    over = threading.Event()

    def wait_and_answer() -> None:
        while not over.wait(0.2):
            if answer_if_asked(dag_id, task_id, answer):
                return

    person = threading.Thread(target=wait_and_answer)
    person.start()
    try:
        yield
    finally:
        over.set()
        person.join()


def answer_if_asked(dag_id: str, task_id: str, answer: str) -> bool:
    from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
    from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    asking = select(TaskInstance.run_id).where(
        TaskInstance.dag_id == dag_id,
        TaskInstance.task_id == task_id,
        TaskInstance.state == "awaiting_input",
    )
    person = SimpleNamespace(get_id=lambda: "1", get_name=lambda: "somebody")
    with create_session() as session:
        run_id = session.scalar(asking)
        if run_id is None:
            return False
        payload = UpdateHITLDetailPayload(chosen_options=[answer])
        update_hitl_detail(dag_id, run_id, task_id, payload, person, session)
    return True


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_quickstart_runs_and_the_official_library_reads_its_result(
    airflow_home: Path, folder: Path, connect: Callable[..., str]
) -> None:
    import icechunk

    connect("spark_default", conn_type="spark", host="local[2]")
    assert load(airflow_home, "icechunk_quickstart").test().state == "success"
    storage = icechunk.local_filesystem_storage(str(folder / "weather"))
    repository = icechunk.Repository.open(storage)
    assert len(list(repository.ancestry(branch="main"))) == 2
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    field = np.asarray(root["temperature"][:])
    assert np.array_equal(field, generate("temperature", whole(field), field.shape))
    assert np.asarray(root["latitude"][:]).tolist() == list(range(-89, 90, 2))


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_an_own_function_writes_day_6_after_day_16_and_xarray_reads_both(
    airflow_home: Path, folder: Path, connect: Callable[..., str]
) -> None:
    import xarray

    connect("spark_default", conn_type="spark", host="local[1]")
    dag = load(airflow_home, "icechunk_own_function")
    for day in (16, 6):
        assert dag.test(logical_date=datetime(2026, 1, day, tzinfo=UTC)).state == "success"
    store = opened(folder, "weather_daily").readonly_session("main").store
    data = xarray.open_zarr(store, consolidated=False)
    assert str(data.time.values[5])[:10] == "2026-01-06"
    written = [bool((data.t2m[day].values > 200).all()) for day in range(16)]
    assert [day for day, there in enumerate(written, 1) if there] == [6, 16]
    south, north = data.t2m[5, -1, 0].item(), data.t2m[5, 0, 0].item()
    assert south > north, "it is summer in the south"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_array_gets_other_chunks_after_a_plan(
    airflow_home: Path, folder: Path, connect: Callable[..., str]
) -> None:
    connect("spark_default", conn_type="spark", host="local[1]")
    repository = Repository.create(local_filesystem_storage(folder / "rechunk"))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    shape, before = (20, 18, 36), np.random.default_rng(1).random((20, 18, 36))
    root.create_array("temperature", shape=shape, chunks=(1, 18, 36), dtype="f8")[:] = before
    session.commit("days")
    run = load(airflow_home, "icechunk_rechunk").test()
    assert run.state == "success"
    plan = run.get_task_instance("ask").xcom_pull("ask")["plan"]
    assert (plan["chunks_before"], plan["chunks_after"], plan["tasks"]) == (20, 24, 1)
    store = repository.readonly_session("main").store
    found = zarr.open_array(store, path="temperature", mode="r")
    assert found.chunks == (8, 9, 9)
    assert np.array_equal(np.asarray(found[:]), before)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_mapped_spark_tasks_write_parts_of_one_array_and_one_task_commits_them(
    airflow_home: Path, folder: Path, connect: Callable[..., str]
) -> None:
    connect("spark_default", conn_type="spark", host="local[1]")
    dag = load(airflow_home, "icechunk_fan_out")
    finished = dag.test(run_conf={"writers": 2})
    assert finished.state == "success"
    assert len([ti for ti in finished.get_task_instances() if ti.task_id == "write"]) == 2
    repository = opened(folder, "ensemble")
    assert len(list(repository.ancestry(branch="main"))) == 2
    field = values(repository, "temperature")
    assert np.array_equal(field, generate("temperature", whole(field), field.shape))


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_year_is_appended_in_one_task_and_the_first_one_is_left_as_it_was(
    airflow_home: Path, folder: Path, connect: Callable[..., str]
) -> None:
    connect("spark_default", conn_type="spark", host="local[1]")
    repository = Repository.create(local_filesystem_storage(folder / "weather"))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("temperature", shape=(365, 90, 180), chunks=(73, 45, 90), dtype="float32")
    root.create_array("time", data=np.arange(365))
    session.commit("a year without values")
    assert load(airflow_home, "icechunk_append_year").test().state == "success"
    repository = opened(folder, "weather")
    field = values(repository, "temperature")
    assert field.shape == (730, 90, 180)
    assert not field[:365].any()
    expected = generate("temperature", ((365, 730), (0, 90), (0, 180)), field.shape)
    assert np.array_equal(field[365:], expected)
    assert values(repository, "time").tolist() == list(range(730))


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_netcdf_files_become_one_array_without_being_copied(
    airflow_home: Path,
    folder: Path,
    tmp_path: Path,
    connect: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect("spark_default", conn_type="spark", host="local[1]")
    archive = tmp_path / "archive"
    monkeypatch.setenv("ICECHUNK_ARCHIVE", str(archive))
    assert load(airflow_home, "icechunk_virtual_ingest").test().state == "success"
    files = sorted(archive.iterdir())
    assert len(files) == 3
    field = np.concatenate([np.asarray(h5py.File(file)["field"]) for file in files])
    repository = opened(folder, "archive")
    prefix = f"file://{archive}/"
    allowed = repository.reopen(authorize_virtual_chunk_access={prefix: None})
    assert np.array_equal(values(allowed, "field"), field)
    assert list(repository.storage.scan("chunks/")) == []
    assert len(repository.readonly_session("main").all_virtual_chunk_locations()) == 3


def whole(field: Any) -> tuple[tuple[int, int], ...]:
    return tuple((0, length) for length in field.shape)


def test_days_come_as_datasets_in_any_order_and_stations_are_appended(
    airflow_home: Path, folder: Path
) -> None:
    import xarray as xr

    dag = load(airflow_home, "icechunk_xarray_daily")
    for day in (16, 6):
        assert dag.test(logical_date=datetime(2026, 1, day, tzinfo=UTC)).state == "success"
    store = opened(folder, "weather_fields").readonly_session("main").store
    data = xr.open_zarr(store, consolidated=False, chunks=None)
    written = (data.t2m > 200).all(("latitude", "longitude")).values
    assert [day for day, there in enumerate(written, 1) if there] == [6, 16]
    store = opened(folder, "weather_stations").readonly_session("main").store
    data = xr.open_zarr(store, consolidated=False, chunks=None)
    assert data.station.values.tolist() == ["station-20260116", "station-20260106"]
    assert data.reports.values.tolist() == [1, 1]


def test_a_file_comes_in_a_dataset_goes_out_and_a_copy_is_the_same(
    airflow_home: Path, folder: Path, tmp_path: Path
) -> None:
    import xarray as xr

    data = xr.Dataset({"t2m": (("time", "x"), np.arange(12.0).reshape(4, 3))})
    data.to_netcdf(tmp_path / "in.nc", engine="h5netcdf")
    dag = load(airflow_home, "icechunk_xarray")
    conf = {"source": str(tmp_path / "in.nc"), "target": str(tmp_path / "out.nc")}
    assert dag.test(run_conf=conf).state == "success"
    expected = data - data.mean("time")
    with xr.open_dataset(tmp_path / "out.nc", engine="h5netcdf") as out:
        xr.testing.assert_allclose(out, expected)
    assert (values(opened(folder, "restored/observations"), "raw/t2m") == data["t2m"]).all()
    repository = opened(folder, "observations")
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert list(root) == ["anomaly"]
