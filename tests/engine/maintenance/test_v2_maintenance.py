"""Expiration and collection of generation `2`: one write decides, then files go."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.maintenance.collect import Collection
from airflow_provider_icechunk.engine.maintenance.retention import RetentionPolicy
from airflow_provider_icechunk.engine.refs.v2 import V2Refs
from airflow_provider_icechunk.exceptions import MaintenanceError, NotFoundError, ReadOnlyError

FIRST = "1CECHNKREP0F1RSTCMT0"
Kinds = icechunk.UpdateType


@pytest.fixture
def repo() -> icechunk.Repository:
    """Five commits on `main` beside the first snapshot; every one writes another row."""
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=2)
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array(
        "a", data=np.zeros((8, 1000)), chunks=(1, 1000), compressors=None
    )
    session.commit("0")
    for row in range(1, 5):
        write(repo, row).commit(str(row))
    return repo


def write(repo: icechunk.Repository, row: int, branch: str = "main") -> icechunk.Session:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a", mode="r+")[row] = row
    return session


def tomorrow() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def history(repo: icechunk.Repository) -> list[str]:
    return [info.message for info in repo.ancestry(branch="main")]


def rows(repo: icechunk.Repository) -> list[float]:
    store = repo.readonly_session("main").store
    return zarr.open_array(store, path="a", mode="r")[:, 0].tolist()


def count(repo: icechunk.Repository, folder: str) -> int:
    return len(list(repo.storage.scan(folder)))


def test_expiration_leaves_the_tip_and_the_first_snapshot(repo):
    before = [info.id for info in repo.ancestry(branch="main")]
    changed = repo.diff(from_snapshot_id=FIRST, to_branch="main")
    assert repo.expire_snapshots(tomorrow(), dry_run=True) == set(before[1:-1])
    assert len(history(repo)) == 6
    assert repo.expire_snapshots(tomorrow()) == set(before[1:-1])
    assert history(repo) == ["4", "Repository initialized"]
    assert next(repo.ops_log()).kind == Kinds.ExpirationRan()
    after = repo.diff(from_snapshot_id=FIRST, to_branch="main")
    assert after == changed
    assert after.updated_chunks == changed.updated_chunks
    assert repo.expire_snapshots(tomorrow()) == set()


def test_a_minimum_number_of_snapshots_can_be_kept(repo):
    repo.expire_snapshots(tomorrow(), keep_last=3)
    assert history(repo) == ["4", "3", "2", "Repository initialized"]


def test_plans_say_what_becomes_of_each_reference(repo):
    ids = [info.id for info in repo.ancestry(branch="main")]
    repo.create_tag("old", ids[3])
    repo.create_branch("stale", ids[2])
    plan = repo.plan_expiration(RetentionPolicy(tomorrow(), None, True, True))
    told = {(ref.type, ref.name): (ref.delete, ref.kept) for ref in plan.refs}
    assert told == {
        ("branch", "main"): (False, 2),
        ("branch", "stale"): (True, 0),
        ("tag", "old"): (True, 0),
    }
    repo.expire_snapshots(tomorrow(), delete_expired_branches=True, delete_expired_tags=True)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())


def test_collection_deletes_what_expired_but_keeps_the_logs_that_count(repo):
    expected = rows(repo)
    changed = repo.diff(from_snapshot_id=FIRST, to_branch="main")
    write(repo, 7).flush("aside")
    repo.expire_snapshots(tomorrow())
    planned = repo.garbage_collect(tomorrow(), dry_run=True)
    summary = repo.garbage_collect(tomorrow())
    assert summary.snapshots_deleted == planned.snapshots_deleted == 5
    assert summary.chunks_deleted > 0
    assert (count(repo, "snapshots/"), count(repo, "transactions/")) == (2, 6)
    assert next(repo.ops_log()).kind == Kinds.GCRan()
    again = icechunk.Repository.open(repo.storage)
    assert rows(again) == expected
    assert again.diff(from_snapshot_id=FIRST, to_branch="main").updated_chunks == (
        changed.updated_chunks
    )
    assert len(V2Refs(repo.storage).info().snapshots) == 2
    write(again, 6).commit("on")
    assert rows(again)[6] == 6


def test_logs_that_count_after_an_expiry_are_not_reported_as_unreachable(repo):
    repo.expire_snapshots(tomorrow())
    repo.garbage_collect(tomorrow())
    assert icechunk.Repository.open(repo.storage).verify().findings == ()


def test_young_snapshots_without_a_name_stay_with_all_they_need(repo):
    aside = write(repo, 7).flush("aside")
    summary = repo.garbage_collect(datetime.now(UTC) - timedelta(days=1))
    assert summary.snapshots_deleted == 0
    repo.create_branch("dev", aside)
    store = repo.readonly_session("dev").store
    assert zarr.open_array(store, path="a", mode="r")[7, 0] == 7


def test_old_snapshots_without_a_name_go_from_the_list_first(repo):
    aside = write(repo, 7).flush("aside")
    repo.garbage_collect(tomorrow())
    with pytest.raises(NotFoundError):
        repo.create_branch("dev", aside)


def test_a_snapshot_named_after_the_plan_is_not_deleted(repo):
    aside = write(repo, 7).flush("aside")
    collection = Collection(repo._core)
    plan = collection.make_plan(tomorrow())
    repo.create_branch("dev", aside)
    summary = collection.carry_out(plan)
    assert summary.snapshots_deleted == 0
    store = repo.readonly_session("dev").store
    assert zarr.open_array(store, path="a", mode="r")[7, 0] == 7


def test_a_name_given_at_the_last_moment_stops_the_collection(repo, monkeypatch):
    write(repo, 7).flush("aside")
    collection = Collection(repo._core)
    plan = collection.make_plan(tomorrow())
    files = count(repo, "snapshots/")
    original = V2Refs.update

    def late(self, change, **options):
        if type(change).__name__ == "Collect" and change.drop:
            monkeypatch.setattr(V2Refs, "update", original)
            (aside,) = change.drop
            V2Refs(self.storage).create_branch("dev", aside)
        return original(self, change, **options)

    monkeypatch.setattr(V2Refs, "update", late)
    with pytest.raises(MaintenanceError, match="nothing was deleted"):
        collection.carry_out(plan)
    assert count(repo, "snapshots/") == files


def test_commits_during_collection_survive(repo):
    stop = threading.Event()
    made: list[str] = []

    def commit() -> None:
        while not stop.is_set() and len(made) < 40:
            made.append(write(repo, 5).commit("busy"))

    thread = threading.Thread(target=commit)
    thread.start()
    for _ in range(3):
        repo.garbage_collect(datetime.now(UTC) - timedelta(hours=1))
    stop.set()
    thread.join()
    assert history(repo).count("busy") == len(made) > 0
    assert rows(repo)[5] == 5


def test_a_read_only_repository_is_not_maintained(repo):
    write(repo, 7).flush("aside")
    files = count(repo, "")
    repo.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.read_only))
    for call in (repo.expire_snapshots, repo.garbage_collect):
        with pytest.raises(ReadOnlyError):
            call(tomorrow())
    assert count(repo, "") == files + 1


def test_sound_repositories_are_found_sound_and_measured(repo):
    repo.expire_snapshots(tomorrow())
    report = repo.verify()
    assert report.ok, report
    assert repo.chunk_storage_stats().native_bytes > 0
    assert repo.measure()
