"""What a collection would delete, and what it has deleted. Pure values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.codec import Layout
from airflow_provider_icechunk.engine.world import from_micros, to_micros

from .listing import Ids, JobFiles, Listing, UnfinishedFiles, contains
from .reachable import Reachable


class Layer(StrEnum):
    """Kinds of objects, in the order in which they are shown and counted.

    `RANKS` says which are deleted together. Snapshots are deleted before everything they refer to,
    and chunks last, so a process that dies in between leaves unreferenced objects, never dangling
    references.
    """

    SNAPSHOTS = "snapshots"
    TRANSACTIONS = "transactions"
    MANIFESTS = "manifests"
    ATTRIBUTES = "attributes"
    CHUNKS = "chunks"
    JOBS = "jobs"
    """Files of workers in folders of jobs that have long been inactive, and lapsed leases."""
    UNFINISHED = "unfinished"
    """Files left on a local file system by killed writers."""


RANKS = (
    (Layer.SNAPSHOTS,),
    (Layer.TRANSACTIONS, Layer.MANIFESTS, Layer.ATTRIBUTES),
    (Layer.CHUNKS, Layer.JOBS, Layer.UNFINISHED),
)
"""Layers that are deleted together: none of them refers to another one of its rank."""

AnyDeletable = TypeVar("AnyDeletable", bound="Deletable")

OBJECTS = (Layer.SNAPSHOTS, Layer.TRANSACTIONS, Layer.MANIFESTS, Layer.ATTRIBUTES, Layer.CHUNKS)


def prefix_of(layer: Layer, layout: Layout) -> str | None:
    """The folder of a layer; `None` if the generation has none."""
    match layer:
        case Layer.SNAPSHOTS:
            return layout.snapshots
        case Layer.TRANSACTIONS:
            return layout.transactions
        case Layer.MANIFESTS:
            return layout.manifests
        case Layer.ATTRIBUTES:
            return layout.attributes
        case _:
            return layout.chunks


def cutoff(older_than: datetime, minimum_age: timedelta | None, store_now: datetime) -> int:
    """The store time in microseconds before which unreferenced objects are deleted. Pure.

    With `minimum_age` it is at least that far before the store's current time, regardless of the
    caller's clock.
    """
    limit = to_micros(older_than)
    if minimum_age is None:
        return limit
    return min(limit, to_micros(store_now - minimum_age))


class Deletable(Protocol):
    """Objects that can be deleted in parts."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Size of each object."""
        ...

    @property
    def total_bytes(self) -> int:
        """Size of all objects."""
        ...

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Objects `start` up to `stop`."""
        ...

    def keys(self) -> list[str]:
        """Their keys."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CollectionPlan:
    """Objects that are old enough and unreferenced, by layer."""

    before: int
    """Store time in microseconds since 1970; only objects written before it are in the plan."""
    objects: Mapping[Layer, Listing]
    jobs: JobFiles
    unfinished: UnfinishedFiles
    made_at: int = 0
    """Store time in microseconds when planning started."""
    leases: int = 0
    """Number of running sessions and jobs that moved the cut-off before the requested one."""

    def __len__(self) -> int:
        return sum(len(self.layer(layer)) for layer in Layer)

    @property
    def cutoff(self) -> datetime:
        """Only objects stored before this are in the plan.

        Earlier than requested if the store's clock is behind, or because of long-running work.
        """
        return from_micros(self.before)

    @property
    def total_bytes(self) -> int:
        """How much storage would be freed."""
        return sum(self.layer(layer).total_bytes for layer in Layer)

    def layer(self, layer: Layer) -> Listing | JobFiles:
        """The objects of one layer that would be deleted."""
        match layer:
            case Layer.JOBS:
                return self.jobs
            case Layer.UNFINISHED:
                return self.unfinished
            case _:
                return self.objects[layer]

    def without(self, live: Reachable) -> CollectionPlan:
        """The plan without objects that are reachable, under any name."""
        kept = live_ids(live)
        return replace(
            self,
            objects={
                layer: listing.take(~contains(kept[layer], listing.ids)).unclaimed()
                for layer, listing in self.objects.items()
            },
        )

    @property
    def limit(self) -> int | None:
        """The earliest cut-off that gives the same objects; `None` if there are none."""
        newest = [int(one.created.max()) for one in self.objects.values() if len(one)]
        return min(self.before, max(newest) + 1) if newest else None

    def stored_before(self, limit: int) -> CollectionPlan:
        """The plan with another cut-off. An earlier one leaves job files for the next run."""
        if limit >= self.before:
            return self
        return replace(
            self,
            before=limit,
            objects={layer: one.take(one.created < limit) for layer, one in self.objects.items()},
            jobs=self.jobs.part(0, 0),
            unfinished=self.unfinished.part(0, 0),
        )

    def as_dict(self) -> dict[str, object]:
        """Counts and bytes in JSON values."""
        layers = {layer.value: self.layer(layer) for layer in Layer}
        return {
            name: {"count": len(objects), "bytes": objects.total_bytes}
            for name, objects in layers.items()
        }


def live_ids(live: Reachable) -> dict[Layer, Ids]:
    """The ids each layer must keep. A log is kept with its snapshot, or one that needs it."""
    return {
        Layer.SNAPSHOTS: live.snapshots(),
        Layer.TRANSACTIONS: live.logs(),
        Layer.MANIFESTS: live.manifests(),
        Layer.ATTRIBUTES: live.attributes(),
        Layer.CHUNKS: live.chunks(),
    }


@dataclass(frozen=True, slots=True, repr=False)
class GCSummary(Shown):
    """What a collection deleted, or would delete in a dry run. Only confirmed deletes count."""

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    transaction_logs_deleted: int = 0
    job_files_deleted: int = 0
    unfinished_files_deleted: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    """Keys that could not be deleted, and why."""
    stopped_at: Layer | None = None
    """The first layer in which deletes failed; what it refers to was not touched."""
    dry_run: bool = False
    plan: CollectionPlan | None = field(default=None, repr=False, compare=False)

    @property
    def objects_failed_to_delete(self) -> int:
        """How many objects could not be deleted; `failed` has each with its reason."""
        return len(self.failed)

    @property
    def delete_errors(self) -> list[str]:
        """The first distinct reasons, at most ten."""
        return list(dict.fromkeys(self.failed.values()))[:_MOST_ERRORS]

    @property
    def throttled_batches(self) -> int:
        """Always 0: a storage that is asked to slow down waits and tries again by itself."""
        return 0

    @property
    def skipped_phases(self) -> list[str]:
        """The kinds of objects that were not begun, because deletes before them failed."""
        if self.stopped_at is None:
            return []
        rank = next(number for number, rank in enumerate(RANKS) if self.stopped_at in rank)
        later = [layer for rank in RANKS[rank + 1 :] for layer in rank]
        return [_PHASES[layer] for layer in later if layer in _PHASES]

    def shown_facts(self) -> Mapping[str, object]:
        """What was deleted and what was not."""
        facts = {item.name: getattr(self, item.name) for item in fields(self) if item.repr}
        names = ("objects_failed_to_delete", "throttled_batches", "delete_errors", "skipped_phases")
        return {**facts, **{name: getattr(self, name) for name in names}}

    @property
    def complete(self) -> bool:
        """Whether everything planned was deleted."""
        return self.stopped_at is None

    @property
    def problem(self) -> str | None:
        """What was not deleted and what to do about it; `None` if everything was."""
        if self.complete:
            return None
        key, reason = next(iter(self.failed.items()))
        count = len(self.failed)
        return (
            f"{count:,} {'object' if count == 1 else 'objects'} could not be deleted, such as "
            f"{key}: {reason}; {self._untouched}. Run the collection again"
        )

    @property
    def _untouched(self) -> str:
        """What waits for the rank that failed."""
        if self.stopped_at is Layer.SNAPSHOTS:
            return "nothing that snapshots refer to was deleted"
        if self.stopped_at in RANKS[1]:
            return "no chunks were deleted"
        return "nothing refers to them"

    def deleted(self, layer: Layer, count: int, size: int) -> GCSummary:
        """The summary with `count` more deleted objects of a layer."""
        name = _FIELDS[layer]
        return replace(
            self, bytes_deleted=self.bytes_deleted + size, **{name: getattr(self, name) + count}
        )

    def as_dict(self) -> dict[str, object]:
        """The summary in JSON values."""
        return {
            "bytes_deleted": self.bytes_deleted,
            **{name: getattr(self, name) for name in _FIELDS.values()},
            "failed": dict(self.failed),
            "stopped_at": None if self.stopped_at is None else self.stopped_at.value,
            "dry_run": self.dry_run,
        }


_MOST_ERRORS = 10
_PHASES = {
    Layer.TRANSACTIONS: "transaction_logs",
    Layer.MANIFESTS: "manifests",
    Layer.CHUNKS: "chunks",
}
_FIELDS = {
    Layer.SNAPSHOTS: "snapshots_deleted",
    Layer.TRANSACTIONS: "transaction_logs_deleted",
    Layer.MANIFESTS: "manifests_deleted",
    Layer.ATTRIBUTES: "attributes_deleted",
    Layer.CHUNKS: "chunks_deleted",
    Layer.JOBS: "job_files_deleted",
    Layer.UNFINISHED: "unfinished_files_deleted",
}


def as_if_done(plan: CollectionPlan) -> GCSummary:
    """The summary that carrying out the plan would give if nothing failed."""
    summary = GCSummary(dry_run=True, plan=plan)
    for layer in Layer:
        objects = plan.layer(layer)
        summary = summary.deleted(layer, len(objects), objects.total_bytes)
    return summary


def parts(
    objects: AnyDeletable, *, most: int, most_bytes: int | None = None
) -> Iterator[AnyDeletable]:
    """Groups of at most `most` objects and, unless a single one is larger, `most_bytes`. Pure."""
    start, total = 0, 0
    for place, size in enumerate(objects.sizes.tolist()):
        heavy = most_bytes is not None and place > start and total + size > most_bytes
        if heavy or place - start >= most:
            yield objects.part(start, place)
            start, total = place, 0
        total += size
    if start < len(objects):
        yield objects.part(start, len(objects))
