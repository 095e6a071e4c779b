"""Expiring shortens histories and leaves every value."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from support.maintenance import (
    GENERATIONS,
    Clock,
    everything,
    keys,
    layout_of,
    live_in,
    lived_in,
    write,
)

from airflow_provider_icechunk.engine.maintenance.retention import RetentionPolicy
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import MaintenanceError


def messages(repo: Repository, branch: str = "main") -> list[str]:
    return [info.message for info in repo.ancestry(branch=branch)]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_old_snapshots_leave_the_history_and_young_ones_stay(generation: str) -> None:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    repo = Repository.open(storage, world=clock.world())
    third = repo.lookup_snapshot(ids["third"])
    before, stored = everything(storage), keys(storage)
    # In generation `2` what a tag names stays in the history of all.
    tagged = ["second"] if generation == "2" else []
    expired = {ids["first"], ids["second"]} - {ids[name] for name in tagged}
    assert repo.expire_snapshots(third.written_at, dry_run=True) == expired
    assert messages(repo) == ["fourth", "third", "second", "first", "Repository initialized"]
    assert repo.expire_snapshots(third.written_at) == expired
    assert messages(repo) == ["fourth", "third", *tagged, "Repository initialized"]
    edited = repo.lookup_snapshot(ids["third"])
    assert (edited.id, edited.written_at, edited.message, edited.metadata) == (
        third.id,
        third.written_at,
        third.message,
        third.metadata,
    )
    assert edited.manifests == third.manifests
    assert everything(storage) == before
    assert keys(storage) - keys(storage, "overwritten/") == stored - keys(storage, "overwritten/")
    assert repo.expire_snapshots(third.written_at) == set()
    assert repo.verify().ok


@pytest.mark.parametrize("generation", GENERATIONS)
def test_expired_branches_and_tags_go_when_asked_and_main_never(
    generation: str, tmp_path: Path
) -> None:
    storage = LocalStorage(tmp_path, durable=False)
    live_in(storage, generation)
    repo = Repository.open(storage)
    limit = storage.now() + timedelta(days=1)
    plan = repo.plan_expiration(RetentionPolicy(limit, None, True, True))
    tags = {"v1"} if generation == "alpha1" else set()
    assert {ref.name for ref in plan.refs if ref.delete} == {"v1", "side"} - tags
    repo.expire_snapshots(limit, delete_expired_branches=True, delete_expired_tags=True)
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == tags
    assert messages(repo) == ["fourth", "Repository initialized"]
    repo.garbage_collect(limit)
    assert len(keys(storage, layout_of(storage).snapshots)) == 2 + len(tags)
    assert repo.verify().ok


@pytest.mark.parametrize("generation", GENERATIONS)
def test_keep_last_keeps_that_many_of_every_branch(generation: str) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    repo = Repository.open(storage, world=clock.world())
    limit = clock.wait(days=30)
    if generation == "2":
        repo.delete_tag("v1")
    repo.expire_snapshots(limit, keep_last=2)
    assert messages(repo) == ["fourth", "third", "Repository initialized"]
    assert messages(repo, "side") == ["side 1", "third", "Repository initialized"]
    write(repo, "main", 0, "fifth")
    repo.expire_snapshots(limit, keep_last=2)
    assert messages(repo) == ["fifth", "fourth", "third", "Repository initialized"]
    repo.delete_branch("side")
    repo.expire_snapshots(limit, keep_last=2)
    assert messages(repo) == ["fifth", "fourth", "Repository initialized"]
    assert repo.verify().ok


def test_an_open_repository_of_the_same_process_sees_the_new_history() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    repo = Repository.open(storage, world=clock.world())
    assert len(messages(repo)) == 5
    repo.expire_snapshots(clock.now)
    assert len(messages(repo)) == 2


def test_a_history_that_cannot_be_read_is_not_touched() -> None:
    clock = Clock()
    storage, ids = lived_in("1", clock)
    storage.delete([f"snapshots/{ids['second']}"])
    before = dict(storage.objects)
    with pytest.raises(MaintenanceError, match=ids["second"]):
        Repository.open(storage).expire_snapshots(clock.now)
    assert dict(storage.objects) == before
