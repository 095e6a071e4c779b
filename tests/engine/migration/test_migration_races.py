"""Writers that work on while their repository is migrated: nothing that they commit is lost."""

from __future__ import annotations

from contextlib import suppress

import pytest
from support.arrays import put
from support.maintenance import Clock, chunk, clone, every_pause, write
from test_migration_crashes import small

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.migration.ref_sets import record_key
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import ConflictError, MaintenanceError

PAIRS = [("1", "2"), ("alpha", "1"), ("draft", "2"), ("alpha1", "1")]


def messages(storage: Storage, branch: str = "main") -> list[str]:
    return [info.message for info in Repository.open(storage).ancestry(branch=branch)]


@pytest.mark.parametrize(
    ("generation", "to", "step"),
    [
        *((*pair, step) for pair, step in zip(PAIRS, (2, 5, 8, 8), strict=True)),
        *(pytest.param(*pair, 1, marks=pytest.mark.long) for pair in PAIRS),
    ],
)
def test_a_commit_of_an_old_session_at_any_moment_is_found_again(generation, to, step):
    clock = Clock()
    base = small(generation, clock)
    sessions = {}

    def prepare() -> MemoryStorage:
        storage = clone(base, clock)
        session = Repository.open(storage, world=clock.world()).writable_session("main")
        put(session, "/a", (3,), chunk("late"))
        sessions[id(storage)] = session
        return storage

    def act(storage: Storage) -> None:
        icechunk.migrate(storage, to, fence_old=False, world=clock.world())

    def commit(storage: Storage) -> None:
        sessions[id(storage)].commit("late")

    for name, left in every_pause(prepare, act, commit, step=step):
        # What came after the last look is brought over when it is looked again.
        act(left)
        assert messages(left) == ["late", *messages(base)], name
        assert Repository.open(left).spec_version == to, name
        assert Repository.open(left).verify().ok, name


@pytest.mark.parametrize("remove", [False, True], ids=["being fenced", "removed"])
@pytest.mark.parametrize(
    ("generation", "to", "step"),
    [
        *((*pair, step) for pair, step in zip(PAIRS, (2, 4, 8, 8), strict=True)),
        *(pytest.param(*pair, 1, marks=pytest.mark.long) for pair in PAIRS),
    ],
)
def test_while_the_old_references_are_fenced_in_or_removed_a_commit_is_in_or_refused(
    generation, to, step, remove
):
    clock = Clock()
    base = small(generation, clock)
    sessions, refused, alive = {}, [], []

    def prepare() -> MemoryStorage:
        storage = clone(base, clock)
        session = Repository.open(storage, world=clock.world()).writable_session("main")
        put(session, "/a", (3,), chunk("late"))
        sessions[id(storage)] = session
        alive.append(storage)
        return storage

    def act(storage: Storage) -> None:
        icechunk.migrate(storage, to, world=clock.world(), remove_old=remove)

    def commit(storage: Storage) -> None:
        try:
            sessions[id(storage)].commit("late")
        except icechunk.IcechunkError:
            refused.append(storage)

    for name, left in every_pause(prepare, act, commit, step=step):
        told = any(left is one for one in refused)
        assert messages(left) == [*(() if told else ("late",)), *messages(base)], name
    # Large steps may pass over the few calls after the last fence.
    assert refused or (step > 1 and not remove)


