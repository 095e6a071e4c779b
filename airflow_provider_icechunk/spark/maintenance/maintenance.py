"""Maintenance on Spark, for repositories that outgrow one process.

The decisions are those of `repository.maintenance`: the same plans, the same order of looking and
deleting, the same refusals. Executors list folders and read manifests, and what nothing refers to
is found by a join; references, history and deletion stay with the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.maintenance.collect import Collection
from airflow_provider_icechunk.repository.maintenance.collect_plan import (
    OBJECTS,
    CollectionPlan,
    GCSummary,
    Layer,
    as_if_done,
    prefix_of,
)
from airflow_provider_icechunk.repository.maintenance.findings import VerifyReport
from airflow_provider_icechunk.repository.maintenance.idsets import (
    NOTHING,
    Ids,
    contains,
    whole,
)
from airflow_provider_icechunk.repository.maintenance.listing import (
    JOBS,
    Listing,
    abandoned_jobs,
    unfinished_files,
)
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.repository.maintenance.measure import (
    Measurement,
    Measuring,
    Size,
    Stored,
    stored_files,
)
from airflow_provider_icechunk.repository.maintenance.reachable import (
    MemoryLimits,
    Reachable,
    chunk_ids,
)
from airflow_provider_icechunk.repository.maintenance.verify import (
    Examined,
    StoredFiles,
    Verification,
)
from airflow_provider_icechunk.spark.executor_errors import on_executors
from airflow_provider_icechunk.spark.places import RepositoryLike, opened
from airflow_provider_icechunk.spark.upkeep_frames import (
    Place,
    collected,
    listed,
    needed,
)
from airflow_provider_icechunk.spark.upkeep_looks import (
    Facts,
    examined,
    facts_of,
    sizes_of,
    unnamed,
    unsound,
)

_SOUND = 1 << 62
"""A size that is long enough for every reference."""


def garbage_collect(
    spark: SparkSession,
    repository: RepositoryLike,
    delete_object_older_than: datetime,
    *,
    minimum_age: timedelta | None = None,
    dry_run: bool = False,
) -> GCSummary:
    """Delete what no branch or tag reaches and that was stored before a given time.

    As `Repository.garbage_collect`, and as careful: that time must be older than the longest
    running session, only the store's clock counts, anything that cannot be read stops it before
    the first delete, and references are read again before every kind of object.
    """
    collection = SparkCollection(spark, engine_of(repository))
    plan = collection.make_plan(delete_object_older_than, minimum_age=minimum_age)
    return as_if_done(plan) if dry_run else collection.carry_out(plan)


def verify(spark: SparkSession, repository: RepositoryLike) -> VerifyReport:
    """Check that everything that branches and tags need is there, as `Repository.verify` does."""
    return SparkVerification(engine_of(repository), spark=spark).run()


def measure(spark: SparkSession, repository: RepositoryLike) -> Measurement:
    """Sizes of every version and array, and of the files, as `Repository.measure` does."""
    engine = engine_of(repository)
    return SparkMeasuring(spark, engine).run()


def engine_of(repository: RepositoryLike) -> Engine:
    """The engine of a repository, opened if it is only named."""
    return opened(repository).engine


class LaterReachable(Reachable):
    """What references reach, with manifests put aside for executors instead of being read.

    Once they were taken, what is reached in addition is read here, because it is little.
    """

    def __init__(self, loader: Loader, limits: MemoryLimits | None = None) -> None:
        super().__init__(loader, limits)
        self._later: list[bytes] | None = []

    def take_manifests(self) -> list[bytes]:
        """The manifests put aside. From now on their chunks are the caller's matter."""
        taken, self._later = self._later or [], None
        return taken

    def _chunks_of(self, identity: bytes) -> Ids:
        if self._later is None:
            return super()._chunks_of(identity)
        self._later.append(identity)
        return NOTHING


