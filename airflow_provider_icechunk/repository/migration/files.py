"""Store what a plan says in the files of generation `1`: manifests, chunks, then snapshots.

Nothing of it is seen before the switch, with one exception: snapshots and logs of `alpha` keep
their ids and so their keys, and are replaced in place. This package reads either form, so its
readers of the old repository see no difference. Their manifests are new files, stored before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from airflow_provider_icechunk.format.generations.v1.layout import V1Layout
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.format.transactions import TransactionLog
from airflow_provider_icechunk.repository.assets import Assets, CacheLimits
from airflow_provider_icechunk.repository.ledgers.v1 import V1Ledger
from airflow_provider_icechunk.repository.migration.chunks import Copy, copy_all, plan_copies
from airflow_provider_icechunk.repository.migration.manifests import ManifestConverter
from airflow_provider_icechunk.repository.migration.plan import (
    Listener,
    MigrationPlan,
    MigrationProgress,
    Step,
)
from airflow_provider_icechunk.repository.migration.snapshots import convert_log, convert_snapshot
from airflow_provider_icechunk.repository.migration.survey import Source
from airflow_provider_icechunk.storage.pool import run_all

_BATCH = 64
_AT_ONCE = 8
_NO_CACHE = CacheLimits(1, 1, 1)


@dataclass(frozen=True, slots=True)
class Files:
    """How many files a plan needs."""

    manifests: int = 0
    copies: Sequence[Copy] = ()

    @property
    def chunk_bytes(self) -> int:
        """Bytes of all chunk files that are copied."""
        return sum(one.size for one in self.copies)


@dataclass(slots=True)
class FileWriter:
    """Brings the files of one repository to generation `1`; remembers what it has done."""

    source: Source
    listener: Listener
    store: bool
    """False: only find out what there is to do."""
    done: set[SnapshotId] = field(default_factory=set)
    """Snapshots whose files are stored."""
    _converter: ManifestConverter | None = None

    def carry_out(self, plan: MigrationPlan) -> Files:
        """Store what is not stored yet; all of it is durable afterwards."""
        todo = [one for one in plan.survey.history if one not in self.done]
        if not plan.rewrites or not todo:
            return self._files(plan)
        self._manifests(todo)
        files = self._files(plan)
        if not self.store:
            return files
        storage = self.source.storage
        copy_all(storage, list(files.copies), self.listener)
        storage.settle()
        self._snapshots(plan, todo)
        storage.settle()
        self.done.update(todo)
        return files

    def snapshot(self, plan: MigrationPlan, old: SnapshotId) -> Snapshot:
        """A snapshot as it is in the newer generation."""
        snapshot = self.source.assets.snapshot(old)
        if not plan.rewrites:
            return snapshot
        converter = self._manifest_converter()
        converter.convert([snapshot])
        parent = plan.survey.history[old].parent
        new_parent = None if parent is None else plan.ids[parent]
        return convert_snapshot(snapshot, plan.ids[old], new_parent, converter.find)

    def _manifests(self, todo: list[SnapshotId]) -> None:
        converter = self._manifest_converter()
        done = 0
        for batch in _batches(todo):
            converter.convert([self.source.assets.snapshot(one) for one in batch])
            done += len(batch)
            self.listener(MigrationProgress(Step.MANIFESTS, done, len(todo)))

    def _manifest_converter(self) -> ManifestConverter:
        if self._converter is None:
            there = {item.key: item.size for item in self.source.storage.scan(V1Layout.manifests)}
            target = self._target() if self.store else None
            self._converter = ManifestConverter(self.source, target, there)
        return self._converter

    def _snapshots(self, plan: MigrationPlan, todo: list[SnapshotId]) -> None:
        target = self._target()
        done = 0
        for batch in _batches(todo):
            made = [self.snapshot(plan, one) for one in batch]
            logs = [self._log(one, new) for one, new in zip(batch, made, strict=True)]
            run_all(
                lambda pair: target.store_commit(*pair),
                list(zip(made, logs, strict=True)),
                at_once=_AT_ONCE,
            )
            done += len(batch)
            self.listener(MigrationProgress(Step.SNAPSHOTS, done, len(todo)))

    def _log(self, old: SnapshotId, new: Snapshot) -> TransactionLog | None:
        """The log of a commit; made by comparing where the old software wrote none."""
        if new.parent_id is None:
            return None
        assets = self.source.assets
        log = assets.log(old) or assets.derived_log(old)
        return None if log is None else convert_log(log, new)

    def _files(self, plan: MigrationPlan) -> Files:
        converter = self._converter
        if converter is None:
            return Files()
        copies = plan_copies(self.source, converter.chunk_ids()) if plan.copies_chunks else []
        return Files(converter.written, copies)

    def _target(self) -> Assets:
        storage = self.source.storage
        level = self.source.settings.compression_level
        return Assets(storage, V1Ledger(storage), level=level, limits=_NO_CACHE)


def _batches(items: list[SnapshotId]) -> Iterator[list[SnapshotId]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch
