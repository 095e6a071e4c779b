"""Maintenance on Spark, for repositories that outgrow one process.

The decisions are those of `engine.maintenance`: the same plans, order and refusals. Executors list
folders and read manifests, and a join finds unreferenced objects; the driver handles refs,
history and deletion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot
from airflow_provider_icechunk.engine.maintenance.collect import Collection
from airflow_provider_icechunk.engine.maintenance.collect_plan import (
    OBJECTS,
    CollectionPlan,
    GCSummary,
    Layer,
    as_if_done,
    prefix_of,
)
from airflow_provider_icechunk.engine.maintenance.findings import VerifyReport
from airflow_provider_icechunk.engine.maintenance.listing import (
    JOBS,
    NOTHING,
    Ids,
    Listing,
    abandoned_jobs,
    contains,
    unfinished_files,
    whole,
)
from airflow_provider_icechunk.engine.maintenance.measure import (
    Measurement,
    Measuring,
    Size,
    Stored,
    stored_files,
)
from airflow_provider_icechunk.engine.maintenance.reachable import (
    Loader,
    MemoryLimits,
    Reachable,
    chunk_ids,
)
from airflow_provider_icechunk.engine.maintenance.verify import Examined, StoredFiles, Verification
from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.spark.runtime import RepositoryLike, on_executors, opened

from .frames import (
    ManifestFacts,
    Place,
    collected,
    examined,
    facts_of,
    listed,
    needed,
    sizes_of,
    unnamed,
    unsound,
)

_SOUND = 1 << 62
"""A size large enough for every reference."""


def collect(
    spark: SparkSession,
    repository: RepositoryLike,
    older_than: datetime,
    *,
    minimum_age: timedelta | None = None,
    dry_run: bool = False,
) -> GCSummary:
    """Delete objects that no branch or tag reaches and that were stored before a given time.

    As careful as `Repository.collect`: the time must be before the start of the longest running
    session, only the store's clock counts, anything unreadable stops it before the first delete,
    and refs are read again before each kind of object.
    """
    collection = SparkCollection(spark, core_of(repository))
    plan = collection.make_plan(older_than, minimum_age=minimum_age)
    return as_if_done(plan) if dry_run else collection.carry_out(plan)


garbage_collect = collect
"""The official name."""


def verify(spark: SparkSession, repository: RepositoryLike) -> VerifyReport:
    """Check that all objects branches and tags need exist, like `Repository.verify`."""
    return SparkVerification(core_of(repository), spark=spark).run()


def measure(spark: SparkSession, repository: RepositoryLike) -> Measurement:
    """Measure versions, arrays and files, like `Repository.measure`."""
    core = core_of(repository)
    return SparkMeasuring(spark, core).run()


def core_of(repository: RepositoryLike) -> Core:
    """The core of a repository, opened if necessary."""
    return opened(repository).core


class LaterReachable(Reachable):
    """Everything refs reach, with manifests set aside for executors instead of being read.

    The few manifests reached after that are read here.
    """

    def __init__(self, loader: Loader, limits: MemoryLimits | None = None) -> None:
        super().__init__(loader, limits)
        self._later: list[bytes] | None = []

    def take_manifests(self) -> list[bytes]:
        """The manifests set aside. From now on the caller handles their chunks."""
        taken, self._later = self._later or [], None
        return taken

    def _chunks_of(self, identity: bytes) -> Ids:
        if self._later is None:
            return super()._chunks_of(identity)
        self._later.append(identity)
        return NOTHING


class SparkCollection(Collection):
    """A collection that executors plan and the driver carries out as usual.

    Its listing of chunks may be as late as the join. That is safe: refs are read again afterwards,
    and what has become reachable is left out.
    """

    def __init__(self, spark: SparkSession, core: Core) -> None:
        super().__init__(core)
        self._spark = spark
        self._later = LaterReachable(Loader(core.storage, core.refs))
        self._live = self._later

    def make_plan(
        self, older_than: datetime, *, minimum_age: timedelta | None = None
    ) -> CollectionPlan:
        """List objects, find those in use, and join. Deletes nothing."""
        start = self._begin(older_than, minimum_age)
        before = start.before
        place, layout = Place.of(self._core), self._core.refs.layout
        found: dict[Layer, Listing] = {}
        for layer in OBJECTS:
            prefix = prefix_of(layer, layout)
            if prefix is None:
                found[layer] = Listing.empty("")
            elif layer is not Layer.CHUNKS:
                frame = listed(self._spark, place, prefix, before=before)
                found[layer] = collected(frame, prefix, place)
        jobs = abandoned_jobs(self._core.storage.scan(JOBS), before, start.lapsed)
        unfinished = unfinished_files(self._core.storage, before)
        self._old = frozenset(SnapshotId(one) for one in whole(found[Layer.SNAPSHOTS].ids))
        self._refresh()
        manifests = self._later.take_manifests()
        stored = listed(self._spark, place, layout.chunks, before=before)
        loose = stored.join(needed(self._spark, place, manifests), "id", "left_anti")
        found[Layer.CHUNKS] = collected(loose, layout.chunks, place)
        self._refresh()
        self._spare_young(before)
        return start.plan(found, jobs, unfinished).without(self._live)


@dataclass(slots=True)
class SparkVerification(Verification):
    """A verification whose manifests are read by executors.

    The driver runs the usual checks only on manifests for which a join found a problem.
    """

    spark: SparkSession | None = None
    loose: Listing | None = None
    chunk_files: int = 0

    def run(self) -> VerifyReport:
        """Check everything and report."""
        report = Verification.run(self)
        return replace(report, checked={**report.checked, "chunk_files": self.chunk_files})

    def list_files(self) -> StoredFiles:
        """All stored objects except chunk files, which a join checks later."""
        layout = self.core.refs.layout
        return StoredFiles(
            self._listed(layout.snapshots),
            self._listed(layout.transactions),
            self._listed(layout.manifests),
            Listing.empty(layout.chunks),
            Listing.empty("") if layout.attributes is None else self._listed(layout.attributes),
        )

    def examine_all(
        self, namer: Mapping[ManifestId, Snapshot], stored: StoredFiles
    ) -> list[Examined | MaintenanceError]:
        """Check manifests on executors, in the given order."""
        assert self.spark is not None
        place, prefix = Place.of(self.core), self.core.refs.layout.chunks
        found = listed(self.spark, place, prefix).persist()
        looked = examined(self.spark, place, list(namer)).persist()
        try:
            facts = facts_of(looked)
            wrong = unsound(looked, found)
            self.loose = collected(unnamed(looked, found), prefix, place)
            self.chunk_files = on_executors(found.count)
        finally:
            looked.unpersist()
            found.unpersist()
        return [
            self._judged(one, user, facts.get(one), wrong.get(one, {}), stored)
            for one, user in namer.items()
        ]

    def count_unreachable(
        self,
        snapshots: Mapping[SnapshotId, Snapshot],
        stored: StoredFiles,
        manifests: Mapping[ManifestId, Examined],
    ) -> None:
        """Report unreferenced files."""
        assert self.loose is not None
        Verification.count_unreachable(
            self, snapshots, replace(stored, chunks=self.loose), manifests
        )

    def _judged(
        self,
        identity: ManifestId,
        user: Snapshot,
        facts: ManifestFacts | None,
        wrong: Mapping[bytes, int | None],
        stored: StoredFiles,
    ) -> Examined | MaintenanceError:
        file = user.manifest_files.get(identity)
        counted = facts is not None and (file is None or file.num_chunk_refs == facts.references)
        if facts is not None and counted and not wrong:
            return Examined(facts.boxes, NOTHING, facts.references, [])
        try:
            manifest = Loader(self.core.storage, self.core.refs).manifest(identity)
        except MaintenanceError as problem:
            return problem
        chunks = _as_found(manifest, wrong, stored.chunks)
        closer = self.examine(manifest, user, replace(stored, chunks=chunks))
        return replace(closer, chunks=NOTHING)

    def _listed(self, prefix: str) -> Listing:
        assert self.spark is not None
        place = Place.of(self.core)
        return collected(listed(self.spark, place, prefix), prefix, place)


def _as_found(manifest: Manifest, wrong: Mapping[bytes, int | None], chunks: Listing) -> Listing:
    """The chunk files of a manifest as a listing; the size of intact ones is unknown."""
    ids = chunk_ids(manifest)
    sizes = np.array([wrong.get(one, _SOUND) for one in whole(ids)], object)
    there = np.array([size is not None for size in sizes], np.bool_)
    return Listing(
        chunks.prefix,
        ids[there],
        sizes[there].astype(np.int64),
        np.zeros(int(there.sum()), np.int64),
        chunks.names,
    )


class SparkMeasuring(Measuring):
    """A measurement whose manifests are read by executors."""

    def __init__(self, spark: SparkSession, core: Core) -> None:
        self._later = LaterReachable(Loader(core.storage, core.refs))
        super().__init__(core, self._later)
        self._spark = spark
        self._place = Place.of(core)

    def sizes(self, manifests: Sequence[ManifestId]) -> list[dict[NodeId, Size]]:
        """The references to each array in each manifest."""
        found = sizes_of(self._spark, self._place, manifests)
        return [found.get(one, {}) for one in manifests]

    def stored(self, prefix: str, kept: Ids) -> Stored:
        """The files of one folder."""
        everything = listed(self._spark, self._place, prefix).persist()
        try:
            if prefix == self.core.refs.layout.chunks:
                named = needed(self._spark, self._place, self._later.take_manifests())
                unused = everything.join(named, "id", "left_anti")
                return Stored(*_totals(everything), *_totals(unused))
            listing = collected(everything, prefix, self._place)
            return stored_files(listing, listing.take(~contains(kept, listing.ids)))
        finally:
            everything.unpersist()


def _totals(objects: DataFrame) -> tuple[int, int]:
    summed = objects.selectExpr("count(1) as count", "coalesce(sum(size), 0) as bytes")
    (row,) = on_executors(summed.collect)
    return int(row["count"]), int(row["bytes"])