class SparkCollection(Collection):
    """A collection whose plan is made by executors and carried out as always.

    The plan of chunks holds what the join found, so its listing may be as late as the join. That
    is no risk: references are looked at after it once more, and what became reachable goes out.
    """

    def __init__(self, spark: SparkSession, engine: Engine) -> None:
        super().__init__(engine)
        self._spark = spark
        self._later = LaterReachable(Loader(engine.storage, engine.ledger))
        self._live = self._later

    def make_plan(
        self, older_than: datetime, *, minimum_age: timedelta | None = None
    ) -> CollectionPlan:
        """List, find out what is in use, and join. Deletes nothing."""
        start = self._begin(older_than, minimum_age)
        before = start.before
        place, layout = Place.of(self._engine), self._engine.ledger.layout
        found: dict[Layer, Listing] = {}
        for layer in OBJECTS:
            prefix = prefix_of(layer, layout)
            if prefix is None:
                found[layer] = Listing.empty("")
            elif layer is not Layer.CHUNKS:
                frame = listed(self._spark, place, prefix, before=before)
                found[layer] = collected(frame, prefix, place)
        jobs = abandoned_jobs(self._engine.storage.scan(JOBS), before, start.lapsed)
        unfinished = unfinished_files(self._engine.storage, before)
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

    The driver looks closer only at manifests that a join found something about, with the same
    checks as always.
    """

    spark: SparkSession | None = None
    loose: Listing | None = None
    chunk_files: int = 0

    def run(self) -> VerifyReport:
        """Look at everything and report."""
        report = Verification.run(self)
        return replace(report, checked={**report.checked, "chunk_files": self.chunk_files})

    def list_files(self) -> StoredFiles:
        """Everything that is stored, but chunk files, which a join looks at later."""
        layout = self.engine.ledger.layout
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
        """Check manifests on executors; in the given order."""
        assert self.spark is not None
        place, prefix = Place.of(self.engine), self.engine.ledger.layout.chunks
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
        """Report files that nothing names."""
        assert self.loose is not None
        Verification.count_unreachable(
            self, snapshots, replace(stored, chunks=self.loose), manifests
        )

    def _judged(
        self,
        identity: ManifestId,
        user: Snapshot,
        facts: Facts | None,
        wrong: Mapping[bytes, int | None],
        stored: StoredFiles,
    ) -> Examined | MaintenanceError:
        file = user.manifest_files.get(identity)
        counted = facts is not None and (file is None or file.num_chunk_refs == facts.references)
        if facts is not None and counted and not wrong:
            return Examined(facts.boxes, NOTHING, facts.references, [])
        try:
            manifest = Loader(self.engine.storage, self.engine.ledger).manifest(identity)
        except MaintenanceError as problem:
            return problem
        chunks = _as_found(manifest, wrong, stored.chunks)
        closer = self.examine(manifest, user, replace(stored, chunks=chunks))
        return replace(closer, chunks=NOTHING)

    def _listed(self, prefix: str) -> Listing:
        assert self.spark is not None
        place = Place.of(self.engine)
        return collected(listed(self.spark, place, prefix), prefix, place)


def _as_found(manifest: Manifest, wrong: Mapping[bytes, int | None], chunks: Listing) -> Listing:
    """The chunk files of a manifest as a listing: nothing is known of the sound ones but that."""
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

    def __init__(self, spark: SparkSession, engine: Engine) -> None:
        self._later = LaterReachable(Loader(engine.storage, engine.ledger))
        super().__init__(engine, self._later)
        self._spark = spark
        self._place = Place.of(engine)

    def sizes(self, manifests: Sequence[ManifestId]) -> list[dict[NodeId, Size]]:
        """What each manifest holds of each array."""
        found = sizes_of(self._spark, self._place, manifests)
        return [found.get(one, {}) for one in manifests]

    def stored(self, prefix: str, kept: Ids) -> Stored:
        """The files of one folder."""
        everything = listed(self._spark, self._place, prefix).persist()
        try:
            if prefix == self.engine.ledger.layout.chunks:
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
