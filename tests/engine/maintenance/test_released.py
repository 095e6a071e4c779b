"""Collection after an expiration, from its list of released snapshots instead of listings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from support.maintenance import (
    GENERATIONS,
    Clock,
    clone,
    everything,
    keys,
    layout_of,
    lived_in,
    snapshot_key,
    write,
)

from airflow_provider_icechunk.engine.leases import Lease
from airflow_provider_icechunk.engine.maintenance.retention import ExpirationPlan, RetentionPolicy
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Anything, Listed
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.world import to_micros
from airflow_provider_icechunk.exceptions import InvalidInputError, MaintenanceError
from airflow_provider_icechunk.testing.storages import WrappedStorage


class Scanned(WrappedStorage):
    """Remembers which folders were listed."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.folders: set[str] = set()

    def scan(self, prefix: str) -> Iterator[Listed]:
        self.folders.add(prefix)
        return self.inner.scan(prefix)


def expired(generation: str, clock: Clock) -> tuple[MemoryStorage, ExpirationPlan]:
    """A repository without garbage whose older half has just left the history."""
    storage, _ = lived_in(generation, clock)
    repo = Repository.open(storage, world=clock.world())
    for number in range(4):
        write(repo, "main", 3, f"value {number}")
    clock.wait(days=10)
    write(repo, "main", 4, "new")
    clock.wait(days=2)
    repo.garbage_collect(clock.now)
    plan = repo.expire(RetentionPolicy(clock.now - timedelta(days=5)))
    assert len(plan.leaving) >= 4
    return storage, plan


@pytest.mark.parametrize("generation", GENERATIONS)
def test_it_deletes_what_a_whole_collection_deletes_and_lists_no_large_folder(
    generation: str,
) -> None:
    clock = Clock()
    storage, plan = expired(generation, clock)
    whole = clone(storage, clock)
    seen, watched, layout = everything(storage), Scanned(storage), layout_of(storage)

    summary = Repository.open(watched, world=clock.world()).collect(clock.now, released=plan)
    expected = Repository.open(whole, world=clock.world()).collect(clock.now)

    assert summary.as_dict() == expected.as_dict()
    assert summary.snapshots_deleted >= 4
    assert summary.chunks_deleted
    large = {layout.chunks, layout.manifests, layout.transactions, layout.attributes}
    assert not watched.folders & large
    assert keys(storage, layout.chunks) == keys(whole, layout.chunks)
    assert keys(storage, layout.manifests) == keys(whole, layout.manifests)
    assert everything(storage) == seen
    assert Repository.open(storage).verify().ok


@pytest.mark.parametrize("generation", [one for one in GENERATIONS if one != "2"])
def test_a_released_snapshot_that_is_in_use_again_stays_with_all_it_needs(generation: str) -> None:
    clock = Clock()
    storage, plan = expired(generation, clock)
    repo = Repository.open(storage, world=clock.world())
    rescued = max(map(plan.format_id, plan.leaving))
    repo.create_tag("rescued", rescued)
    seen = everything(storage)

    repo.collect(clock.now, released=plan)

    assert everything(storage) == seen
    assert Repository.open(storage).verify().ok


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_list_that_names_what_is_in_use_or_nothing_at_all_deletes_nothing(
    generation: str,
) -> None:
    clock = Clock()
    storage, plan = expired(generation, clock)
    repo = Repository.open(storage, world=clock.world())
    live = [info.id for info in repo.ancestry(branch="main")]
    unknown = plan.format_id(bytes(len(next(iter(plan.leaving)))))
    before = keys(storage)

    summary = repo.collect(clock.now, released=[*live, unknown])

    assert summary.snapshots_deleted == summary.chunks_deleted == 0
    assert keys(storage) >= before
    assert repo.collect(clock.now, released=[]).bytes_deleted == 0
    with pytest.raises(InvalidInputError, match="snapshot id"):
        repo.collect(clock.now, released=["nothing"])


def test_what_is_younger_than_the_cut_off_stays() -> None:
    clock = Clock()
    storage, plan = expired("1", clock)
    before = keys(storage)

    Repository.open(storage, world=clock.world()).collect(
        clock.now - timedelta(days=365), released=plan
    )

    assert keys(storage) == before


def test_a_lease_from_before_holds_the_cut_off_back() -> None:
    clock = Clock()
    storage, plan = expired("1", clock)
    lease = Lease(0, to_micros(clock.now) // (6 * 3_600_000_000), "0" * 32)
    storage.put(lease.key, b"", expect=Anything())
    before = keys(storage)

    summary = Repository.open(storage, world=clock.world()).collect(clock.now, released=plan)

    assert summary.plan is not None
    assert summary.plan.leases == 1
    assert keys(storage) == before


@pytest.mark.parametrize("kind", ["snapshots", "manifests"])
def test_unreadable_metadata_in_use_stops_it_before_the_first_delete(kind: str) -> None:
    clock = Clock()
    storage, plan = expired("1", clock)
    repo = Repository.open(storage, world=clock.world())
    head = repo.readonly_session("main").tree.base
    key = snapshot_key(storage, repo.lookup_branch("main"))
    if kind == "manifests":
        key = layout_of(storage).manifest(next(iter(head.manifest_files)))
    storage.put(key, b"something else", expect=Anything())
    before = keys(storage)

    with pytest.raises(MaintenanceError, match="in use but cannot be read"):
        Repository.open(storage, world=clock.world()).collect(clock.now, released=plan)

    assert keys(storage) == before


def test_damage_in_what_was_released_costs_only_what_it_names() -> None:
    clock = Clock()
    storage, plan = expired("1", clock)
    seen = everything(storage)
    broken = snapshot_key(storage, plan.format_id(min(plan.leaving)))
    storage.put(broken, b"something else", expect=Anything())
    clock.wait(days=1)

    summary = Repository.open(storage, world=clock.world()).collect(clock.now, released=plan)

    assert summary.complete
    assert broken not in keys(storage)
    assert everything(storage) == seen
