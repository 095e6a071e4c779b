"""Collection deletes what nothing names and is old, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from support.arrays import put
from support.maintenance import (
    GENERATIONS,
    WITHOUT_LOGS,
    Clock,
    chunk,
    everything,
    keys,
    layout_of,
    live_in,
    lived_in,
    write,
)

from airflow_provider_icechunk.engine.format.ids import encode_many
from airflow_provider_icechunk.engine.maintenance import collect as collecting
from airflow_provider_icechunk.engine.maintenance.collect import Collection
from airflow_provider_icechunk.engine.maintenance.collect_plan import Layer
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Absent, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import NotFoundError

Make = Callable[[], Storage]


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path, durable=False)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_collection_removes_all_garbage_and_no_value(storage: Storage, generation: str) -> None:
    live_in(storage, generation)
    storage.put("notes.txt", b"mine", expect=Absent())
    folder, logs = layout_of(storage).chunks, 0 if generation in WITHOUT_LOGS else 3
    storage.put(f"{folder}notes.txt", b"mine", expect=Absent())
    before, stored = everything(storage), keys(storage)
    limit = storage.now() + timedelta(days=1)
    repo = Repository.open(storage)
    dry = repo.garbage_collect(limit, dry_run=True)
    assert keys(storage) == stored
    assert dry.dry_run
    summary = repo.garbage_collect(limit)
    assert {**summary.as_dict(), "dry_run": True} == dry.as_dict()
    assert summary.complete
    assert (summary.snapshots_deleted, summary.transaction_logs_deleted) == (3, logs)
    assert (summary.manifests_deleted, summary.chunks_deleted) == (3, 4)
    assert summary.job_files_deleted == 1
    assert len(stored - keys(storage)) == 11 + logs
    assert {"notes.txt", f"{folder}notes.txt"} <= keys(storage)
    assert {key for key in stored if key.startswith(("refs/", "r/", "state", "repo"))} <= keys(
        storage
    )
    assert everything(storage) == before
    assert [finding.what for finding in repo.verify().findings] == []
    assert len(Collection(repo._core).make_plan(limit)) == 0
    json.dumps(summary.as_dict())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_young_objects_stay_whatever_names_them(generation: str) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    stored = keys(storage)
    repo = Repository.open(storage, world=clock.world())
    assert repo.garbage_collect(clock.now - timedelta(days=1)).bytes_deleted == 0
    clock.wait(days=1)
    assert repo.garbage_collect(clock.now, minimum_age=timedelta(days=2)).bytes_deleted == 0
    left = keys(storage)
    assert stored <= left
    # An operations log, where there is one, has the two collections that found nothing.
    assert all(key.startswith("overwritten/") for key in left - stored)
    middle = clock.now - timedelta(days=1, hours=1, minutes=30)
    # Of the deleted branch only the older snapshot is that old: the younger one stands on it.
    assert repo.garbage_collect(middle).snapshots_deleted == 0


def test_expired_snapshots_are_collected_with_their_chunks() -> None:
    clock = Clock()
    storage, ids = lived_in("1", clock)
    limit = clock.wait(days=10)
    repo = Repository.open(storage, world=clock.world())
    repo.garbage_collect(limit)
    before = everything(storage)
    repo.expire_snapshots(limit)
    summary = repo.garbage_collect(limit)
    assert (summary.snapshots_deleted, summary.chunks_deleted) == (2, 1)
    assert everything(storage) == before
    with pytest.raises(NotFoundError):
        repo.readonly_session(snapshot_id=ids["first"])


def test_a_chunk_file_shared_by_many_references_lives_as_long_as_one_of_them() -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    world = clock.world()
    live_in(storage, clock=clock, packing=Packing(below=1 << 20))
    repo = Repository.open(storage, world=world)
    before = everything(storage)
    clock.wait(days=10)
    repo.expire_snapshots(clock.now)
    repo.garbage_collect(clock.now)
    assert everything(storage) == before
    assert repo.verify().ok
    sizes = repo.chunk_storage_stats()
    assert sizes.native_bytes == 4 * len(chunk("first 0")) + sum(
        len(chunk(text)) for text in ("second", "third", "fourth", "side 1")
    ) - len(chunk("first 0"))


def test_snapshots_are_deleted_in_bounded_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_SPARE_BYTES", 1)
    clock = Clock()
    storage, _ = lived_in("1", clock)
    clock.wait(days=1)
    before = everything(storage)
    summary = Repository.open(storage).garbage_collect(clock.now)
    assert summary.snapshots_deleted == 3
    assert everything(storage) == before


def test_a_plan_can_be_looked_at_and_thrown_away() -> None:
    clock = Clock()
    storage, ids = lived_in("1", clock)
    clock.wait(days=1)
    stored = keys(storage)
    plan = Collection(Repository.open(storage)._core).make_plan(clock.now)
    assert set(plan.layer(Layer.SNAPSHOTS).keys()) == {
        f"snapshots/{ids[name]}" for name in ("doomed 1", "doomed 2", "flushed")
    }
    assert plan.layer(Layer.JOBS).keys() == ["jobs/old/fragment-0"]
    assert len(plan) == 14
    assert (
        plan.total_bytes
        == Repository.open(storage).garbage_collect(clock.now, dry_run=True).bytes_deleted
    )
    assert json.loads(json.dumps(plan.as_dict()))["chunks"]["count"] == 4
    assert keys(storage) == stored


def test_what_was_read_into_the_cache_is_not_read_from_it_after_collection() -> None:
    clock = Clock()
    storage, ids = lived_in("1", clock)
    clock.wait(days=1)
    repo = Repository.open(storage, world=clock.world())
    repo.readonly_session(snapshot_id=ids["doomed 2"])
    repo.garbage_collect(clock.now)
    with pytest.raises(NotFoundError):
        repo.create_branch("rescued", ids["doomed 2"])


def test_many_chunks_are_listed_and_deleted_in_batches() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    names = encode_many(np.random.default_rng(0).integers(0, 256, (20_500, 12)).astype(np.uint8))
    for name in names.tolist():
        storage.put(f"chunks/{name.decode()}", b"", expect=Absent())
    clock.wait(days=1)
    before = everything(storage)
    summary = Repository.open(storage).garbage_collect(clock.now)
    assert summary.chunks_deleted == 20_504
    assert everything(storage) == before


def test_a_commit_in_progress_is_protected_by_the_age_of_its_chunks() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    repo = Repository.open(storage, world=clock.world())
    clock.wait(days=2)
    started = clock.now
    session = repo.writable_session("main")
    put(session, "/a", (9,), chunk("slow"))
    session.tree.writer.flush()
    clock.wait(days=1)
    repo.garbage_collect(started)
    session.commit("slow")
    write(repo, "main", 10, "next")
    assert repo.verify().ok
