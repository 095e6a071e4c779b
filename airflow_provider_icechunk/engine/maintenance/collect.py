"""Delete unreachable objects once they are old enough.

The order of reads protects writers: objects are listed before references are read, so anything
committed meanwhile is either not in the listing or found to be in use. Age is judged only by the
store's clock. References are read again before layers are deleted, and what they reach by then is
removed from the plan. The bytes of deleted snapshots are kept for a moment: if a reference to one
of them appears, it is restored before anything it refers to is deleted, by this collection or, if
it dies, by the next one (`recovery`).

Uncommitted work is protected by its age and, if it takes longer, by a lease (`engine.leases`): the
cut-off is stored and leases are read before anything is deleted. A flushed or staged snapshot that
nothing refers to keeps what it needs while it is younger than the cut-off.

A writer that creates a reference to a snapshot checks afterwards that the snapshot still exists,
and otherwise removes the reference (`history.versions`). Generation `2` needs no such check: it
unlists snapshots before it deletes their files. (`draft` has a list as well, but its files can be
referred to without it.)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from airflow_provider_icechunk.engine.concurrency import Background, together
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.leases import (
    CLOCKS_DIFFER,
    CUTOFF,
    PREFIX,
    read_leases,
    write_cutoff,
)
from airflow_provider_icechunk.engine.opening import check_newest
from airflow_provider_icechunk.engine.refs.base import Register, Trust
from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.engine.storage.base import Deleted, Fetched, Listed, Put
from airflow_provider_icechunk.engine.world import from_micros, to_micros
from airflow_provider_icechunk.exceptions import Kind, MaintenanceError, StorageError

from .collect_plan import (
    OBJECTS,
    RANKS,
    CollectionPlan,
    GCSummary,
    Layer,
    as_if_done,
    cutoff,
    parts,
    prefix_of,
)
from .listing import (
    JOBS,
    JobFiles,
    Listing,
    UnfinishedFiles,
    abandoned_jobs,
    contains,
    list_folder,
    of_bytes,
    remove_unfinished,
    unfinished_files,
    whole,
)
from .reachable import Loader, MemoryLimits, Reachable, Roots, read_roots
from .recovery import UnfinishedDeletions, read_files, store_files
from .released import objects_of

_SNAPSHOTS_AT_ONCE = 10_000
"""All snapshots are listed again after each batch."""
_KEYS_AT_ONCE = 20_000
"""Deletes per call; a storage runs them concurrently and waits for the disk once per call."""
_ONE_LOOK = 1000
"""Keys that may be deleted between two reads of the references: as many as one request can."""
_FEW, _SMALL = 64, 4 << 20
"""At most this many manifests and bytes of them are read before it is known which are in use."""
_SPARE_BYTES = 64 << 20
_LOOKS = at_once(20)


class Collection:
    """One run of the collector: make a plan, then carry it out or discard it."""

    def __init__(self, core: Core, limits: MemoryLimits | None = None) -> None:
        core.refs.check_writable()
        self._core = core
        self._live = Reachable(Loader(core.storage, core.refs), limits)
        self._roots: Roots | None = None
        self._stored: Listing | None = None
        """Snapshot files, if they were just listed."""
        self._old: frozenset[SnapshotId] = frozenset()
        self._unseen: int | None = None
        """How many keys were deleted since references were read; `None`: read them first."""
        self._cutoff: tuple[Fetched | None] | None = None
        """The stored cut-off, once it was read."""
        self._unfinished = UnfinishedDeletions({}, ())
        self._ending: list[Background[Deleted]] = []

    def make_plan(
        self, older_than: datetime, *, minimum_age: timedelta | None = None
    ) -> CollectionPlan:
        """List objects, then determine which are in use. Deletes nothing.

        Raises `MaintenanceError` if any reachable metadata cannot be read.
        """
        storage, latest = self._core.storage, to_micros(older_than)
        start, jobs, *listings = together(
            lambda: self._begin(older_than, minimum_age),
            lambda: list(storage.scan(JOBS)),
            *(partial(self._list, layer, latest) for layer in OBJECTS),
        )
        assert isinstance(start, _Start)
        before = start.before
        everything = dict(zip(OBJECTS, listings, strict=True))
        self._stored = everything[Layer.SNAPSHOTS]
        manifests = everything[Layer.MANIFESTS]
        if len(manifests) > _FEW or manifests.total_bytes > _SMALL:
            manifests = manifests.part(0, 0)
        listed = {layer: one.take(one.created < before) for layer, one in everything.items()}
        left = abandoned_jobs(jobs, before, start.lapsed)
        unfinished = unfinished_files(storage, before)
        self._old = frozenset(SnapshotId(one) for one in whole(listed[Layer.SNAPSHOTS].ids))
        # Before anything is deleted they are read again.
        self._refresh(looks=1, manifests=whole(manifests.ids))
        self._spare_young(before)
        return start.plan(listed, left, unfinished).without(self._live)

    def make_plan_for(
        self,
        released: frozenset[SnapshotId],
        older_than: datetime,
        *,
        minimum_age: timedelta | None = None,
    ) -> CollectionPlan:
        """Consider only these snapshots and what they refer to. Lists no folder but theirs.

        What is in use is determined as in `make_plan`.
        """
        start, self._stored = together(
            lambda: self._begin(older_than, minimum_age), self._list_snapshots
        )
        assert isinstance(start, _Start)
        before, stored = start.before, self._stored
        assert isinstance(stored, Listing)
        old = stored.take(stored.created < before)
        self._old = frozenset(SnapshotId(one) for one in whole(old.ids))
        self._refresh(looks=1)
        self._spare_young(before)
        loader = Loader(self._core.storage, self._core.refs)
        doomed = old.take(contains(of_bytes(released), old.ids))
        nothing = np.zeros(0, np.int64)
        return start.plan(
            objects_of(loader, doomed, self._live, before),
            JobFiles((), nothing),
            UnfinishedFiles((), nothing),
        )

    def _list(self, layer: Layer, latest: int) -> Listing:
        """Objects that the requested cut-off allows deleting; all snapshots and manifests."""
        storage, layout = self._core.storage, self._core.refs.layout
        prefix = prefix_of(layer, layout)
        if prefix is None:
            return Listing.empty("")
        before = None if layer in (Layer.SNAPSHOTS, Layer.MANIFESTS) else latest
        return list_folder(storage, layout, prefix, before=before)

    def _begin(self, older_than: datetime, minimum_age: timedelta | None) -> _Start:
        """The cut-off from the store's clock and the current leases."""
        storage = self._core.storage
        now, found, stored = together(
            storage.now, lambda: list(storage.scan(PREFIX)), partial(storage.get, CUTOFF)
        )
        self._cutoff = (stored,)
        wanted = cutoff(older_than, minimum_age, now)
        if wanted > to_micros(now + CLOCKS_DIFFER):
            warnings.warn(
                f"the cut-off {from_micros(wanted).isoformat()} is in the future at "
                f"{storage.location}, where it is {now.isoformat()}: uncommitted objects of "
                "running sessions will be deleted",
                stacklevel=5,
            )
        leases = read_leases(storage, to_micros(now), found)
        self._unfinished = read_files(storage, self._core.generation, found, to_micros(now))
        older = sum(lease.since < wanted for lease in leases.live)
        return _Start(to_micros(now), leases.limit(wanted), older, leases.lapsed)

    def carry_out(self, plan: CollectionPlan) -> GCSummary:
        """Delete as planned, rank by rank, except for what is now in use.

        Stops after a rank in which a delete failed; the summary says which keys and why. An
        operations log gets an entry even if there is nothing to delete.
        """
        self._finish_others()
        if isinstance(self._core.refs, Register):
            self._refresh()
            doomed = plan.without(self._live).objects[Layer.SNAPSHOTS]
            unlist(self._core.refs, doomed)
            # A snapshot listed from here on was flushed meanwhile, by work that began long ago.
            self._old -= {SnapshotId(one) for one in whole(doomed.ids)}
        kept, plan = together(partial(self._keep_first, plan), partial(self._announce, plan))
        assert isinstance(plan, CollectionPlan)
        summary = GCSummary(plan=plan)
        for rank in RANKS:
            if not any(len(plan.layer(layer)) for layer in rank):
                continue
            if Layer.SNAPSHOTS not in rank and (self._unseen is None or self._unseen > _ONE_LOOK):
                self._refresh()
                self._unseen = 0
            plan = plan.without(self._live)
            if Layer.SNAPSHOTS in rank:
                summary = self._delete_snapshots(plan, summary, kept)
                self._unseen = 0
            else:
                summary = self._delete_rank(plan, rank, summary)
            if summary.stopped_at is not None:
                break
        for ending in self._ending:
            ending.result()
        return summary

    def _finish_others(self) -> None:
        """Restore what collections that died had deleted, as far as it is in use."""
        files, ended = self._unfinished.files, list(self._unfinished.ended)
        if not files and not ended:
            return
        self._refresh()
        live = set(whole(self._live.snapshots()))
        missing = [
            one
            for one, found in zip(
                files,
                self._core.storage.get_many([(self._key(one), None) for one in files]),
                strict=True,
            )
            if found is None
        ]
        self._restore({one: files[one] for one in missing if one in live})
        if ended:
            self._core.storage.delete(ended)

    def _announce(self, plan: CollectionPlan) -> CollectionPlan:
        """Store the cut-off, then remove from the plan what leases now protect.

        A writer that stores a lease later sees the cut-off before it commits.
        """
        limit = plan.limit
        if limit is None:
            return plan
        storage, settings = self._core.storage, self._core.settings.storage
        trust = Trust.of(
            creates=settings.use_conditional_create, updates=settings.use_conditional_update
        )
        write_cutoff(storage, trust, limit, self._cutoff)
        self._cutoff = None

        def leased() -> int:
            return read_leases(storage, plan.made_at).limit(plan.before)

        if len(plan.objects[Layer.SNAPSHOTS]):
            # Enough for these, as they can be restored; there is another look before the others.
            before, self._stored, _ = together(leased, self._list_snapshots, self._refresh)
            self._unseen = None
        else:
            # Leases first: a writer moves its branch, and then ends its lease.
            before = leased()
            self._stored, _ = together(self._list_snapshots, self._refresh)
            self._unseen = 0
        plan = plan.stored_before(before)
        self._spare_young(plan.before)
        return plan.without(self._live)

    def _spare_young(self, before: int, spare: Mapping[SnapshotId, bytes] | None = None) -> None:
        """Keep what young snapshots need, referenced or not."""
        stored, self._stored = self._stored or self._list_snapshots(), None
        young = stored.take(stored.created >= before)
        self._live.keep([SnapshotId(one) for one in whole(young.ids)], spare)

    def _list_snapshots(self) -> Listing:
        layout = self._core.refs.layout
        return list_folder(self._core.storage, layout, layout.snapshots)

    def _refresh(
        self,
        spare: Mapping[SnapshotId, bytes] | None = None,
        *,
        looks: int | None = None,
        manifests: Sequence[bytes] = (),
    ) -> None:
        """Add what references reach now.

        Returns only after two equal reads: while one branch is created and another one deleted,
        a single read could miss both.

        :param looks: the most reads, for a look after which nothing is deleted.
        :param manifests: those to read along with the references.
        """
        if self._roots is None:
            self._stored = self._stored or self._list_snapshots()
            ahead = partial(
                self._live.read_ahead,
                [SnapshotId(one) for one in whole(self._stored.ids)],
                manifests,
            )
        else:
            ahead = partial(self._live.read_ahead, [])
        _, _, first = together(
            partial(check_newest, self._core.storage, self._core.generation),
            ahead,
            partial(read_roots, self._core.refs, self._old),
        )
        for number, _ in enumerate(_LOOKS.attempts()):
            roots = read_roots(self._core.refs, self._old) if number else first
            if roots == self._roots:
                return
            self._live.extend(roots.tips(), {**self._unfinished.files, **(spare or {})})
            self._roots = roots
            if looks is not None and number + 1 >= looks:
                return
        raise MaintenanceError(
            f"the references of {self._core.storage.location} moved {_LOOKS.tries} times in a "
            "row while it was being collected; nothing more was deleted. Try again when there "
            "are fewer commits",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _keep_first(self, plan: CollectionPlan) -> _Doomed:
        """The first batch of snapshots, read and stored once more while the cut-off is stored."""
        doomed = _batches(plan.without(self._live).objects[Layer.SNAPSHOTS])
        return self._keep(next(doomed, Listing.empty("")))

    def _delete_snapshots(
        self, plan: CollectionPlan, summary: GCSummary, kept: _Doomed
    ) -> GCSummary:
        """Newest first, so that a restored snapshot still has its ancestors."""
        for part in _batches(plan.objects[Layer.SNAPSHOTS]):
            unnamed = part.take(~contains(self._live.snapshots(), part.ids))
            if not kept.holds(unnamed):
                self._end(kept)
                kept = self._keep(unnamed)
            outcome = self._delete_recoverably(unnamed, plan.before, kept)
            summary = _counted(summary, Layer.SNAPSHOTS, outcome)
            if summary.stopped_at is not None:
                break
        self._end(kept)
        return summary

    def _keep(self, part: Listing) -> _Doomed:
        """Read the files of snapshots, and store them where the next collection finds them."""
        keys = part.keys()
        found = self._core.storage.get_many([(key, None) for key in keys])
        files = {
            SnapshotId(identity): fetched.data
            for identity, fetched in zip(whole(part.ids), found, strict=True)
            if fetched is not None
        }
        record = None
        if files and not self._core.generation.hides_expired:
            record = store_files(self._core.storage, files, self._core.world)
        return _Doomed(frozenset(whole(part.ids)), files, record)

    def _end(self, kept: _Doomed) -> None:
        """Delete the record of a batch, in parallel with what follows."""
        record = kept.record
        if record is not None:
            self._ending.append(Background(lambda: self._core.storage.delete([record])))

    def _delete_recoverably(self, part: Listing, before: int, kept: _Doomed) -> _Outcome:
        """Delete snapshots and check again; those that came into use meanwhile are restored.

        A writer that stores a child of one of these, or one with its chunks, checks afterwards that
        it still exists; if it did, the new snapshot is found here.
        """
        spare = {
            one: kept.files[one] for one in map(SnapshotId, whole(part.ids)) if one in kept.files
        }
        outcome = self._delete(part)
        try:
            _, self._stored = together(partial(self._refresh, spare), self._list_snapshots)
            self._spare_young(before, spare)
        except BaseException:
            self._restore(spare)
            raise
        named = contains(self._live.snapshots(), part.ids)
        back = [SnapshotId(identity) for identity in whole(part.ids[named])]
        self._restore({identity: spare[identity] for identity in back if identity in spare})
        for identity in spare:
            self._core.objects.forget_snapshot(identity)
        left = {self._key(identity) for identity in back}
        return replace(outcome, sizes={k: v for k, v in outcome.sizes.items() if k not in left})

    def _key(self, identity: SnapshotId) -> str:
        return self._core.refs.layout.snapshot(identity)

    def _restore(self, files: Mapping[SnapshotId, bytes]) -> None:
        if files:
            storage, refs = self._core.storage, self._core.refs
            marks = file_marks(refs.generation, FileType.SNAPSHOT)
            kind = file_content_type(refs.generation)
            storage.put_many(
                [Put(self._key(one), data, marks, kind) for one, data in files.items()]
            )
            storage.settle()

    def _delete_rank(
        self, plan: CollectionPlan, rank: Sequence[Layer], summary: GCSummary
    ) -> GCSummary:
        doomed = [plan.layer(layer) for layer in rank]
        for layer, outcomes in zip(
            rank, together(*(partial(self._delete_layer, one) for one in doomed)), strict=True
        ):
            for outcome in outcomes:
                summary = _counted(summary, layer, outcome)
        self._unseen = sum(map(len, doomed)) + (self._unseen or 0)
        return summary

    def _delete_layer(self, doomed: Listing | JobFiles) -> list[_Outcome]:
        return [self._delete(part) for part in parts(doomed, most=_KEYS_AT_ONCE)]

    def _delete(self, part: Listing | JobFiles) -> _Outcome:
        """One call; if it fails as a whole, no delete is confirmed."""
        keys = part.keys()
        try:
            if isinstance(part, UnfinishedFiles):
                deleted = remove_unfinished(self._core.storage, part)
            elif keys:
                # Files of jobs may be replaced by a job that is still running.
                deleted = self._core.storage.delete(keys, immutable=isinstance(part, Listing))
            else:
                deleted = Deleted()
        except StorageError as error:
            deleted = Deleted(failed=dict.fromkeys(keys, error.message))
        sizes = dict(zip(keys, part.sizes.tolist(), strict=True))
        return _Outcome({key: sizes[key] for key in deleted.keys}, deleted.failed)


@dataclass(frozen=True, slots=True)
class _Start:
    """The times and leases at the start of a collection."""

    now: int
    before: int
    leases: int
    """Number of leases older than the requested cut-off."""
    lapsed: tuple[Listed, ...]

    def plan(
        self, objects: Mapping[Layer, Listing], jobs: JobFiles, unfinished: UnfinishedFiles
    ) -> CollectionPlan:
        """The plan for the listed objects."""
        return CollectionPlan(self.before, objects, jobs, unfinished, self.now, self.leases)


@dataclass(frozen=True, slots=True)
class _Doomed:
    """Snapshot files that are about to be deleted."""

    ids: frozenset[bytes]
    files: Mapping[SnapshotId, bytes]
    """Those that exist."""
    record: str | None
    """Where they are stored in the meantime."""

    def holds(self, part: Listing) -> bool:
        """Whether all snapshots of a batch are among them."""
        return self.ids.issuperset(whole(part.ids))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one call."""

    sizes: Mapping[str, int]
    """Sizes of the deleted keys."""
    failed: Mapping[str, str]


def collect(
    core: Core,
    older_than: datetime,
    *,
    minimum_age: timedelta | None = None,
    dry_run: bool = False,
    limits: MemoryLimits | None = None,
    released: frozenset[SnapshotId] | None = None,
) -> GCSummary:
    """Plan a collection and, unless it is a dry run, carry it out."""
    collection = Collection(core, limits)
    if released is None:
        plan = collection.make_plan(older_than, minimum_age=minimum_age)
    else:
        plan = collection.make_plan_for(released, older_than, minimum_age=minimum_age)
    return as_if_done(plan) if dry_run else collection.carry_out(plan)


def unlist(refs: Register, doomed: Listing) -> None:
    """Unlist snapshots before their files are deleted, so that listed files exist.

    Raises, with nothing deleted, if one of them is now in use.
    """
    if not refs.unlist(frozenset(SnapshotId(one) for one in whole(doomed.ids))):
        raise MaintenanceError(
            "a snapshot that was about to be deleted has come into use; nothing was deleted. "
            "Try again"
        )


def _batches(doomed: Listing) -> Iterator[Listing]:
    """Snapshots in batches whose files fit into memory, newest first."""
    return parts(doomed.newest_first(), most=_SNAPSHOTS_AT_ONCE, most_bytes=_SPARE_BYTES)


def _counted(summary: GCSummary, layer: Layer, outcome: _Outcome) -> GCSummary:
    summary = summary.deleted(layer, len(outcome.sizes), sum(outcome.sizes.values()))
    if not outcome.failed:
        return summary
    return replace(
        summary,
        failed={**summary.failed, **outcome.failed},
        stopped_at=summary.stopped_at or layer,
    )
