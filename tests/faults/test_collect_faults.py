"""Collection beside writers, over damage, through failures and crashes: nothing in use is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta

import pytest
from support.arrays import put
from support.maintenance import (
    CRASHES,
    GENERATIONS,
    LISTING,
    Clock,
    chunk,
    clone,
    every_pause,
    everything,
    keys,
    layout_of,
    lived_in,
    snapshot_key,
    write,
)

from airflow_provider_icechunk.engine.leases import DELETING
from airflow_provider_icechunk.engine.maintenance.collect import Collection
from airflow_provider_icechunk.engine.maintenance.collect_plan import RANKS, Layer
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Deleted,
    Listed,
    Put,
    Storage,
)
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    FormatError,
    Kind,
    MaintenanceError,
    NotFoundError,
    StorageError,
)
from airflow_provider_icechunk.testing.storages import Crash, WrappedStorage, every_crash

AGE = timedelta(days=1)
Act = Callable[[Repository, dict[str, str]], object]


def commit(repo: Repository, ids: dict[str, str]) -> None:
    del ids
    write(repo, "main", 8, "meanwhile")


def commit_over_two_branches(repo: Repository, ids: dict[str, str]) -> None:
    repo.create_branch("moved", ids["side 1"])
    repo.delete_branch("side")
    write(repo, "moved", 9, "on the moved branch")


def branch_at_garbage(repo: Repository, ids: dict[str, str]) -> None:
    repo.create_branch("rescued", ids["doomed 2"])


def tag_at_garbage(repo: Repository, ids: dict[str, str]) -> None:
    repo.create_tag("rescued", ids["flushed"])


def reset_to_garbage(repo: Repository, ids: dict[str, str]) -> None:
    repo.reset_branch("side", ids["doomed 1"])


def reset_main(repo: Repository, ids: dict[str, str]) -> None:
    repo.reset_branch("main", ids["second"])


def expire(repo: Repository, ids: dict[str, str]) -> None:
    del ids
    repo.expire_snapshots(repo.storage.now(), delete_expired_branches=True)


def collect(repo: Repository, ids: dict[str, str]) -> None:
    del ids
    repo.garbage_collect(repo.storage.now() - AGE)


# Most calls for the acts that aim at what is being deleted, fewer for the others; all in long runs.
@pytest.mark.parametrize(
    ("generation", "act", "step"),
    [
        ("1", branch_at_garbage, 2),
        ("1", reset_to_garbage, 3),
        ("alpha", branch_at_garbage, 4),
        ("1", commit, 3),
        *(("alpha", act, 7) for act in (commit, collect)),
        *(("1", act, 5) for act in (commit_over_two_branches, tag_at_garbage, reset_main)),
        *(("1", act, 5) for act in (expire, collect)),
        *(
            (generation, act, 11)
            for generation in ("2", "alpha1", "draft")
            for act in (branch_at_garbage, commit, expire)
        ),
        *(
            pytest.param(generation, act, 1, marks=pytest.mark.long)
            for generation in GENERATIONS
            for act in (
                commit,
                commit_over_two_branches,
                tag_at_garbage,
                reset_main,
                expire,
                collect,
                branch_at_garbage,
                reset_to_garbage,
            )
        ),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_nothing_dangles_whatever_happens_before_any_call_of_the_collector(
    generation: str, act: Act, step: int
) -> None:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    clock.wait(days=10)
    limit = clock.now - AGE

    def other(inner: Storage) -> None:
        # It may come too late: what was asked for is collected already, and said to be.
        with suppress(NotFoundError):
            act(Repository.open(inner, world=clock.world()), ids)

    def scenario(paused: Storage) -> None:
        # Where snapshots are listed, it gives up if one of those that were to go is named.
        with suppress(MaintenanceError) if generation in LISTING else nullcontext():
            Repository.open(paused, world=clock.world()).garbage_collect(limit)

    schedules = 0
    for name, left in every_pause(lambda: clone(storage, clock), scenario, other, step=step):
        report = Repository.open(left).verify()
        assert report.ok, (name, report.errors)
        schedules += 1
    everything(left)
    print(f"{schedules} schedules")
    assert schedules > 40 // step


@pytest.mark.parametrize(("generation", "step"), CRASHES)
def test_a_session_that_is_younger_than_the_limit_survives_any_pause(
    generation: str, step: int
) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    clock.wait(days=10)
    early = Repository.open(storage, world=clock.world()).writable_session("main")
    put(early, "/a", (10,), chunk("written before collection"))
    early.tree.writer.flush()
    written = clock.now
    clock.wait(hours=2)

    def scenario(paused: Storage) -> None:
        Repository.open(paused, world=clock.world()).garbage_collect(written)

    def prepare() -> MemoryStorage:
        return clone(storage, clock)

    schedules, chunks = 0, layout_of(storage).chunks
    for name, left in every_pause(prepare, scenario, lambda _: None, step=step):
        schedules += 1
        assert keys(left, chunks) >= keys(storage, chunks) - {
            key for key, found in storage.objects.items() if found.created_at < written
        }, name
    assert schedules > 50 // step - 3
    late = clone(storage, clock)
    scenario(late)
    session = Repository.open(late, world=clock.world()).writable_session("main")
    session.tree.put_references("/a", early.tree.references(early.tree.array("/a")))
    session.commit("committed after collection")
    assert Repository.open(late).verify().ok


@pytest.mark.parametrize("generation", GENERATIONS)
def test_snapshots_named_at_the_moment_of_deletion_are_put_back(generation: str) -> None:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    clock.wait(days=10)

    folder = layout_of(storage).snapshots

    class Naming(WrappedStorage):
        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            if any(key.startswith(folder) for key in keys):
                other = Repository.open(self.inner, world=clock.world())
                with suppress(NotFoundError) if generation == "2" else nullcontext():
                    other.create_tag("rescued", ids["doomed 2"])
            return self.inner.delete(keys, immutable=immutable)

    summary = Repository.open(Naming(storage)).garbage_collect(clock.now - AGE)
    repo = Repository.open(storage)
    if generation == "2":
        # What is off the list cannot be named: there is no such moment.
        assert summary.snapshots_deleted == 3
        assert "rescued" not in repo.list_tags()
        return
    assert summary.snapshots_deleted == 1
    assert [info.message for info in repo.ancestry(tag="rescued")][:2] == ["doomed 2", "doomed 1"]
    assert repo.verify().ok
    assert "tag rescued" in everything(storage)


@pytest.mark.parametrize("generation", [one for one in GENERATIONS if one != "2"])
def test_a_collector_that_dies_after_deleting_is_finished_by_the_next(generation: str) -> None:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    clock.wait(days=10)
    folder = layout_of(storage).snapshots

    class Dying(WrappedStorage):
        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            is_last = any(key.startswith(folder) for key in keys)
            if is_last:
                other = Repository.open(self.inner, world=clock.world())
                other.create_tag("rescued", ids["doomed 2"])
            self.inner.delete(keys, immutable=immutable)
            if is_last:
                raise Crash
            return Deleted()

        def put_many(self, puts: Sequence[Put]) -> None:
            raise Crash  # It is dead: it restores nothing.

    with pytest.raises(Crash):
        Repository.open(Dying(storage)).garbage_collect(clock.now - AGE)
    repo = Repository.open(storage, world=clock.world())
    assert not repo.verify().ok
    assert repo.garbage_collect(clock.now - AGE, dry_run=True).snapshots_deleted == 0
    repo.garbage_collect(clock.now - AGE)
    assert [info.message for info in repo.ancestry(tag="rescued")][:2] == ["doomed 2", "doomed 1"]
    assert repo.verify().ok
    assert "tag rescued" in everything(storage)
    assert len(keys(storage, DELETING)) == 1  # Its collector might still be running.
    clock.wait(days=2)
    repo.garbage_collect(clock.now - AGE)
    assert not keys(storage, DELETING)
    assert "tag rescued" in everything(storage)


@pytest.mark.parametrize("record", [b"", b"\x80", b"\x82\xa7version\x02\xa9snapshots\x90"])
def test_a_record_of_deletions_that_is_not_understood_stops_collection(record: bytes) -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    storage.put(f"{DELETING}{'0' * 32}", record, expect=Anything())
    clock.wait(days=10)
    before = keys(storage)
    with pytest.raises(FormatError, match="deleting"):
        Repository.open(storage).garbage_collect(clock.now - AGE)
    assert keys(storage) == before


@pytest.mark.parametrize("damage", ["removed", "cut short", "first byte", "other bytes"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_damaged_reachable_metadata_stops_collection_before_any_delete(
    generation: str, damage: str
) -> None:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    clock.wait(days=10)
    doomed = {snapshot_key(storage, ids[name]) for name in ("doomed 1", "doomed 2", "flushed")}
    plan = Collection(Repository.open(storage)._core).make_plan(clock.now)
    garbage = set[str]().union(*(plan.layer(layer).keys() for layer in Layer))
    assert doomed <= garbage
    layout = layout_of(storage)
    needed = {*keys(storage, layout.snapshots), *keys(storage, layout.manifests)}
    tried = 0
    for key in sorted(needed - garbage):
        broken = clone(storage, clock)
        spoil(broken, key, damage)
        before = keys(broken)
        with pytest.raises(MaintenanceError) as caught:
            Repository.open(broken).garbage_collect(clock.now)
        assert caught.value.__cause__ is not None
        assert keys(broken) == before
        tried += 1
    assert tried >= 10
    assert not Repository.open(broken).verify().ok


def spoil(storage: MemoryStorage, key: str, damage: str) -> None:
    data = storage.objects[key].data
    match damage:
        case "removed":
            storage.delete([key])
        case "cut short":
            storage.put(key, data[: len(data) // 2], expect=Anything())
        case "first byte":
            storage.put(key, bytes([data[0] ^ 0xFF]) + data[1:], expect=Anything())
        case _:
            storage.put(key, b"something else", expect=Anything())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_damaged_garbage_does_not_stop_collection(generation: str) -> None:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    storage.put(snapshot_key(storage, ids["doomed 1"]), b"damaged", expect=Anything())
    clock.wait(days=10)
    before = everything(storage)
    summary = Repository.open(storage).garbage_collect(clock.now)
    assert summary.complete
    assert summary.snapshots_deleted == 3
    assert everything(storage) == before


class Refusing(WrappedStorage):
    """Does not delete keys with certain beginnings."""

    def __init__(self, inner: Storage, refused: str, *, every: int = 1) -> None:
        super().__init__(inner)
        self.refused = refused
        self.every = every

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        refused = [key for key in keys if key.startswith(self.refused)][:: self.every]
        done = self.inner.delete([key for key in keys if key not in refused], immutable=immutable)
        return Deleted(done.keys, dict.fromkeys(refused, "access denied"))


# In memory there are neither files of attributes in generation `1` nor unfinished ones.
@pytest.mark.parametrize(
    "layer", [one for one in Layer if one not in (Layer.ATTRIBUTES, Layer.UNFINISHED)]
)
def test_a_failed_delete_stops_the_layers_below_and_the_summary_is_exact(layer: Layer) -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    clock.wait(days=10)
    before = storage.objects
    seen = everything(storage)
    refusing = Refusing(storage, f"{layer.value}/", every=2)
    summary = Repository.open(refusing).garbage_collect(clock.now)
    gone = before.keys() - storage.objects.keys()
    rank = next(number for number, rank in enumerate(RANKS) if layer in rank)
    later = [one for rank in RANKS[rank + 1 :] for one in rank]
    assert not [key for key in gone if key.startswith(tuple(f"{one.value}/" for one in later))]
    assert summary.stopped_at is layer
    assert not summary.complete
    assert summary.failed
    assert all(key.startswith(f"{layer.value}/") for key in summary.failed)
    untouched = ("nothing that snapshots refer to", "no chunks were", "nothing refers to them")[
        rank
    ]
    assert untouched in str(summary.problem)
    assert summary.failed.keys() <= storage.objects.keys()
    counted = [
        summary.snapshots_deleted,
        summary.transaction_logs_deleted,
        summary.manifests_deleted,
        summary.attributes_deleted,
        summary.chunks_deleted,
        summary.job_files_deleted,
        summary.unfinished_files_deleted,
    ]
    assert counted == [sum(key.startswith(f"{one.value}/") for key in gone) for one in Layer]
    assert summary.bytes_deleted == sum(len(before[key].data) for key in gone)
    assert everything(storage) == seen
    assert Repository.open(storage).garbage_collect(clock.now).complete


def test_one_percent_of_many_deletes_denied_is_counted_exactly() -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    Repository.create(storage, world=clock.world())
    for number in range(2500):
        storage.put(f"chunks/{number:019d}0", b"x" * 10, expect=Absent())
    stored = len(keys(storage, "chunks/"))
    clock.wait(days=1)
    summary = Repository.open(Refusing(storage, "chunks/", every=100)).garbage_collect(clock.now)
    left = keys(storage, "chunks/")
    assert summary.failed.keys() == left
    assert 0 < len(left) < stored / 50
    assert summary.chunks_deleted == stored - len(left)
    assert summary.bytes_deleted == summary.chunks_deleted * 10


def test_a_delete_that_fails_as_a_whole_is_reported_and_stops() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    clock.wait(days=10)

    class Down(WrappedStorage):
        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            if any(key.startswith("manifests/") for key in keys):
                raise StorageError("the store is down")
            return self.inner.delete(keys, immutable=immutable)

    summary = Repository.open(Down(storage)).garbage_collect(clock.now)
    assert summary.stopped_at is Layer.MANIFESTS
    assert set(summary.failed.values()) == {"the store is down"}
    assert summary.manifests_deleted == summary.chunks_deleted == 0
    assert Repository.open(storage).verify().ok


@pytest.mark.parametrize(("generation", "step"), CRASHES)
def test_dying_at_any_call_of_the_collector_leaves_all_values(generation: str, step: int) -> None:
    clock = Clock()
    base, _ = lived_in(generation, clock)
    clock.wait(days=10)
    expected = everything(base)

    def scenario(storage: Storage) -> None:
        Repository.open(storage, world=clock.world()).garbage_collect(clock.now)

    points = 0
    for point in every_crash(scenario, make=lambda: clone(base, clock), step=step):
        points += 1
        if not point.name.startswith(("delete", "put")):
            continue
        repo = Repository.open(point.storage, world=clock.world())
        assert repo.verify().ok, point
        assert everything(point.storage) == expected, point
        write(repo, "main", 12, "after the crash")
        repo.garbage_collect(clock.now)
        assert repo.verify().ok, point
        assert everything(point.storage)["tag v1"] == expected["tag v1"], point
    assert everything(point.storage)
    assert points > 50 // step


@pytest.mark.parametrize("skew", [-3600, -601, -599, 0, 599, 601, 3600])
def test_the_hosts_clock_never_decides_about_age(skew: int) -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    clock.wait(days=10)
    session = Repository.open(storage, world=clock.world()).writable_session("main")
    put(session, "/a", (11,), chunk("fresh"))
    session.tree.writer.flush()
    fresh = keys(storage)
    host = clock.world(timedelta(seconds=skew))
    clock.wait(minutes=1)
    repo = Repository.open(storage, world=host)
    summary = repo.garbage_collect(host.now(), minimum_age=timedelta(hours=1))
    assert summary.complete
    assert summary.chunks_deleted == 4
    session.commit("after collection")
    assert Repository.open(storage).verify().ok
    assert len(fresh - keys(storage)) == 14


def test_a_reference_file_that_cannot_be_read_stops_everything() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    storage.put("refs/branch.side/ref.json", b"{", expect=Anything())
    clock.wait(days=10)
    before = keys(storage)
    repo = Repository.open(storage)
    with pytest.raises(MaintenanceError, match="cannot read branches and tags"):
        repo.garbage_collect(clock.now)
    with pytest.raises(MaintenanceError, match="cannot read branches and tags"):
        repo.expire_snapshots(clock.now)
    assert keys(storage) == before


def test_references_that_never_rest_stop_collection() -> None:
    clock = Clock()
    storage, ids = lived_in("1", clock)
    clock.wait(days=10)
    before = keys(storage, "chunks/")
    other = Repository.open(storage, world=clock.world())
    turns = iter(range(10_000))

    class Restless(WrappedStorage):
        def scan(self, prefix: str) -> Iterator[Listed]:
            if prefix == "refs/":
                other.create_tag(f"t{next(turns)}", ids["fourth"])
            return self.inner.scan(prefix)

    with pytest.raises(MaintenanceError, match="moved") as caught:
        Repository.open(Restless(storage)).garbage_collect(clock.now)
    assert caught.value.kind is Kind.ATTEMPTS_EXHAUSTED
    assert keys(storage, "chunks/") == before
