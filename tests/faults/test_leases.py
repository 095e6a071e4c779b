"""Long work beside collections: it is spared, or it is refused with the reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from support.arrays import array, put
from support.long_work import DAY, begin, collect, leases, old_session, opened, sound
from support.maintenance import GENERATIONS, UNPACKED, Clock, chunk, everything, keys, write

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.leases import (
    CLOCKS_DIFFER,
    CUTOFF,
    LIFE,
    PREFIX,
    QUIET,
    Lease,
    read_cutoff,
)
from airflow_provider_icechunk.engine.maintenance.compact import CompactionRules
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import (
    Anything,
    ByteRange,
    Data,
    Deleted,
    Fetched,
    Listed,
    PutOutcome,
)
from airflow_provider_icechunk.engine.workers.codec import decode_fragment, encode_fragment
from airflow_provider_icechunk.exceptions import (
    FormatError,
    IcechunkError,
    Kind,
    MaintenanceError,
    SessionError,
)
from airflow_provider_icechunk.testing.storages import WrappedStorage

T = TypeVar("T")
Requests = Sequence[tuple[str, ByteRange | None]]
Prepare = Callable[[Repository, Clock], Callable[[], object]]
"""Does long work up to its end, and returns that end."""


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_commit_whose_chunks_were_collected_meanwhile_is_refused(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    session = old_session(storage, clock)
    before = everything(storage)
    collect(storage, clock)
    with pytest.raises(SessionError, match=r"a garbage collection of .* has deleted") as caught:
        session.commit("too late")
    assert caught.value.kind is Kind.CHUNKS_COLLECTED
    assert everything(storage) == before
    assert sound(storage)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_session_that_goes_on_writing_survives_every_collection(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    session = opened(storage, clock).writable_session("main")
    for place in range(1, 12):
        put(session, "/a", (place,), chunk(f"hour {clock.now}"))
        clock.wait(hours=10)
        collect(storage, clock)
    assert len(leases(storage)) >= 1
    session.commit("after five days")
    assert not leases(storage)
    assert len(everything(storage)["branch main"]) == 14
    assert sound(storage)


def test_short_work_leaves_nothing_and_asks_for_nothing() -> None:
    clock = Clock()
    storage = begin(clock)
    seen: list[str] = []

    class Seeing(WrappedStorage):
        def _call(self, name: str, act: Callable[[], T]) -> T:
            seen.append(name)
            return act()

    session = opened(Seeing(storage), clock).writable_session("main")
    put(session, "/a", (1,), chunk("one"))
    clock.wait(minutes=14)
    put(session, "/a", (2,), chunk("two"))
    session.commit("quick")
    assert not [name for name in seen if PREFIX in name]


def test_a_lease_is_put_with_writes_after_a_quarter_of_an_hour_and_not_with_each() -> None:
    clock = Clock()
    storage = begin(clock)
    session = opened(storage, clock).writable_session("main")
    put(session, "/a", (1,), chunk("one"))
    clock.wait(minutes=16)
    assert not leases(storage)
    put(session, "/a", (2,), chunk("two"))
    (key,) = leases(storage)
    first = storage.objects[key].version
    clock.wait(minutes=14)
    put(session, "/a", (3,), chunk("three"))
    assert storage.objects[key].version == first
    clock.wait(minutes=2)
    put(session, "/a", (4,), chunk("four"))
    assert storage.objects[key].version != first


def test_a_lease_of_a_killed_session_holds_the_cut_off_back_until_it_lapses_and_is_removed() -> (
    None
):
    clock = Clock()
    storage = begin(clock)
    session = opened(storage, clock).writable_session("main")
    put(session, "/a", (1,), chunk("one"))
    clock.wait(hours=1)
    put(session, "/a", (2,), chunk("two"))
    del session
    clock.wait(hours=3)
    assert opened(storage, clock).garbage_collect(clock.now).chunks_deleted == 0
    assert leases(storage)
    clock.wait(hours=22)
    summary = opened(storage, clock).garbage_collect(clock.now)
    assert (summary.chunks_deleted, summary.job_files_deleted) == (2, 1)
    assert not leases(storage)


def test_a_lapsed_lease_is_left_alone_while_somebody_might_put_it_again() -> None:
    clock = Clock()
    storage = begin(clock)
    now = int(clock.now.timestamp() * 1e6)
    ahead = Lease(now, now // (LIFE // timedelta(microseconds=1) // 4) + 6, "0" * 32)
    storage.put(ahead.key, b"by a clock that is ahead", expect=Anything())
    clock.wait(hours=25)
    collect(storage, clock)
    assert leases(storage) == {ahead.key}
    clock.wait(days=2)
    collect(storage, clock)
    assert not leases(storage)


def test_a_commit_is_acknowledged_when_its_lease_cannot_be_deleted() -> None:
    clock = Clock()
    storage = begin(clock)

    class Keeping(WrappedStorage):
        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            del immutable
            return Deleted(failed=dict.fromkeys(keys, "access denied"))

    session = old_session(Keeping(storage), clock)
    session.commit("kept its lease")
    assert leases(storage)
    assert sound(storage)


def test_what_was_discarded_is_not_leased() -> None:
    clock = Clock()
    storage = begin(clock)
    session = old_session(storage, clock)
    put(session, "/a", (2,), chunk("two"))
    assert leases(storage)
    session.discard_changes()
    assert not leases(storage)
    collect(storage, clock)
    put(session, "/a", (3,), chunk("three"))
    session.commit("only what came after")
    assert sound(storage)


@pytest.mark.parametrize("name", ["leases/other", f"{PREFIX}{0:020d}-{0:08d}-x"])
def test_a_lease_that_is_not_understood_stops_the_collection(name: str) -> None:
    clock = Clock()
    storage = begin(clock)
    old_session(storage, clock)
    storage.put(name, b"", expect=Anything())
    before = keys(storage)
    with pytest.raises(MaintenanceError, match="is not a lease that this release understands"):
        collect(storage, clock)
    assert keys(storage) == before


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b'{"before": true}', b" " * 5000])
def test_a_cut_off_that_is_not_understood_stops_collections_and_long_commits(data: bytes) -> None:
    clock = Clock()
    storage = begin(clock)
    session = old_session(storage, clock)
    storage.put(CUTOFF, data, expect=Anything())
    before = keys(storage)
    with pytest.raises(FormatError, match="not a valid record of a collection"):
        collect(storage, clock)
    assert keys(storage) == before
    with pytest.raises(FormatError, match="not a valid record of a collection"):
        session.commit("nobody knows")
    write(opened(storage, clock), "main", 3, "short work goes on")


def test_the_recorded_cut_off_never_goes_back_and_never_lies_in_the_future() -> None:
    clock = Clock()
    storage = begin(clock)
    old_session(storage, clock)
    repo = opened(storage, clock)
    with pytest.warns(UserWarning, match="is in the future"):
        repo.garbage_collect(clock.now + timedelta(days=3650))
    latest = read_cutoff(storage)
    assert latest <= clock.now.timestamp() * 1e6
    old_session(storage, clock)
    clock.wait(days=1)
    repo.garbage_collect(clock.now)
    later = read_cutoff(storage)
    assert later > latest
    storage.put("chunks/00000000000000000000", b"old", expect=Anything())
    repo.garbage_collect(clock.now - timedelta(days=300))
    assert read_cutoff(storage) == later


def test_a_dry_run_and_a_collection_without_garbage_write_nothing() -> None:
    clock = Clock()
    storage = begin(clock)
    before = storage.objects
    collect(storage, clock)
    assert storage.objects == before
    old_session(storage, clock)
    before = storage.objects
    opened(storage, clock).garbage_collect(clock.now, dry_run=True)
    assert storage.objects == before


def test_work_that_left_its_lease_after_the_plan_was_made_is_spared() -> None:
    clock = Clock()
    storage = begin(clock)
    session = old_session(storage, clock)
    stored = keys(storage, "chunks/")
    collection = opened(storage, clock).collection()
    plan = collection.make_plan(clock.now)
    assert len(plan) == 1
    put(session, "/a", (2,), chunk("still at it"))
    assert collection.carry_out(plan).chunks_deleted == 0
    assert stored < keys(storage, "chunks/")


def test_work_that_leaves_its_lease_while_the_cut_off_is_written_is_spared() -> None:
    """Leases are read once more after that: who comes later finds the cut-off instead."""
    clock = Clock()
    storage = begin(clock)
    session = old_session(storage, clock)
    stored = keys(storage, "chunks/")

    class Busy(WrappedStorage):
        def put(self, key: str, data: Data, **given: Any) -> PutOutcome:
            if key == CUTOFF:
                put(session, "/a", (2,), chunk("still at it"))
            return self.inner.put(key, data, **given)

    assert opened(Busy(storage), clock).garbage_collect(clock.now - DAY).chunks_deleted == 0
    assert stored < keys(storage, "chunks/")


def test_a_snapshot_that_was_flushed_after_the_plan_was_made_keeps_its_chunks() -> None:
    clock = Clock()
    storage = begin(clock)
    session = old_session(storage, clock)
    repo = opened(storage, clock)
    collection = repo.collection()
    plan = collection.make_plan(clock.now - DAY)
    assert len(plan) == 1
    identity = session.flush("loose")
    assert not leases(storage)
    assert collection.carry_out(plan).chunks_deleted == 0
    repo.create_branch("named", identity)
    assert sound(storage)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_flushed_snapshot_keeps_what_is_older_than_itself_until_it_is_old(
    generation: str,
) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    old_session(storage, clock).flush("loose")
    clock.wait(hours=20)
    planned = opened(storage, clock).garbage_collect(clock.now - DAY, dry_run=True)
    assert planned.chunks_deleted == 0
    clock.wait(hours=20)
    planned = opened(storage, clock).garbage_collect(clock.now - DAY, dry_run=True)
    assert (planned.chunks_deleted, planned.snapshots_deleted) == (1, 1)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_nothing_is_flushed_onto_a_snapshot_that_was_collected(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    repo = opened(storage, clock)
    repo.create_branch("side", repo.lookup_branch("main"))
    write(repo, "side", 3, "on a branch of its own")
    clock.wait(days=3)
    session = opened(storage, clock).writable_session("side")
    session.tree.put_document("/new", array([4], [1]))
    put(session, "/new", (1,), chunk("young"))
    repo.delete_branch("side")
    collect(storage, clock)
    with pytest.raises(
        SessionError, match="on which this session is based, was collected"
    ) as caught:
        session.flush("loose")
    assert caught.value.kind is Kind.CHUNKS_COLLECTED
    collect(storage, clock)
    assert sound(storage)


@pytest.mark.parametrize("gone", ["snapshots/", "manifests/"])
def test_what_somebody_else_collected_of_a_young_snapshot_does_not_stop_collection(
    gone: str,
) -> None:
    clock = Clock()
    storage = begin(clock)
    before = keys(storage)
    old_session(storage, clock).flush("loose")
    removed = {key for key in keys(storage) - before if key.startswith(gone)}

    class Racing(WrappedStorage):
        """Another collection deletes what was listed."""

        def scan(self, prefix: str) -> Iterator[Listed]:
            found = list(self.inner.scan(prefix))
            self.inner.delete(sorted(removed))
            return iter(found)

    assert len(removed) == 1
    collect(Racing(storage), clock)
    assert sound(storage)


def resumed(repo: Repository, clock: Clock) -> Callable[[], object]:
    """A coordinator that wrote itself, and workers, each of them briefly, over 40 hours."""
    session = repo.writable_session("main")
    put(session, "/a", (1,), chunk("coordinator"))
    work = session.work_unit("a job")
    fragments = []
    for place in range(2, 6):
        clock.wait(hours=10)
        fork = repo.fork(work.to_json())
        put(fork, "/a", (place,), chunk(f"worker {place}"))
        fragments.append(encode_fragment(fork.fragment(f"task {place}")))
    clock.wait(hours=10)

    def end() -> None:
        late = repo.resume(work.to_json())
        late.merge_fragments([decode_fragment(one, where="") for one in fragments])
        late.commit("by another process", rebase_with=ConflictDetector(), token="t")

    return end


def forked(repo: Repository, clock: Clock) -> Callable[[], object]:
    """Forks that wrote over two days and were merged."""
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(4)]
    for place, fork in enumerate(forks, 1):
        put(fork, "/a", (place,), chunk(f"fork {place}"))
        clock.wait(hours=12)
        put(fork, "/a", (place + 4,), chunk(f"fork {place}, again"))

    def end() -> None:
        session.merge(*forks)
        session.commit("merged")

    return end


def flushed(repo: Repository, clock: Clock) -> Callable[[], object]:
    """A snapshot that no branch names until the very end."""
    session = repo.writable_session("main")
    for place in range(1, 5):
        put(session, "/a", (place,), chunk(f"part {place}"))
        clock.wait(hours=10)

    def end() -> None:
        identity = session.flush("loose")
        clock.wait(hours=20)
        collect(repo.storage, clock)
        repo.create_branch("named", identity)

    return end


def amended(repo: Repository, clock: Clock) -> Callable[[], object]:
    session = repo.writable_session("main")
    for place in range(1, 5):
        put(session, "/a", (place,), chunk(f"part {place}"))
        clock.wait(hours=10)
    return lambda: session.amend("again")


WORKS = [
    *((generation, work) for generation in GENERATIONS for work in (resumed, forked, flushed)),
    ("2", amended),
]


@pytest.mark.parametrize(("generation", "work"), WORKS)
def test_every_kind_of_long_work_survives_collections_while_it_goes_on(
    generation: str, work: Prepare
) -> None:
    clock = Clock()
    storage = begin(clock, generation)

    class Collecting(Clock):
        """Collects whenever time passes."""

        def wait(self, **amount: float) -> datetime:
            clock.wait(**amount)
            collect(storage, clock)
            return clock.now

    end = work(opened(storage, clock), Collecting())
    end()
    repo = opened(storage, clock)
    assert repo.verify().ok
    assert not leases(storage)
    branch = "named" if work is flushed else "main"
    assert "/a[4]" in everything(storage)[f"branch {branch}"]


@pytest.mark.parametrize(("generation", "work"), WORKS)
def test_every_kind_of_long_work_is_refused_if_it_was_collected(
    generation: str, work: Prepare
) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    before = everything(storage)
    end = work(opened(storage, clock), clock)
    clock.wait(hours=40)
    collect(storage, clock)
    with pytest.raises(IcechunkError) as caught:
        end()
    # What a coordinator staged is read before anything else, and is not there.
    staged = work is resumed and caught.value.kind is Kind.SNAPSHOT_NOT_FOUND
    assert staged or caught.value.kind is Kind.CHUNKS_COLLECTED
    assert everything(storage) == before
    assert sound(storage)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_changes_of_a_commit_that_was_collected_are_not_made_again(generation: str) -> None:
    clock = Clock()
    storage = begin(clock, generation)
    repo = opened(storage, clock)
    first = repo.lookup_branch("main")
    repo.create_branch("side", first)
    made = write(repo, "side", 3, "on a branch of its own")
    session = repo.session_with_changes("main", from_snapshot_id=first, to_snapshot_id=made)
    repo.delete_branch("side")
    clock.wait(days=2)
    collect(storage, clock)
    with pytest.raises(SessionError, match="has been collected along with their chunks") as caught:
        session.commit("too late")
    assert caught.value.kind is Kind.CHUNKS_COLLECTED
    assert sound(storage)


@pytest.mark.parametrize("is_collected", [False, True])
def test_work_of_an_earlier_release_counts_as_old_as_its_base(is_collected: bool) -> None:
    clock = Clock()
    storage = begin(clock)
    repo = opened(storage, clock)
    old_session(storage, clock)
    if is_collected:
        collect(storage, clock)
    work = replace(repo.writable_session("main").work_unit("a job"), since=None)
    assert "since" not in work.to_json()
    fork = repo.fork(work.to_json())
    put(fork, "/a", (5,), chunk("just now"))
    fragment = decode_fragment(
        encode_fragment(replace(fork.fragment("task"), since=None)), where="a worker"
    )
    late = repo.resume(work.to_json())
    late.merge_fragments([fragment])
    if is_collected:
        with pytest.raises(SessionError, match="this work has stored objects since"):
            late.commit("nobody knows how old it is")
    else:
        late.commit("nothing was ever collected")
    assert sound(storage)


@pytest.mark.parametrize("skew", [timedelta(hours=-5), timedelta(hours=5)])
def test_the_clocks_of_workers_decide_nothing(skew: timedelta) -> None:
    clock = Clock()
    storage = begin(clock)
    repo = opened(storage, clock)
    worker = Repository.open(storage, packing=UNPACKED, world=clock.world(skew))
    session = repo.writable_session("main")
    work = session.work_unit("a job")
    clock.wait(hours=6)
    fork = worker.fork(work.to_json())
    put(fork, "/a", (1,), chunk("by another clock"))
    fragment = fork.fragment("task")
    assert fragment.since is not None
    assert fragment.since == (clock.now - CLOCKS_DIFFER).timestamp() * 1e6
    clock.wait(hours=25)
    collect(storage, clock)
    put(fork, "/a", (2,), chunk("later"))
    session.merge_fragments([fragment])
    with pytest.raises(SessionError) as caught:
        session.commit("was collected")
    assert caught.value.kind is Kind.CHUNKS_COLLECTED
    assert sound(storage)


@pytest.mark.parametrize("hours", [12, 60])
def test_a_compaction_that_takes_days_survives_collections_or_is_refused(hours: int) -> None:
    clock = Clock()
    storage = begin(clock)
    for place in range(1, 9):
        write(opened(storage, clock), "main", place, f"small {place}")
    before = everything(storage)

    class Slow(WrappedStorage):
        """Takes its time to read chunks; meanwhile there are collections."""

        def get_many(self, requests: Requests) -> list[Fetched | None]:
            if any(key.startswith("chunks/") for key, _ in requests):
                clock.wait(hours=hours)
                collect(storage, clock)
            return self.inner.get_many(requests)

    slow = opened(Slow(storage), clock)
    rules = CompactionRules(small=4096, target=4096, enough=4096)
    if timedelta(hours=hours) < LIFE:
        assert slow.compact("main", rules=rules).files > 1
    else:
        with pytest.raises(SessionError) as caught:
            slow.compact("main", rules=rules)
        assert caught.value.kind is Kind.CHUNKS_COLLECTED
    assert everything(storage) == before
    assert sound(storage)


def test_the_times_fit_together() -> None:
    assert QUIET < LIFE / 4
    assert LIFE >= DAY


@pytest.mark.parametrize("generation", GENERATIONS)
def test_leases_are_read_before_references_and_snapshots(generation: str) -> None:
    """A writer moves its branch and then ends its lease: read the other way, both look unused."""
    clock = Clock()
    storage = begin(clock, generation)
    old_session(storage, clock)
    reading, early = threading.Event(), threading.Event()

    class Slow(WrappedStorage):
        announced = False

        def _call(self, name: str, act: Callable[[], T]) -> T:
            if name == f"put {CUTOFF}":
                self.announced = True
            elif self.announced and name == f"scan {PREFIX}":
                reading.set()
                early.wait(0.2)
                reading.clear()
            elif reading.is_set():
                early.set()
            return act()

    collector = opened(Slow(storage), clock)
    summary = collector.garbage_collect(clock.now - timedelta(hours=1))
    assert summary.chunks_deleted == 1
    assert not early.is_set()
