"""Bugs that the simulator must find: each breaks one rule, as a small change would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_icechunk.engine import leases
from airflow_provider_icechunk.engine.commit import commit as committing
from airflow_provider_icechunk.engine.commit import conflicts, writer
from airflow_provider_icechunk.engine.commit.rebase import Draft
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import sequence_file
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.history import versions
from airflow_provider_icechunk.engine.maintenance import collect, expire
from airflow_provider_icechunk.engine.maintenance.collect_plan import CollectionPlan
from airflow_provider_icechunk.engine.maintenance.reachable import Loader
from airflow_provider_icechunk.engine.objects.objects import Objects
from airflow_provider_icechunk.engine.refs.base import Behind, Trust
from airflow_provider_icechunk.engine.refs.legacy.numbered import NumberedBranches
from airflow_provider_icechunk.engine.refs.v1 import V1Refs
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import (
    Anything,
    Fetched,
    Lost,
    Version,
    Written,
    resolve,
)
from airflow_provider_icechunk.engine.storage.memory import _holds
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.engine.world import to_micros
from airflow_provider_icechunk.exceptions import (
    MaintenanceError,
    OutcomeUnknownError,
    StorageError,
)
from airflow_provider_icechunk.testing.simulation import actors, process
from airflow_provider_icechunk.testing.simulation.disk import Disk
from airflow_provider_icechunk.testing.simulation.model import CHUNK
from airflow_provider_icechunk.testing.simulation.process import ProcessStorage

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Plant] = {}
"""By what is wrong: those that have been found."""
HARDER: dict[str, Plant] = {}
"""Those for which a few hundred schedules were not enough."""


def bug(what: str, *, known: bool = True) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        (BUGS if known else HARDER)[what] = plant
        return plant

    return note


def _nothing(*_: Any, **__: Any) -> None:
    return None


@bug("a commit does not settle what it stored before the branch moves")
def no_settle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessStorage, "settle", _nothing)


@bug("an attempt does not look for its own token")
def no_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(committing.Committer, "_find_token", _nothing)


@bug("a commit does not wait for its chunks", known=False)
def no_chunks(patch: pytest.MonkeyPatch) -> None:
    store = writer.CommitWriter.store

    def hasty(self: Any, base: Any, changes: Any, **options: Any) -> Any:
        return store(self, base, changes, **{**options, "chunks": None})

    patch.setattr(writer.CommitWriter, "store", hasty)


@bug("references are replaced whatever they are by then")
def blind_update(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trust, "update", lambda self, version: Anything())


@bug("references are created over those that exist", known=False)
def blind_create(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trust, "create", lambda self: Anything())


@bug("a numbered file of a branch is written over", known=False)
def blind_number(patch: pytest.MonkeyPatch) -> None:
    def add(self: Any, name: str, number: int, document: bytes) -> bool:
        key = self.prefix(name) + sequence_file(number)
        self.storage.put(key, document, expect=Anything())
        return True

    patch.setattr(NumberedBranches, "_add", add)


@bug("a branch counts as moved although the write lost its race")
def lost_is_moved(patch: pytest.MonkeyPatch) -> None:
    swapped = V1Refs._swapped

    def moved(self: Any, name: Any, key: Any, to: Any, version: Any) -> bool:
        swapped(self, name, key, to, version)
        return True

    patch.setattr(V1Refs, "_swapped", moved)


@bug("a write without an answer counts as done", known=False)
def guessed_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(process, "resolve_lost_put", lambda *_: Written(Version("guessed")))


@bug("a write without an answer counts as a lost race", known=False)
def guessed_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(process, "resolve_lost_put", lambda *_: Lost())


@bug("a write of unknown outcome counts as a lost race", known=False)
def guessed_lost(patch: pytest.MonkeyPatch) -> None:
    def move(self: Any, branch: str, base: Any, snapshot: Any) -> Any:
        try:
            return self._core.refs.commit(branch, base, snapshot)
        except (OutcomeUnknownError, StorageError):
            return Behind(self._core.refs.branch(branch))

    patch.setattr(committing.Committer, "_move_branch", move)


@bug("a snapshot has the time of its writer's clock, also if its parent is younger", known=False)
def times_go_back(patch: pytest.MonkeyPatch) -> None:
    store = Objects.store_commit

    def store_commit(self: Any, snapshot: Any, log: Any, encoded: Any) -> Any:
        if isinstance(self.storage, ProcessStorage):
            now = to_micros(self.storage.world().now())
            snapshot = replace(snapshot, flushed_at=now)
        return store(self, snapshot, log, encoded)

    patch.setattr(Objects, "store_commit", store_commit)


@bug("a rebase finds no conflicts")
def no_conflicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conflicts, "find_conflicts", lambda *_: [])


@bug("manifests of a lost try are used again although others wrote to the array")
def stale_manifests(patch: pytest.MonkeyPatch) -> None:
    encode = writer.CommitWriter._encode_manifests

    def reuse(self: Any, base: Any, changes: Any) -> Any:
        for node, stored in self._arrays_to_write(base, changes):
            if node.id in self._written:
                kept = self._written[node.id]
                self._written[node.id] = replace(kept, base=stored, document=node.user_data)
        return encode(self, base, changes)

    patch.setattr(writer.CommitWriter, "_encode_manifests", reuse)


@bug("cells that others wrote into the same chunk are not merged", known=False)
def no_merge(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Any, *_: Any) -> None:
        self._disputes, self._passed, self._settled = {}, [], None

    patch.setattr(Draft, "settle", settle)


@bug("a collection takes one look at the references and trusts it", known=False)
def one_look(patch: pytest.MonkeyPatch) -> None:
    refresh, make = collect.Collection._refresh, collect.Collection.make_plan

    def once(self: Any, spare: Any = None, *, looks: Any = None) -> None:
        if self._roots is None:
            refresh(self, spare, looks=1)

    def plan(self: Any, *args: Any, **options: Any) -> Any:
        once(self)
        return make(self, *args, **options)

    patch.setattr(collect.Collection, "_refresh", once)
    patch.setattr(collect.Collection, "make_plan", plan)


@bug("a collection forgets what tags need")
def no_tags(patch: pytest.MonkeyPatch) -> None:
    read = collect.read_roots
    patch.setattr(collect, "read_roots", lambda *args: replace(read(*args), tags={}))


@bug("a collection forgets every branch but main")
def main_only(patch: pytest.MonkeyPatch) -> None:
    read = collect.read_roots

    def roots(*args: Any) -> Any:
        found = read(*args)
        return replace(found, branches={MAIN: found.branches[MAIN]})

    patch.setattr(collect, "read_roots", roots)


@bug("a collection ignores leases")
def no_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collect, "read_leases", lambda *_: leases.Leases())


@bug("a lease lapses after an hour")
def short_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "_LIFE", 3_600_000_000)


@bug("a session never renews its lease")
def no_renewal(patch: pytest.MonkeyPatch) -> None:
    def renew(self: Any) -> None:
        self._put, self._leased = self._now(), self.oldest()

    patch.setattr(leases.Leasehold, "_renew", renew)


@bug("a collection does not store its cut-off")
def no_cutoff(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collect, "write_cutoff", _nothing)


@bug("a commit does not ask for the cut-off of collections")
def unchecked_cutoff(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases.Leasehold, "_check", _nothing)


@bug("a collection does not spare young snapshots that nothing names", known=False)
def young_not_spared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collect.Collection, "_spare_young", _nothing)


@bug(
    "a snapshot that was named while it was deleted is not put back, and nobody looks", known=False
)
def not_put_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collect.Collection, "_restore", _nothing)
    patch.setattr(versions, "_keep_or", _nothing)


@bug("half a listing is taken for a whole one", known=False)
def half_listing(patch: pytest.MonkeyPatch) -> None:
    scan = ProcessStorage.scan

    def first_page(self: Any, prefix: str) -> Any:
        for number, item in enumerate(scan(self, prefix)):
            if number == self._machine.page:
                return
            yield item

    patch.setattr(ProcessStorage, "scan", first_page)


@bug("a range of an object is read from its beginning", known=False)
def wrong_range(patch: pytest.MonkeyPatch) -> None:
    get = ProcessStorage.get

    def shifted(self: Any, key: str, byte_range: Any = None) -> Any:
        found = get(self, key)
        if found is None or byte_range is None:
            return found
        start, stop = resolve(byte_range, len(found.data))
        return replace(found, data=found.data[: stop - start])

    patch.setattr(ProcessStorage, "get", shifted)


@bug("a body that ends early is taken for a whole one")
def half_body(patch: pytest.MonkeyPatch) -> None:
    get = ProcessStorage.get

    def cut(self: Any, key: str, byte_range: Any = None) -> Any:
        try:
            return get(self, key, byte_range)
        except StorageError as error:
            found = self._disk.get(key, byte_range)
            if "ended early" not in str(error) or found is None:
                raise
            return Fetched(found.data[: len(found.data) // 2], found.version)

    patch.setattr(ProcessStorage, "get", cut)


@bug("a worker hands over references to chunks that are not stored yet", known=False)
def early_fragment(patch: pytest.MonkeyPatch) -> None:
    fragment = ForkSession.fragment

    def early(self: Any, worker: str) -> Any:
        patch_flush = self.tree.writer
        flush, patch_flush.flush = patch_flush.flush, _nothing
        try:
            return fragment(self, worker)
        finally:
            patch_flush.flush = flush

    patch.setattr(ForkSession, "fragment", early)


@bug("the changes of one fork are left out")
def lost_fork(patch: pytest.MonkeyPatch) -> None:
    merge = Session.merge
    patch.setattr(Session, "merge", lambda self, *forks: merge(self, *forks[:1]))


@bug("the fragment of one worker is left out")
def lost_fragment(patch: pytest.MonkeyPatch) -> None:
    fragments = JobFolder.fragments
    patch.setattr(JobFolder, "fragments", lambda self, writers=None: fragments(self, writers)[:1])


@bug("two processes draw the same ids")
def same_ids(patch: pytest.MonkeyPatch) -> None:
    world = ProcessStorage.world

    def poor(self: Any) -> Any:
        from random import Random

        return replace(world(self), entropy=Random(0).randbytes)

    patch.setattr(ProcessStorage, "world", poor)


@bug("a watcher is told of the newest commit only", known=False)
def newest_only(patch: pytest.MonkeyPatch) -> None:
    poll = actors.poll_branch

    def newest(*args: Any, **options: Any) -> Any:
        new = poll(*args, **options)
        return replace(new, events=new.events[-1:])

    patch.setattr(actors, "poll_branch", newest)


@bug("an expiry removes snapshots younger than its limit", known=False)
def greedy_expiry(patch: pytest.MonkeyPatch) -> None:
    make = expire.make_expiration_plan

    def plan(core: Any, policy: Any) -> Any:
        return make(core, replace(policy, older_than=policy.older_than + timedelta(hours=60)))

    patch.setattr(expire, "make_expiration_plan", plan)


@bug("an earlier read of a branch is not made again")
def stale_branch(patch: pytest.MonkeyPatch) -> None:
    read, known = V1Refs.branch, dict[tuple[Any, str], Any]()

    def branch(self: Any, name: str) -> Any:
        machine = getattr(self.storage, "_machine", None)
        if machine is None:
            return read(self, name)
        if (machine, name) not in known:
            known[machine, name] = read(self, name)
        return known[machine, name]

    patch.setattr(V1Refs, "branch", branch)


@bug("a conditional write looks first and writes later")
def not_atomic(patch: pytest.MonkeyPatch) -> None:
    write = Disk.write

    def torn(self: Any, owner: Any, key: str, data: Any, expect: Any, **how: Any) -> Any:
        if not _holds(expect, self._objects.get(key)):
            return Lost()
        owner._machine.scheduler.step()
        return write(self, owner, key, data, Anything(), **how)

    patch.setattr(Disk, "write", torn)


@bug("the log of a commit leaves out its chunks")
def empty_log(patch: pytest.MonkeyPatch) -> None:
    log = ChangeSet.log
    patch.setattr(
        ChangeSet, "log", lambda self, identity: replace(log(self, identity), updated_chunks={})
    )


@bug("a snapshot is stored after the branch has moved to it")
def late_snapshot(patch: pytest.MonkeyPatch) -> None:
    store, swap = Objects.store_commit, leases.Leasehold.swap
    waiting: list[Callable[[], Any]] = []

    def later(self: Any, *parts: Any) -> None:
        waiting.append(lambda: store(self, *parts))

    def swap_first(self: Any, *moves: Any) -> Any:
        outcome = swap(self, *moves)
        while waiting:
            waiting.pop()()
        return outcome

    patch.setattr(Objects, "store_commit", later)
    patch.setattr(leases.Leasehold, "swap", swap_first)


@bug("a collection deletes whatever is old enough")
def age_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CollectionPlan, "without", lambda self, live: self)


@bug("a collection takes a snapshot that it cannot read for an empty one", known=False)
def fails_open(patch: pytest.MonkeyPatch) -> None:
    read = Loader.snapshot

    def snapshot(self: Any, identity: Any) -> Any:
        try:
            return read(self, identity)
        except MaintenanceError:
            return Snapshot(identity, None, 0, "", {}, {}, {})

    patch.setattr(Loader, "snapshot", snapshot)


@bug("a chunk that is gone is read as if it had never been written", known=False)
def missing_is_empty(patch: pytest.MonkeyPatch) -> None:
    get = ProcessStorage.get

    def filled(self: Any, key: str, byte_range: Any = None) -> Any:
        found = get(self, key, byte_range)
        if found is None and key.startswith("chunks/"):
            return Fetched(bytes(CHUNK), Version("none"))
        return found

    patch.setattr(ProcessStorage, "get", filled)
