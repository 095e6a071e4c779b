"""Maintenance on Spark gives what one process gives, and deletes as carefully."""

import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.arrays import put
from support.maintenance import UNPACKED, chunk, live_in, write

from airflow_provider_icechunk.engine.maintenance.collect_plan import Layer
from airflow_provider_icechunk.engine.maintenance.findings import Code
from airflow_provider_icechunk.engine.maintenance.listing import list_objects, to_rows
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.spark.maintenance.frames import Place, list_shards
from airflow_provider_icechunk.spark.maintenance.maintenance import (
    SparkCollection,
    garbage_collect,
    measure,
    verify,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]
SOON = timedelta(hours=1)


LONG = pytest.mark.long
GENERATIONS = ["1", *(pytest.param(one, marks=LONG) for one in ("2", "alpha", "alpha1", "draft"))]


@pytest.fixture(params=GENERATIONS)
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Repository, Repository]:
    """Two copies of a repository that has been lived in."""
    live_in(LocalStorage(tmp_path / "one"), request.param)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = (Repository.open(LocalStorage(tmp_path / name)) for name in ("one", "two"))
    return one, two


def files(repository: Repository) -> list[str]:
    found = (item.key for item in repository.storage.scan(""))
    # Copies of what generation `2` replaced have random names.
    return sorted(key for key in found if not key.startswith("overwritten/"))


def test_the_same_objects_are_planned_and_deleted_as_by_one_process(
    spark: SparkSession, twins: tuple[Repository, Repository]
) -> None:
    one, two = twins
    soon = datetime.now(UTC) + SOON
    before = files(two)
    dry = garbage_collect(spark, two, soon, dry_run=True)
    assert dry == one.garbage_collect(soon, dry_run=True)
    assert files(two) == before
    kept = garbage_collect(spark, two, soon, minimum_age=timedelta(days=1))
    assert kept.bytes_deleted == 0
    summary = garbage_collect(spark, two, soon)
    assert summary == one.garbage_collect(soon)
    assert summary.chunks_deleted > 0
    assert files(two) == files(one)


def test_sizes_and_findings_are_those_of_one_process(
    spark: SparkSession, twins: tuple[Repository, Repository]
) -> None:
    one, two = twins
    assert measure(spark, two) == one.measure()
    report = verify(spark, two)
    assert report == one.verify()
    assert report.ok
    layout = one.core.refs.layout
    chunks = sorted(item.key for item in one.storage.scan(layout.chunks))
    for repository in twins:
        repository.storage.delete(chunks[::3])
        for key in chunks[1::3]:
            stored = repository.storage.get(key)
            assert stored is not None
            repository.storage.put(key, stored.data[:-1], expect=Anything())
    report = verify(spark, two)
    assert report == one.verify()
    assert {finding.code for finding in report.errors} == {Code.CHUNK_MISSING, Code.CHUNK_SHORT}
    manifests = sorted(item.key for item in one.storage.scan(layout.manifests))
    for repository in twins:
        repository.storage.put(manifests[0], b"rot", expect=Anything())
        repository.storage.delete(manifests[1:2])
    assert verify(spark, two) == one.verify()


def test_one_manifest_that_cannot_be_read_stops_the_collection(
    spark: SparkSession, twins: tuple[Repository, Repository]
) -> None:
    _, repository = twins
    session = repository.readonly_session("main")
    node = session.tree.array("/a")
    assert node.array is not None
    key = repository.core.refs.layout.manifest(node.array.manifests[0].id)
    repository.storage.put(key, b"rot", expect=Anything())
    before = files(repository)
    with pytest.raises(MaintenanceError, match="in use but cannot be read"):
        garbage_collect(spark, repository, datetime.now(UTC) + SOON)
    assert files(repository) == before


def test_what_running_work_has_stored_stays(
    spark: SparkSession, twins: tuple[Repository, Repository]
) -> None:
    _, repository = twins
    hours = 0
    world = World(monotonic=lambda: time.monotonic() + hours * 3600)
    session = Repository.open(repository.storage, packing=UNPACKED, world=world).writable_session(
        "main"
    )
    put(session, "/a", (9,), chunk("an hour ago"))
    hours = 1
    put(session, "/a", (10,), chunk("now"))
    summary = garbage_collect(spark, repository, datetime.now(UTC) + SOON)
    assert summary.bytes_deleted == 0
    assert summary.plan is not None
    assert summary.plan.leases == 1
    session.commit("all there")
    assert verify(spark, repository).ok


@pytest.mark.parametrize("generation", ["1", pytest.param("2", marks=LONG)])
def test_what_comes_into_use_between_plan_and_deletion_stays(
    spark: SparkSession, tmp_path: Path, generation: str
) -> None:
    ids = live_in(LocalStorage(tmp_path / "one"), generation)
    repository = Repository.open(LocalStorage(tmp_path / "one"))
    collection = SparkCollection(spark, repository.core)
    plan = collection.make_plan(datetime.now(UTC) + SOON)
    assert len(plan.layer(Layer.CHUNKS)) > 0
    if generation == "1":
        # A branch on a snapshot that was garbage a moment ago: all of it is needed again.
        repository.create_branch("saved", ids["doomed 2"])
    later = write(repository, "main", 9, "later")
    collection.carry_out(plan)
    again = Repository.open(LocalStorage(tmp_path / "one"))
    assert again.verify().ok
    assert again.lookup_branch("main") == later
    expected = {"main", "side", *(["saved"] if generation == "1" else [])}
    assert set(again.list_branches()) == expected


class Sharded(Place):
    """A folder that is listed like a bucket."""

    __slots__ = ()

    def shards(self) -> tuple[str, ...]:
        return tuple("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def test_shards_together_are_the_folder(tmp_path: Path) -> None:
    live_in(LocalStorage(tmp_path / "one"), "1")
    core = Repository.open(LocalStorage(tmp_path / "one")).core
    place = Sharded(core.storage, core.generation)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(32))], names=["id"])
    rows = pa.Table.from_batches(list_shards(place, "chunks/", None, iter([numbers])))
    whole = list_objects(core.storage, "chunks/")
    assert rows["id"].to_pylist() == [row.tobytes() for row in to_rows(whole.ids)]
    assert rows["size"].to_pylist() == whole.sizes.tolist()
    assert rows["created"].to_pylist() == whole.created.tolist()
    assert len(rows) > 10
    assert len(Place.of(core).shards()) == 1
