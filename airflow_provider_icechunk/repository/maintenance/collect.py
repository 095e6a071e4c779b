"""Delete what nothing reachable names, once it is old enough.

The order of looking protects writers: objects are listed first and references read afterwards, so
what is committed meanwhile is either not in the listing or found to be in use. Only the store's
clock decides about age. References are read again before every layer; what they reach by then is
taken out of the plan. Snapshots are deleted with their bytes still at hand: if a reference to one
of them appears at that very moment, it is put back before anything below it is touched.

What is not committed yet is protected by its age and, where the work is longer, by a lease
(`repository.leases`): the cut-off is written down and leases are read before anything is deleted.
A snapshot that was flushed or staged and that nothing names keeps what it needs while it is younger
than the cut-off.

Generation `2` closes the last gap by taking snapshots off its list before it deletes their files;
the others have it: a process that looked at a snapshot before it was deleted and creates a
reference to it after the collector looked for the last time. (`draft` has a list as well, but its
files can be named without it.)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_icechunk.exceptions import Kind, MaintenanceError, StorageError
from airflow_provider_icechunk.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.format.generations.base import FileType
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.detection import check_newest
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.leases import (
    CLOCKS_DIFFER,
    read_leases,
    write_cutoff,
)
from airflow_provider_icechunk.repository.ledgers.base import Register, Trust
from airflow_provider_icechunk.repository.maintenance.collect_plan import (
    OBJECTS,
    CollectionPlan,
    GCSummary,
    Layer,
    as_if_done,
    cutoff,
    parts,
    prefix_of,
)
from airflow_provider_icechunk.repository.maintenance.idsets import contains, whole
from airflow_provider_icechunk.repository.maintenance.listing import (
    JOBS,
    JobFiles,
    Listing,
    UnfinishedFiles,
    abandoned_jobs,
    list_folder,
    remove_unfinished,
    unfinished_files,
)
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.repository.maintenance.reachable import MemoryLimits, Reachable
from airflow_provider_icechunk.repository.maintenance.walk import Roots, read_roots
from airflow_provider_icechunk.repository.world import from_micros, to_micros
from airflow_provider_icechunk.storage.base import Deleted, Listed, Put

_SNAPSHOTS_AT_ONCE = 1000
_KEYS_AT_ONCE = 20_000
"""A storage spreads what it is given; each call waits once for a disk."""
_SPARE_BYTES = 64 << 20
_TRIES = 20


class Collection:
    """One run of the collector: make the plan, look at it, carry it out or do not."""

    def __init__(self, engine: Engine, limits: MemoryLimits | None = None) -> None:
        engine.ledger.check_writable()
        self._engine = engine
        self._live = Reachable(Loader(engine.storage, engine.ledger), limits)
        self._roots: Roots | None = None
        self._stored: Listing | None = None
        """Snapshot files, if they were listed a moment ago."""
        self._old: frozenset[SnapshotId] = frozenset()

    def make_plan(
        self, older_than: datetime, *, minimum_age: timedelta | None = None
    ) -> CollectionPlan:
        """List, then find out what is in use. Deletes nothing.

        Raises `MaintenanceError` if any reachable metadata cannot be read.
        """
        start = self._begin(older_than, minimum_age)
        before = start.before
        storage, layout = self._engine.storage, self._engine.ledger.layout
        listed = {
            layer: Listing.empty("")
            if (prefix := prefix_of(layer, layout)) is None
            else list_folder(storage, layout, prefix, before=before)
            for layer in OBJECTS
        }
        jobs = abandoned_jobs(storage.scan(JOBS), before, start.lapsed)
        unfinished = unfinished_files(storage, before)
        self._old = frozenset(SnapshotId(one) for one in whole(listed[Layer.SNAPSHOTS].ids))
        self._refresh()
        self._spare_young(before)
        return start.plan(listed, jobs, unfinished).without(self._live)

    def _begin(self, older_than: datetime, minimum_age: timedelta | None) -> _Start:
        """The cut-off by the store's clock and by the leases that there are."""
        storage = self._engine.storage
        now = storage.now()
        wanted = cutoff(older_than, minimum_age, now)
        if wanted > to_micros(now + CLOCKS_DIFFER):
            warnings.warn(
                f"the cut-off {from_micros(wanted).isoformat()} is in the future of "
                f"{storage.location}, where it is {now.isoformat()}: what running sessions have "
                "stored and not committed is collected",
                stacklevel=5,
            )
        leases = read_leases(storage, to_micros(now))
        older = sum(lease.since < wanted for lease in leases.live)
        return _Start(to_micros(now), leases.limit(wanted), older, leases.lapsed)

    def carry_out(self, plan: CollectionPlan) -> GCSummary:
        """Delete as planned, layer by layer, less what is in use by now.

        Stops after the layer in which a delete failed; the summary says which keys and why. An
        operations log gets its entry also if there is nothing to delete.
        """
        if isinstance(self._engine.ledger, Register):
            self._refresh()
            strike_off(self._engine.ledger, plan.without(self._live).objects[Layer.SNAPSHOTS])
        plan = self._announce(plan)
        summary = GCSummary(plan=plan)
        for layer in Layer:
            if not len(plan.layer(layer)):
                continue
            self._refresh()
            plan = plan.without(self._live)
            if layer is Layer.SNAPSHOTS:
                summary = self._delete_snapshots(plan.objects[layer], summary)
            else:
                summary = self._delete_layer(plan.layer(layer), layer, summary)
            if summary.stopped_at is not None:
                break
        return summary

    def _announce(self, plan: CollectionPlan) -> CollectionPlan:
        """Write the cut-off down, then leave out what leases protect by now.

        Whoever leaves a lease later finds the cut-off before it commits.
        """
        limit = plan.limit
        if limit is None:
            return plan
        storage, settings = self._engine.storage, self._engine.settings.storage
        trust = Trust.of(
            creates=settings.use_conditional_create, updates=settings.use_conditional_update
        )
        write_cutoff(storage, trust, limit)
        plan = plan.stored_before(read_leases(storage, plan.made_at).limit(plan.before))
        self._spare_young(plan.before)
        return plan.without(self._live)

    def _spare_young(self, before: int) -> None:
        """Keep what snapshots need that are too young to go, whoever names them or does not."""
        stored, self._stored = self._stored or self._list_snapshots(), None
        young = stored.take(stored.created >= before)
        self._live.keep([SnapshotId(one) for one in whole(young.ids)])

    def _list_snapshots(self) -> Listing:
        layout = self._engine.ledger.layout
        return list_folder(self._engine.storage, layout, layout.snapshots)

    def _refresh(self, spare: Mapping[SnapshotId, bytes] | None = None) -> None:
        """Take in where references are now.

        Returns only after two looks that agree: while a branch is created and another one deleted,
        a single look could miss both.
        """
        if self._roots is None:
            self._stored = self._list_snapshots()
            self._live.walk.read_ahead([SnapshotId(one) for one in whole(self._stored.ids)])
        check_newest(self._engine.storage, self._engine.generation)
        for _ in range(_TRIES):
            roots = read_roots(self._engine.ledger, self._old)
            if roots == self._roots:
                return
            self._live.extend(roots.tips(), spare)
            self._roots = roots
        raise MaintenanceError(
            f"the references of {self._engine.storage.location} moved {_TRIES} times in a row "
            "while it was being collected; nothing more is deleted. Try again when it is quieter",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _delete_snapshots(self, doomed: Listing, summary: GCSummary) -> GCSummary:
        """Newest first, so that what is put back finds its ancestors still there."""
        for part in parts(doomed.newest_first(), most=_SNAPSHOTS_AT_ONCE, most_bytes=_SPARE_BYTES):
            unnamed = ~contains(self._live.snapshots(), part.ids)
            outcome = self._delete_recoverably(part.take(unnamed))
            summary = _counted(summary, Layer.SNAPSHOTS, outcome)
            if summary.stopped_at is not None:
                break
        return summary

    def _delete_recoverably(self, part: Listing) -> _Outcome:
        """Delete snapshots and look once more; one that got a name meanwhile is put back."""
        keys = part.keys()
        found = self._engine.storage.get_many([(key, None) for key in keys])
        spare = {
            SnapshotId(identity): fetched.data
            for identity, fetched in zip(whole(part.ids), found, strict=True)
            if fetched is not None
        }
        outcome = self._delete(part)
        try:
            self._refresh(spare)
        except BaseException:
            self._put_back(spare)
            raise
        named = contains(self._live.snapshots(), part.ids)
        back = [SnapshotId(identity) for identity in whole(part.ids[named])]
        self._put_back({identity: spare[identity] for identity in back if identity in spare})
        for identity in spare:
            self._engine.assets.forget_snapshot(identity)
        kept = {self._engine.ledger.layout.snapshot(identity) for identity in back}
        return replace(outcome, sizes={k: v for k, v in outcome.sizes.items() if k not in kept})

    def _put_back(self, files: Mapping[SnapshotId, bytes]) -> None:
        if files:
            storage, ledger = self._engine.storage, self._engine.ledger
            marks = file_marks(ledger.generation, FileType.SNAPSHOT)
            kind = file_content_type(ledger.generation)
            key = ledger.layout.snapshot
            storage.put_many([Put(key(one), data, marks, kind) for one, data in files.items()])
            storage.settle()

    def _delete_layer(
        self, doomed: Listing | JobFiles, layer: Layer, summary: GCSummary
    ) -> GCSummary:
        for part in parts(doomed, most=_KEYS_AT_ONCE):
            summary = _counted(summary, layer, self._delete(part))
        return summary

    def _delete(self, part: Listing | JobFiles) -> _Outcome:
        """One call; if it fails as a whole, it has deleted nothing that could be confirmed."""
        keys = part.keys()
        # What jobs leave may be replaced by one that is still alive.
        immutable = isinstance(part, Listing)
        try:
            if isinstance(part, UnfinishedFiles):
                deleted = remove_unfinished(self._engine.storage, part)
            elif keys:
                deleted = self._engine.storage.delete(keys, immutable=immutable)
            else:
                deleted = Deleted()
        except StorageError as error:
            deleted = Deleted(failed=dict.fromkeys(keys, error.message))
        sizes = dict(zip(keys, part.sizes.tolist(), strict=True))
        return _Outcome({key: sizes[key] for key in deleted.keys}, deleted.failed)


@dataclass(frozen=True, slots=True)
class _Start:
    """What a collection knows before it looks."""

    now: int
    before: int
    leases: int
    """That are older than the cut-off asked for."""
    lapsed: tuple[Listed, ...]

    def plan(
        self, objects: Mapping[Layer, Listing], jobs: JobFiles, unfinished: UnfinishedFiles
    ) -> CollectionPlan:
        """The plan for what was found."""
        return CollectionPlan(self.before, objects, jobs, unfinished, self.now, self.leases)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one call deleted."""

    sizes: Mapping[str, int]
    """Of the keys that are gone."""
    failed: Mapping[str, str]


def collect(
    engine: Engine,
    older_than: datetime,
    *,
    minimum_age: timedelta | None = None,
    dry_run: bool = False,
    limits: MemoryLimits | None = None,
) -> GCSummary:
    """Plan and, unless it is a dry run, carry out."""
    collection = Collection(engine, limits)
    plan = collection.make_plan(older_than, minimum_age=minimum_age)
    return as_if_done(plan) if dry_run else collection.carry_out(plan)


def strike_off(ledger: Register, doomed: Listing) -> None:
    """Take snapshots off the list of a ledger before their files go: what is listed is there.

    Refuses, with nothing deleted, if something names one of them by now.
    """
    if not ledger.strike_off(frozenset(SnapshotId(one) for one in whole(doomed.ids))):
        raise MaintenanceError(
            "a snapshot that was to be collected came into use meanwhile; nothing was deleted. "
            "Try again"
        )


def _counted(summary: GCSummary, layer: Layer, outcome: _Outcome) -> GCSummary:
    summary = summary.deleted(layer, len(outcome.sizes), sum(outcome.sizes.values()))
    if not outcome.failed:
        return summary
    return replace(summary, failed={**summary.failed, **outcome.failed}, stopped_at=layer)