def migrated(generation: str, to: str) -> tuple[MemoryStorage, Repository, Clock]:
    """A migrated repository without fences, and a handle that was opened before."""
    clock = Clock()
    storage = small(generation, clock)
    old = Repository.open(storage, world=clock.world())
    icechunk.migrate(storage, to, fence_old=False, world=clock.world())
    clock.wait(hours=1)
    return storage, old, clock


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_everything_that_old_handles_do_to_references_is_followed(generation, to):
    storage, old, clock = migrated(generation, to)
    late = write(old, "main", 3, "late")
    clock.wait(hours=1)
    write(old, "main", 3, "later")
    old.create_branch("new", late)
    write(old, "new", 2, "on the new branch")
    old.reset_branch("side", old.lookup_branch("main"))
    old.create_tag("late tag", late)
    result = icechunk.migrate(storage, to, world=clock.world(), remove_old=True)
    assert result.followed == 4
    assert result.removed > 0
    assert messages(storage)[:2] == ["later", "late"]
    assert messages(storage, "side") == messages(storage)
    assert messages(storage, "new")[:2] == ["on the new branch", "late"]
    repo = Repository.open(storage)
    assert repo.lookup_snapshot(repo.lookup_tag("late tag")).message == "late"
    assert repo.verify().ok


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_a_late_commit_that_only_a_tag_names_comes_along(generation, to):
    storage, old, clock = migrated(generation, to)
    head = old.lookup_branch("main")
    late = write(old, "main", 3, "late")
    old.create_tag("late tag", late)
    old.reset_branch("main", head)
    icechunk.migrate(storage, to, world=clock.world(), remove_old=True)
    repo = Repository.open(storage)
    assert repo.lookup_snapshot(repo.lookup_tag("late tag")).message == "late"
    assert "late" not in messages(storage)
    assert repo.verify().ok


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_deletions_of_old_handles_are_followed(generation, to):
    storage, old, clock = migrated(generation, to)
    old.delete_branch("side")
    if generation != "alpha1":
        old.delete_tag("v1")
    icechunk.migrate(storage, to, world=clock.world())
    repo = Repository.open(storage)
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == ({"v1"} if generation == "alpha1" else set())


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_work_on_both_sides_is_a_conflict_and_both_stay(generation, to):
    storage, old, clock = migrated(generation, to)
    write(old, "main", 3, "old side")
    write(Repository.open(storage, world=clock.world()), "main", 3, "new side")
    for _ in range(2):
        with pytest.raises(ConflictError, match="branch 'main' changed in the old repository"):
            icechunk.migrate(storage, to, world=clock.world(), remove_old=True)
    assert messages(storage)[0] == "new side"
    assert next(iter(old.ancestry(branch="main"))).message == "old side"


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_an_old_session_cannot_commit_after_the_removal(generation, to):
    clock = Clock()
    storage = small(generation, clock)
    session = Repository.open(storage, world=clock.world()).writable_session("main")
    put(session, "/a", (3,), chunk("too late"))
    icechunk.migrate(storage, to, remove_old=True, world=clock.world())
    with pytest.raises(icechunk.IcechunkError):
        session.commit("too late")
    assert "too late" not in messages(storage)


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_life_in_the_new_repository_is_no_news_from_the_old_one(generation, to):
    storage, _, clock = migrated(generation, to)
    repo = Repository.open(storage, world=clock.world())
    head = write(repo, "main", 3, "new life")
    repo.create_tag("new tag", head)
    repo.create_tag("short", head)
    repo.delete_tag("short")
    repo.delete_tag("v1")
    repo.delete_branch("side")
    before = {key: found.version for key, found in storage.objects.items() if "snap" in key}
    result = icechunk.migrate(storage, to, world=clock.world(), remove_old=True)
    assert result.followed == 0
    assert result.removed > 0
    after = {key: found.version for key, found in storage.objects.items() if "snap" in key}
    assert after == before
    repo = Repository.open(storage)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, {"new tag"})
    assert messages(storage)[0] == "new life"


def test_without_a_record_only_what_is_listed_may_be_removed():
    storage, old, clock = migrated("1", "2")
    storage.delete([record_key("1")])
    again = icechunk.migrate(storage, "2", fence_old=False, world=clock.world())
    assert again.leftovers == ("1",)
    write(old, "main", 3, "unknown")
    with pytest.raises(MaintenanceError, match="there is no record"):
        icechunk.migrate(storage, "2", remove_old=True, world=clock.world())
    assert "refs/branch.main/ref.json" in storage.objects


def test_of_two_migrations_at_once_one_wins_and_nothing_breaks():
    clock = Clock()
    base = small("alpha", clock)
    expected = messages(base)

    def act(storage: Storage) -> None:
        with suppress(ConflictError):
            icechunk.migrate(storage, "1", world=clock.world())

    for name, left in every_pause(lambda: clone(base, clock), act, act, step=4):
        assert messages(left) == expected, name
        assert Repository.open(left).spec_version == "1", name
        assert Repository.open(left).list_branches() == {"main", "side"}, name
