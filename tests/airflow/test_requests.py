"""How often a task asks what a repository is: once, whatever it does then."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xarray
import zarr
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from support.airflow_contexts import make_context, retried
from support.provider_classes import AT, DATASET, listed

from airflow_provider_icechunk.api import Repository, declare, local_filesystem_storage
from airflow_provider_icechunk.decorators.icechunk import icechunk_task
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.storage.base import ByteRange, Fetched, Storage
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.hooks import icechunk as hooks
from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_provider_icechunk.testing.storages import WrappedStorage

FIELD = {
    "path": "field", "shape": [4], "chunks": [2], "dtype": "int32", "dimension_names": ["x"],
}  # fmt: skip


class Watched(WrappedStorage):
    """Counts what is read, by key."""

    def __init__(self, inner: Storage, reads: Counter[str]) -> None:
        super().__init__(inner)
        self.reads = reads

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        self.reads[key] += 1
        return self.inner.get(key, byte_range)


@pytest.fixture
def repository(folder: Path, connect: Callable[..., str]) -> Repository:
    connect("spark_default", conn_type="spark", host="local[1]")
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    session = made.writable_session("main")
    zarr.create_array(
        session.store, name="field", shape=(4,), chunks=(2,), dtype="int32", dimension_names=["x"]
    )
    made.create_tag("v1", session.commit("begin"))
    made.create_branch("dev", made.lookup_branch("main"))
    return made


@pytest.fixture
def reads(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What every storage that a hook makes is asked for."""
    counted: Counter[str] = Counter()
    build = hooks.build_storage
    monkeypatch.setattr(
        hooks, "build_storage", lambda *given, **more: Watched(build(*given, **more), counted)
    )
    return counted


def assert_asked_once(reads: Counter[str], looks: int = 1) -> None:
    """`repo` is read to learn the generation, `config.yaml` when a repository is opened."""
    assert (reads["repo"], reads["config.yaml"]) == (looks, 1)


def begun() -> Any:
    """A first attempt, as Airflow starts one."""
    now = datetime.now(UTC)
    context = make_context() | {"dag_run": SimpleNamespace(run_after=now)}
    context["ti"].start_date = now
    return context


def leave(session: dict[str, Any]) -> None:
    described = parse_session(session)
    repository = Repository.open(described.place.storage())
    fork = repository.fork(described.work_unit)
    zarr.open_array(fork.store, path="field", mode="r+")[:] = 7
    JobFolder(repository.storage, fork.work.job).put_fragment("w", fork.fragment("w"))


def submits(task: Any, context: Any) -> None:
    leave(json.loads(task.application_args[-1])["session"])


ARGUMENTS: dict[str, dict[str, Any]] = {
    "IcechunkAttributesOperator": {"attributes": {"field": {"units": "K"}}},
    "IcechunkBranchSensor": {},
    "IcechunkCheckOperator": {
        "checks": [{"check": "missing", "array": "field", "most": 1}],
        "fail": False,
    },
    "IcechunkCompactOperator": {},
    "IcechunkCoverageSensor": {"dataset": DATASET, "at": AT},
    "IcechunkCreateBranchOperator": {"branch": "new"},
    "IcechunkCreateRepositoryOperator": {},
    "IcechunkCreateTagOperator": {"tag": "v2"},
    "IcechunkDeclareOperator": {"dataset": DATASET},
    "IcechunkDeleteBranchOperator": {"branch": "dev"},
    "IcechunkDeleteTagOperator": {"tag": "v1"},
    "IcechunkDropLabelsOperator": {"dataset": DATASET, "keep": 1},
    "IcechunkExpireOperator": {"older_than": "30d"},
    "IcechunkCollectOperator": {},
    "IcechunkExportOperator": {},
    "IcechunkImportOperator": {"group": "more"},
    "IcechunkMeasureOperator": {},
    "IcechunkNodeSensor": {"path": "field"},
    "IcechunkOpenSessionOperator": {"arrays": [FIELD]},
    "IcechunkPublishOperator": {"source": "dev"},
    "IcechunkRechunkOperator": {"array": "field", "chunks": [1]},
    "IcechunkResetBranchOperator": {"branch": "dev"},
    "IcechunkRevertOperator": {},
    "IcechunkRewriteManifestsOperator": {},
    "IcechunkSparkSubmitOperator": {"arrays": [FIELD], "application": "job.py"},
    "IcechunkTagSensor": {"tag": "v1"},
    "IcechunkVerifyOperator": {},
}
WITH_A_SESSION = {"IcechunkCommitOperator", "IcechunkAbortSessionOperator"}
LOOKS_AT_ALL_GENERATIONS = {"IcechunkMigrateOperator"}
COPIES_OBJECTS = {"IcechunkBackupOperator", "IcechunkRestoreOperator"}
"""They read all objects of a repository, these among them."""
LOOKS_AGAIN = {"IcechunkExpireOperator", "IcechunkCollectOperator"}
"""Before they remove anything they make sure that no migration has switched meanwhile."""
CLASSES = {one.__name__: one for one in listed("operators", "sensors")}


