"""Store the planned files of generation `1`: manifests, chunks, then snapshots.

None of them is visible before the switch, with one exception: snapshots and logs of `alpha` keep
their ids and so their keys, and are replaced in place. This package reads either form, so its
readers of the old repository see no difference. Their manifests are new files, stored before.

New names are derived from the old ones, so an existing copy of the right size is not made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.ids import ChunkId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot, TransactionLog
from airflow_provider_icechunk.engine.format.v1.codec import V1Layout
from airflow_provider_icechunk.engine.objects.objects import CacheLimits, Objects
from airflow_provider_icechunk.engine.refs.v1 import V1Refs
from airflow_provider_icechunk.engine.storage.base import Put, Storage
from airflow_provider_icechunk.exceptions import Kind, StorageError

from .convert import ManifestConverter, convert_log, convert_snapshot
from .identities import check_chunks, fold_rows
from .plan import Listener, MigrationPlan, MigrationProgress, Step
from .survey import MigrationSource

_BATCH_BYTES = 64 << 20
_BATCH_FILES = 256


@dataclass(frozen=True, slots=True)
class Copy:
    """One chunk file."""

    old: str
    new: str
    size: int


def plan_copies(source: MigrationSource, ids: NDArray[np.uint8]) -> list[Copy]:
    """Every chunk file in use with its old and new key; a missing one is an error."""
    new = fold_rows(ids)
    check_chunks(ids, new)
    sizes = _sizes(source.storage, source.refs.layout.chunks)
    copies = []
    for old_id, new_id in zip(ids, new, strict=True):
        old = source.refs.layout.chunk(ChunkId(old_id.tobytes()))
        if old not in sizes:
            raise StorageError(
                f"the chunk file {old} is missing in {source.storage.location} although a "
                "manifest refers to it; nothing was migrated: run `verify` to see what is lost",
                kind=Kind.OBJECT_MISSING,
            )
        copies.append(Copy(old, V1Layout().chunk(ChunkId(new_id.tobytes())), sizes[old]))
    return copies


def copy_all(storage: Storage, copies: list[Copy], listener: Listener) -> None:
    """Copy what is not yet copied."""
    there = _sizes(storage, V1Layout().chunks)
    missing = [one for one in copies if there.get(one.new) != one.size]
    done = len(copies) - len(missing)
    moved = 0
    for batch in _batches_of_copies(missing):
        found = storage.get_many([(one.old, None) for one in batch])
        puts = []
        for one, fetched in zip(batch, found, strict=True):
            if fetched is None or len(fetched.data) != one.size:
                raise StorageError(
                    f"the chunk file {one.old} in {storage.location} was changed or deleted while "
                    "it was copied; nothing was migrated, run it again",
                    kind=Kind.OBJECT_MISSING,
                )
            puts.append(Put(one.new, fetched.data))
        storage.put_many(puts)
        done += len(batch)
        moved += sum(one.size for one in batch)
        listener(MigrationProgress(Step.CHUNKS, done, len(copies), moved))


def _sizes(storage: Storage, prefix: str) -> dict[str, int]:
    return {item.key: item.size for item in storage.scan(prefix)}


def _batches_of_copies(copies: list[Copy]) -> Iterator[list[Copy]]:
    batch: list[Copy] = []
    held = 0
    for one in copies:
        if batch and (held + one.size > _BATCH_BYTES or len(batch) == _BATCH_FILES):
            yield batch
            batch, held = [], 0
        batch.append(one)
        held += one.size
    if batch:
        yield batch


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
    """Converts the files of one repository to generation `1`; remembers what it has done."""

    source: MigrationSource
    listener: Listener
    store: bool
    """False: only determine what there is to do."""
    done: set[SnapshotId] = field(default_factory=set)
    """Snapshots whose files are stored."""
    _converter: ManifestConverter | None = None

    def carry_out(self, plan: MigrationPlan) -> Files:
        """Store what is not stored yet; everything is durable afterwards."""
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
        """A snapshot converted to the newer generation."""
        snapshot = self.source.objects.snapshot(old)
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
            converter.convert([self.source.objects.snapshot(one) for one in batch])
            done += len(batch)
            self.listener(MigrationProgress(Step.MANIFESTS, done, len(todo)))

    def _manifest_converter(self) -> ManifestConverter:
        if self._converter is None:
            there = _sizes(self.source.storage, V1Layout.manifests)
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
        """The log of a commit; derived if the old software wrote none."""
        if new.parent_id is None:
            return None
        objects = self.source.objects
        log = objects.log(old) or objects.derived_log(old)
        return None if log is None else convert_log(log, new)

    def _files(self, plan: MigrationPlan) -> Files:
        converter = self._converter
        if converter is None:
            return Files()
        copies = plan_copies(self.source, converter.chunk_ids()) if plan.copies_chunks else []
        return Files(converter.written, copies)

    def _target(self) -> Objects:
        storage = self.source.storage
        level = self.source.settings.compression_level
        return Objects(storage, V1Refs(storage), level=level, limits=_NO_CACHE)


def _batches(items: list[SnapshotId]) -> Iterator[list[SnapshotId]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch
