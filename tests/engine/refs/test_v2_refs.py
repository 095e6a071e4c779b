"""One object for everything mutable: races have one winner, nothing is lost, nothing half done."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_icechunk.engine.format.codec import Codec, Layout
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.v2 import repo
from airflow_provider_icechunk.engine.format.v2 import updates as ru
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Moved, Refs, Trust
from airflow_provider_icechunk.engine.refs.v2 import OVERWRITTEN, V2Refs
from airflow_provider_icechunk.engine.storage.base import Anything, Lost, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)
from airflow_provider_icechunk.testing.storages import WrappedStorage, every_crash

FIRST = INITIAL_SNAPSHOT_ID


def identity(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(12, "big"))


def snapshot(number: int, parent: SnapshotId | None = FIRST) -> Snapshot:
    return Snapshot(identity(number), parent, 1000 + number, f"commit {number}", {"n": number}, {})


FIRST_SNAPSHOT = Snapshot(FIRST, None, 1, "Repository initialized", {}, {})


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path, durable=False)


@pytest.fixture
def refs(storage: Storage) -> V2Refs:
    refs = V2Refs(storage)
    assert refs.initialize(FIRST_SNAPSHOT)
    return refs


def events(refs: V2Refs) -> list[repo.Event]:
    return [update.event for update in refs.operations()]


def test_they_are_refs(refs):
    as_protocol: Refs = refs
    assert as_protocol.generation is Generation.V2
    codec: Codec = refs.codec
    layout: Layout = refs.layout
    assert codec.generation is Generation.V2
    assert layout.snapshots == "snapshots/"
    assert as_protocol.holds_config


def test_of_two_creators_one_wins(refs):
    assert not V2Refs(refs.storage).initialize(FIRST_SNAPSHOT)
    assert refs.branches() == {"main": FIRST}


def test_commits_move_the_branch_and_know_their_parents(refs):
    assert refs.commit("main", FIRST, snapshot(1)) == Moved()
    assert refs.commit("main", identity(1), snapshot(2, identity(1))) == Moved()
    assert refs.commit("main", FIRST, snapshot(3)) == Behind(identity(2))
    assert refs.commit("nowhere", FIRST, snapshot(3)) == Behind(None)
    fresh = V2Refs(refs.storage)
    assert fresh.branch("main") == identity(2)
    orphaned = Snapshot(identity(2), None, 0, "as read from its file", {}, {})
    assert fresh.parent(orphaned) == identity(1)
    assert fresh.parent(Snapshot(FIRST, None, 0, "", {}, {})) is None


def test_a_commit_that_finds_itself_at_the_head_has_succeeded(refs):
    assert refs.commit("main", FIRST, snapshot(1)) == Moved()
    assert refs.commit("main", FIRST, snapshot(1)) == Moved()


def test_branches_and_tags_live_and_die(refs):
    refs.commit("main", FIRST, snapshot(1))
    assert refs.create_branch("dev", identity(1)) is Creation.CREATED
    assert refs.create_branch("dev", FIRST) is Creation.EXISTS
    assert refs.reset_branch("dev", FIRST, identity(1)) == Moved()
    assert refs.reset_branch("dev", identity(1), identity(1)) == Behind(FIRST)
    assert refs.create_tag("t", identity(1)) is Creation.CREATED
    assert refs.create_tag("t", FIRST) is Creation.EXISTS
    assert refs.tags() == {"t": identity(1)}
    assert refs.delete_tag("t")
    assert not refs.delete_tag("t")
    assert refs.create_tag("t", FIRST) is Creation.WAS_DELETED
    assert refs.deleted_tags() == ["t"]
    assert refs.delete_branch("dev")
    assert not refs.delete_branch("dev")
    assert not refs.delete_branch("main")
    assert events(refs) == [
        repo.BranchDeleted("dev", FIRST),
        repo.TagDeleted("t", identity(1)),
        repo.TagCreated("t"),
        repo.BranchReset("dev", identity(1)),
        repo.BranchCreated("dev"),
        repo.NewCommit("main", identity(1)),
        repo.RepoInitialized(),
    ]


def test_snapshots_that_are_not_listed_get_no_name(refs):
    for attempt in (
        lambda: refs.create_branch("dev", identity(7)),
        lambda: refs.create_tag("t", identity(7)),
        lambda: refs.reset_branch("main", identity(7), FIRST),
    ):
        with pytest.raises(NotFoundError, match="not listed"):
            attempt()
    refs.announce(snapshot(7))
    assert refs.create_branch("dev", identity(7)) is Creation.CREATED
    with pytest.raises(NotFoundError, match="not listed"):
        refs.announce(snapshot(9, identity(8)))


def test_the_configuration_is_conditional_on_itself_not_on_commits(refs):
    assert refs.config() is None
    config = RepositoryConfig()
    config.inline_chunk_threshold_bytes = 7
    version = refs.save_config(config, None)
    assert version is not None
    refs.commit("main", FIRST, snapshot(1))
    stored = refs.config()
    assert stored is not None
    assert (stored.config, stored.version) == (config, version)
    config.inline_chunk_threshold_bytes = 8
    assert refs.save_config(config, None) is None
    assert refs.save_config(config, version) is not None
    assert refs.save_config(config, version) is None


def test_each_update_leaves_a_copy_of_what_it_replaced(refs):
    before = refs.storage.get("repo").data
    refs.commit("main", FIRST, snapshot(1))
    (copy,) = refs.storage.scan(OVERWRITTEN)
    assert refs.storage.get(copy.key).data == before
    newest, oldest = refs.operations()
    assert newest.backup is None
    assert OVERWRITTEN + oldest.backup == copy.key
    name = copy.key.removeprefix(OVERWRITTEN).split(".")
    assert (name[0], len(name[1]), len(name[2])) == ("repo", 14, 20)


def test_a_long_log_continues_in_its_copies(storage):
    refs = V2Refs(storage)
    config = RepositoryConfig()
    config.num_updates_per_repo_info_file = 3
    refs = refs.following(config.resolved())
    refs.initialize(FIRST_SNAPSHOT, config)
    for number in range(1, 9):
        parent = identity(number - 1) if number > 1 else FIRST
        assert refs.commit("main", parent, snapshot(number, parent)) == Moved()
    assert len(refs.info().updates) == 3
    assert events(refs) == [
        *(repo.NewCommit("main", identity(number)) for number in range(8, 0, -1)),
        repo.RepoInitialized(),
    ]
    times = [update.updated_at for update in refs.operations()]
    assert times == sorted(set(times), reverse=True)
    storage.delete([item.key for item in storage.scan(OVERWRITTEN)])
    assert len(events(refs)) == 3


def test_time_in_the_log_never_stands_still():
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    refs = V2Refs(MemoryStorage(), World(now=lambda: moment))
    refs.initialize(FIRST_SNAPSHOT)
    back = V2Refs(refs.storage, World(now=lambda: moment - timedelta(days=1)))
    refs.create_branch("a", FIRST)
    back.create_branch("b", FIRST)
    times = [update.updated_at for update in refs.operations()]
    assert times[0] > times[1] > times[2]


def test_a_read_only_repository_is_only_read_until_its_status_changes(refs):
    status = repo.Status(repo.Availability.READ_ONLY, 5, "moving house")
    assert refs.update(ru.SetStatus(status)) is None
    with pytest.raises(ReadOnlyError, match="moving house"):
        refs.commit("main", FIRST, snapshot(1))
    assert refs.branch("main") == FIRST
    assert refs.update(ru.SetStatus(repo.Status())) is None
    assert refs.commit("main", FIRST, snapshot(1)) == Moved()


def test_disabled_features_are_refused(refs):
    refs.create_tag("t", FIRST)
    refs.update(ru.SetFlag(4, False))
    refs.update(ru.SetFlag(5, False))
    with pytest.raises(UnsupportedError, match="create_tag"):
        refs.create_tag("u", FIRST)
    with pytest.raises(UnsupportedError, match="delete_tag"):
        refs.delete_tag("t")
    refs.update(ru.SetFlag(4, None))
    assert refs.create_tag("u", FIRST) is Creation.CREATED


def test_silent_changes_leave_the_log_alone(refs):
    before = refs.info().updates
    assert refs.update(ru.SetStatus(repo.Status(set_at=9)), silent=True) is None
    assert refs.info().updates == before
    assert refs.info().status.set_at == 9
    assert not list(refs.storage.scan(OVERWRITTEN))


def test_what_a_newer_version_stored_is_not_written_over(refs, monkeypatch):
    newer = replace(refs.info(), unknown=("a field of the repository",))
    module = "airflow_provider_icechunk.engine.refs.v2"
    monkeypatch.setattr(f"{module}.decode_repo", lambda data, where: newer)
    fresh = V2Refs(refs.storage)
    assert fresh.branch("main") == FIRST
    with pytest.raises(UnsupportedError, match="newer version"):
        fresh.create_branch("dev", FIRST)


def test_writers_to_different_branches_all_succeed(storage):
    refs = V2Refs(storage)
    refs.initialize(FIRST_SNAPSHOT)
    for number in range(4):
        refs.create_branch(f"b{number}", FIRST)
    outcomes: list[object] = []

    def work(number: int) -> None:
        mine = V2Refs(storage)
        parent = FIRST
        for step in range(4):
            new = snapshot(100 * (number + 1) + step, parent)
            outcomes.append(mine.commit(f"b{number}", parent, new))
            parent = new.id

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [Moved()] * 16
    info = V2Refs(storage).info()
    assert len(info.snapshots) == 17
    assert len(info.updates) == 21
    for number in range(4):
        assert len(ru.lineage(info, info.branches[f"b{number}"])) == 5


def test_of_writers_to_one_branch_exactly_one_wins(storage):
    V2Refs(storage).initialize(FIRST_SNAPSHOT)
    outcomes: list[object] = []

    def work(number: int) -> None:
        outcomes.append(V2Refs(storage).commit("main", FIRST, snapshot(number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(Moved()) == 1
    assert len(V2Refs(storage).info().snapshots) == 2


def test_endless_losing_gives_up_after_bounded_pauses():
    class Unlucky(WrappedStorage):
        def put(self, key, data, **options):
            return Lost() if key == "repo" else self.inner.put(key, data, **options)

    pauses: list[float] = []
    memory = MemoryStorage()
    V2Refs(memory).initialize(FIRST_SNAPSHOT)
    world = World(sleep=pauses.append, jitter=lambda: 1.0)
    with pytest.raises(ConflictError, match="100 times"):
        V2Refs(Unlucky(memory), world).create_branch("dev", FIRST)
    assert max(pauses) <= 30
    assert len(pauses) == 94


def test_no_crash_leaves_anything_but_the_old_or_the_new_state():
    points = list(
        every_crash(
            lambda storage: V2Refs(storage).commit("main", FIRST, snapshot(1)),
            prepare=lambda storage: V2Refs(storage).initialize(FIRST_SNAPSHOT),
        )
    )
    heads = {V2Refs(point.storage).branch("main") for point in points}
    assert heads == {FIRST, identity(1)}
    for point in points:
        assert V2Refs(point.storage).create_branch("after", FIRST) is Creation.CREATED


def test_without_conditions_writes_are_plain(refs):
    expectations: list[object] = []

    class Watched(WrappedStorage):
        def put(self, key, data, *, expect, **options):
            expectations.append(expect)
            return self.inner.put(key, data, expect=expect, **options)

    plain = V2Refs(Watched(refs.storage)).trusting(Trust.NOTHING)
    assert not plain.initialize(FIRST_SNAPSHOT)
    assert plain.create_branch("dev", FIRST) is Creation.CREATED
    assert set(map(type, expectations)) == {Anything}


def test_walking_a_history_reads_the_object_once(refs):
    parent = FIRST
    for number in range(1, 6):
        refs.commit("main", parent, snapshot(number, parent))
        parent = identity(number)
    reads: list[str] = []

    class Counted(WrappedStorage):
        def get(self, key, byte_range=None):
            reads.append(key)
            return self.inner.get(key, byte_range)

    fresh = V2Refs(Counted(refs.storage))
    current = fresh.branch("main")
    while current is not None:
        current = fresh.parent(Snapshot(current, None, 0, "", {}, {}))
    assert reads == ["repo"]


def test_a_deleted_repository_is_reported_as_such(refs):
    refs.storage.delete(["repo"])
    with pytest.raises(NotFoundError, match="no longer exists"):
        refs.branches()
