"""What branches and tags reach: snapshots, manifests and chunk files, as sets of ids.

Collection deletes what is not in these sets, so they fail closed: one snapshot or manifest that
cannot be read, and there is no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_provider_icechunk.exceptions import MaintenanceError, NotFoundError
from airflow_provider_icechunk.format.ids import ManifestId, SnapshotId
from airflow_provider_icechunk.format.references import ChunkRefs
from airflow_provider_icechunk.format.snapshot import Manifest
from airflow_provider_icechunk.repository.maintenance.idsets import (
    NOTHING,
    Ids,
    IdUnion,
    contains,
    distinct,
    from_rows,
    of_bytes,
    whole,
)
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.repository.maintenance.walk import Visited, Walk, visit
from airflow_provider_icechunk.storage.pool import run_all

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much metadata is in memory at once."""

    snapshots: int = 50
    manifest_bytes: int = 512 << 20
    """Compressed."""
    fetches: int = 500

    @property
    def lanes(self) -> int:
        """How many manifests are read and decoded at the same time."""
        return max(1, min(self.fetches, _AT_ONCE))


class Reachable:
    """Everything that the roots given so far reach. It only ever grows."""

    def __init__(self, loader: Loader, limits: MemoryLimits | None = None) -> None:
        self._loader = loader
        self._limits = limits or MemoryLimits()
        self.walk = Walk(loader, at_once=self._limits.snapshots)
        self._manifests = IdUnion()
        self._attributes = IdUnion()
        self._chunks = IdUnion()
        self._kept: set[SnapshotId] = set()

    def extend(
        self, roots: Iterable[SnapshotId], spare: Mapping[SnapshotId, bytes] | None = None
    ) -> None:
        """Add what `roots` reach; `spare` holds snapshot files that storage has no more."""
        visited = self.walk.extend(roots, spare)
        sizes = sizes_by_id(visited, known=self._manifests.ids())
        for one in visited:
            self._attributes.add(one.attributes)
        for wave in waves(list(sizes.items()), self._limits.manifest_bytes):
            for ids in run_all(self._chunks_of, wave, at_once=self._limits.lanes):
                self._chunks.add(ids)
        self._manifests.add(of_bytes(sizes))

    def keep(self, unnamed: Iterable[SnapshotId]) -> None:
        """Add what snapshots need that nothing may name, but not what they stand on.

        What is gone is passed over: somebody else has collected it.
        """
        new = [one for one in unnamed if one not in self.walk.links and one not in self._kept]
        visited = run_all(self._alone, new, at_once=self._limits.lanes)
        found = [one for one in visited if one is not None]
        sizes = sizes_by_id(found, known=self._manifests.ids())
        for one in found:
            self._attributes.add(one.attributes)
        for wave in waves(list(sizes.items()), self._limits.manifest_bytes):
            for ids in run_all(self._chunks_left, wave, at_once=self._limits.lanes):
                self._chunks.add(ids)
        self._manifests.add(of_bytes(sizes))
        self._kept.update(new)

    def snapshots(self) -> Ids:
        """Ids of snapshot files, and so of their logs."""
        return self.walk.files()

    def logs(self) -> Ids:
        """Ids of logs: one per snapshot, and those of snapshots that expired before it."""
        ledger = self._loader.ledger
        names = [
            log for identity in self.walk.links for log in (identity, *ledger.pruned_logs(identity))
        ]
        return of_bytes([*names, *whole(self.walk.files())])

    def manifests(self) -> Ids:
        """Ids of manifest files."""
        return self._manifests.ids()

    def attributes(self) -> Ids:
        """Ids of attribute files."""
        return self._attributes.ids()

    def chunks(self) -> Ids:
        """Ids of chunk files. A file that several chunks share is in use while one of them is."""
        return self._chunks.ids()

    def _chunks_of(self, identity: bytes) -> Ids:
        return chunk_ids(self._loader.manifest(ManifestId(identity)))

    def _chunks_left(self, identity: bytes) -> Ids:
        try:
            return chunk_ids(self._loader.manifest(ManifestId(identity)))
        except MaintenanceError as error:
            if isinstance(error.__cause__, NotFoundError):
                return NOTHING
            raise

    def _alone(self, identity: SnapshotId) -> Visited | None:
        try:
            return visit(self._loader.snapshot(identity), None)
        except MaintenanceError as error:
            if isinstance(error.__cause__, NotFoundError):
                return None
            raise


def sizes_by_id(visited: Iterable[Visited], known: Ids) -> dict[bytes, int]:
    """Manifests that snapshots name, with their sizes, except those known already."""
    sizes: dict[bytes, int] = {}
    for one in visited:
        new = ~contains(known, one.manifests)
        sizes.update(zip(whole(one.manifests[new]), one.sizes[new].tolist(), strict=True))
    return sizes


def chunk_ids(manifest: Manifest) -> Ids:
    """Chunk files that a manifest refers to, each once; of every part, also of void ones."""
    parts = [from_rows(refs.native_ids()) for refs in all_refs(manifest)]
    return distinct(np.concatenate([NOTHING, *parts]))


def all_refs(manifest: Manifest) -> Iterator[ChunkRefs]:
    """The references of all arrays of a manifest."""
    return (refs for parts in manifest.arrays.values() for refs in parts)


def waves(sized: Sequence[tuple[bytes, int]], most: int) -> Iterator[list[bytes]]:
    """Ids in groups of at most `most` bytes; a larger one is a group of its own. Pure."""
    wave: list[bytes] = []
    total = 0
    for identity, size in sized:
        if wave and total + size > most:
            yield wave
            wave, total = [], 0
        wave.append(identity)
        total += size
    if wave:
        yield wave
