"""Expiration beside writers and through crashes: histories get shorter, nothing else happens."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.maintenance import (
    CRASHES,
    Clock,
    clone,
    every_pause,
    everything,
    lived_in,
    write,
)

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import ConflictError
from airflow_provider_icechunk.testing.storages import every_crash


def history(storage: Storage, branch: str = "main") -> list[str]:
    return [info.message for info in Repository.open(storage).ancestry(branch=branch)]


LONG = ["fourth", "third", "second", "first", "Repository initialized"]
SHORT = ["fourth", "Repository initialized"]


@pytest.mark.parametrize(("generation", "step"), CRASHES)
def test_dying_at_any_call_of_an_expiration_leaves_the_long_or_the_short_history(
    generation: str, step: int
) -> None:
    clock = Clock()
    base, _ = lived_in(generation, clock)
    values = everything(base)
    clock.wait(days=10)

    def scenario(storage: Storage) -> None:
        repo = Repository.open(storage, world=clock.world())
        repo.expire_snapshots(clock.now, delete_expired_branches=True, delete_expired_tags=True)

    # Tags of `alpha1` are for ever: the line of one is cut before that of the branch.
    between = [["fourth", "third", "second", "Repository initialized"]] * (generation == "alpha1")
    seen = set()
    for point in every_crash(scenario, make=lambda: clone(base, clock), step=step):
        seen.add(len(history(point.storage)))
        assert history(point.storage) in (LONG, SHORT, *between), point
        left = everything(point.storage)
        assert left["branch main"] == values["branch main"], point
        assert all(values[name] == content for name, content in left.items()), point
        repo = Repository.open(point.storage, world=clock.world())
        write(repo, "main", 13, "after the crash")
        if point.name.startswith(("put", "delete", "settle")):
            assert repo.verify().ok, point
    assert seen == {len(LONG), len(SHORT), *map(len, between)}


@pytest.mark.parametrize(("generation", "step"), CRASHES)
def test_a_commit_at_any_moment_of_an_expiration_stays(generation: str, step: int) -> None:
    clock = Clock()
    base, _ = lived_in(generation, clock)
    clock.wait(days=10)
    limit = clock.wait(hours=1)

    def scenario(storage: Storage) -> None:
        repo = Repository.open(storage, world=clock.world())
        repo.expire_snapshots(limit, delete_expired_branches=True)

    def commit(storage: Storage) -> None:
        repo = Repository.open(storage, world=clock.world())
        write(repo, "main", 8, "meanwhile")

    for name, left in every_pause(lambda: clone(base, clock), scenario, commit, step=step):
        assert history(left)[0] == "meanwhile", name
        assert Repository.open(left).verify().ok, name
        scenario(left)
        assert history(left) == ["meanwhile", "Repository initialized"], name


def test_a_branch_that_moved_after_the_decision_is_not_deleted() -> None:
    clock = Clock()
    base, _ = lived_in("1", clock)
    clock.wait(days=10)

    def scenario(storage: Storage) -> None:
        repo = Repository.open(storage, world=clock.world())
        repo.expire_snapshots(clock.now, delete_expired_branches=True)

    def commit(storage: Storage) -> None:
        repo = Repository.open(storage, world=clock.world())
        if "side" in repo.list_branches():
            write(repo, "side", 8, "meanwhile")

    lost = []
    for name, left in every_pause(lambda: clone(base, clock), scenario, commit):
        branches = Repository.open(left).list_branches()
        if "side" in branches:
            assert history(left, "side")[0] == "meanwhile"
        else:
            lost.append(name.split(": ")[1])
    # The gap that the format leaves: between the last look and the deletion itself.
    assert all(name.startswith(("head", "delete")) or "refs/" in name for name in lost), lost
    assert len(lost) <= 4


def test_a_session_on_an_expired_snapshot_can_still_commit_to_its_branch() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    clock.wait(days=10)
    repo = Repository.open(storage, world=clock.world())
    session = repo.writable_session("main")
    session.tree.put_chunk("/a", (9,), b"in between" * 100)
    Repository.open(storage, world=clock.world()).expire_snapshots(clock.now)
    session.commit("over an expired head")
    assert history(storage) == ["over an expired head", *SHORT]
    assert Repository.open(storage).verify().ok


def test_a_session_whose_base_left_the_history_is_told_to_start_again() -> None:
    from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector

    clock = Clock()
    storage, _ = lived_in("1", clock)
    repo = Repository.open(storage, world=clock.world())
    session = repo.writable_session("main")
    session.tree.put_chunk("/a", (9,), b"in between" * 100)
    clock.wait(days=1)
    write(repo, "main", 1, "fifth")
    limit = clock.wait(days=1)
    write(repo, "main", 1, "sixth")
    other = Repository.open(storage, world=clock.world())
    other.expire_snapshots(limit)
    other.garbage_collect(limit + timedelta(days=1))
    late = Repository.open(storage, world=clock.world())._core
    session.tree.core = late
    with pytest.raises(ConflictError):
        session.commit("too late", rebase_with=ConflictDetector())
    assert history(storage) == ["sixth", "Repository initialized"]