def test_every_operator_and_sensor_is_counted() -> None:
    exempt = LOOKS_AT_ALL_GENERATIONS | COPIES_OBJECTS
    assert ARGUMENTS.keys() | WITH_A_SESSION | exempt == CLASSES.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_task_learns_the_generation_and_opens_the_repository_once(
    name: str,
    repository: Repository,
    reads: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSubmitOperator, "execute", submits)
    given = {"task_id": "task", "repository": "weather", **ARGUMENTS[name]}
    if name == "IcechunkImportOperator":
        given["source"] = str(tmp_path / "in.zarr")
        rain = xarray.Dataset({"rain": ("x", [1, 2])})
        rain.to_zarr(given["source"], consolidated=False)
    if name == "IcechunkExportOperator":
        given["target"] = str(tmp_path / "out.zarr")
    if name in ("IcechunkResetBranchOperator", "IcechunkRevertOperator"):
        given["snapshot_id"] = repository.lookup_tag("v1")
    if name == "IcechunkDropLabelsOperator":
        declare(repository, DATASET)
    task = CLASSES[name](**given)
    (task.poke if name.endswith("Sensor") else task.execute)(begun())
    assert_asked_once(reads, looks=2 if name in LOOKS_AGAIN else 1)


@pytest.mark.parametrize("name", sorted(WITH_A_SESSION))
@pytest.mark.usefixtures("repository")
def test_so_does_a_task_that_gets_a_session(name: str, reads: Counter[str]) -> None:
    opening = IcechunkOpenSessionOperator(task_id="open", repository="weather", arrays=[FIELD])
    session = opening.execute(begun())
    leave(session)
    reads.clear()
    more = {"message": "m"} if CLASSES[name] is IcechunkCommitOperator else {}
    CLASSES[name](task_id="task", session=session, **more).execute(begun())
    assert_asked_once(reads)


@pytest.mark.usefixtures("repository")
def test_so_does_a_function(reads: Counter[str]) -> None:
    def write(store: Any) -> None:
        zarr.open_array(store, path="field", mode="r+")[:] = 1

    icechunk_task(repository="weather")(write)().operator.execute(begun())
    assert_asked_once(reads)


class TestHistory:
    """How much of a long history a task reads."""

    LENGTH = 40

    @pytest.fixture
    def long(self, repository: Repository, reads: Counter[str]) -> Repository:
        for number in range(self.LENGTH):
            session = repository.writable_session("main")
            zarr.open_array(session.store, path="field", mode="r+")[0] = number
            session.commit(f"{number}")
        reads.clear()
        return repository

    def snapshots(self, reads: Counter[str]) -> int:
        return sum(number for key, number in reads.items() if key.startswith("snapshots/"))

    @pytest.mark.usefixtures("long")
    def test_a_first_attempt_reads_none_of_what_was_there_before_it(
        self, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SparkSubmitOperator, "execute", submits)
        given = {"task_id": "task", "repository": "weather", "arrays": [FIELD]}
        IcechunkSparkSubmitOperator(application="job.py", **given).execute(begun())
        assert self.snapshots(reads) <= 4

    @pytest.mark.usefixtures("long")
    def test_a_retry_reads_what_came_since_and_reads_it_once(
        self, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SparkSubmitOperator, "execute", submits)
        given = {"task_id": "task", "repository": "weather", "arrays": [FIELD]}
        IcechunkSparkSubmitOperator(application="job.py", **given).execute(retried(begun()))
        assert self.snapshots(reads) <= self.LENGTH + 6
        assert max(number for key, number in reads.items() if key.startswith("snapshots/")) == 1
