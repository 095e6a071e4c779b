"""Load and store the immutable objects of a repository, through bounded caches.

Objects are written once under random ids and never change, so what is cached stays true. The one
exception is expiration in generation `1`, which rewrites a snapshot in place: it calls
`forget_snapshot`, and readers of other processes see the old parent until they open anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_icechunk.exceptions import Kind, NotFoundError, StorageError
from airflow_provider_icechunk.format.deferred import Deferred
from airflow_provider_icechunk.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.format.generations.base import (
    FileType,
    Glancing,
    Search,
    Searching,
)
from airflow_provider_icechunk.format.generations.identities import show_id
from airflow_provider_icechunk.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.format.references import ChunkRefs, Index, Payload
from airflow_provider_icechunk.format.snapshot import (
    Manifest,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
)
from airflow_provider_icechunk.format.transactions import TransactionLog
from airflow_provider_icechunk.repository.cache import WeightedCache
from airflow_provider_icechunk.repository.derived_logs import derive_log
from airflow_provider_icechunk.repository.ledgers.base import Ledger
from airflow_provider_icechunk.storage.base import Fetched, Put, Storage
from airflow_provider_icechunk.storage.pool import run_all

_AT_ONCE = 16
_LOGS_AHEAD = 256


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How much of a repository stays in memory."""

    snapshot_nodes: int = 500_000
    manifest_bytes: int = 1 << 30
    log_changes: int = 1_000_000
    """Changed chunks in transaction logs."""


class Assets:
    """Snapshots, manifests and transaction logs of one repository."""

    def __init__(
        self, storage: Storage, ledger: Ledger, *, level: int, limits: CacheLimits
    ) -> None:
        self.storage = storage
        self.ledger = ledger
        self._level = level
        codec = ledger.codec
        self._glance = codec.glance_at_snapshot if isinstance(codec, Glancing) else None
        self._snapshots = WeightedCache[SnapshotId, Snapshot](
            limits.snapshot_nodes, lambda snapshot: 1 + len(snapshot.nodes)
        )
        self._search = codec.search_manifest if isinstance(codec, Searching) else None
        self._manifests = WeightedCache[ManifestId, Manifest | Search](
            limits.manifest_bytes, lambda manifest: 1024 + manifest.nbytes
        )
        self._logs = WeightedCache[SnapshotId, TransactionLog](
            limits.log_changes,
            lambda log: 1 + sum(len(rows) for rows in log.updated_chunks.values()),
        )

    def snapshot(self, identity: SnapshotId) -> Snapshot:
        """The snapshot with this id; `NotFoundError` if there is none."""
        found = self._snapshots.get(identity, lambda: self._load_snapshot(identity))
        for part in (found.nodes, found.manifest_files):
            if isinstance(part, Deferred):
                part.content()
        return found

    def stored_now(self, identity: SnapshotId) -> Snapshot:
        """The same if it is stored right now; a cached one may have been collected since."""
        if self.storage.head(self.ledger.layout.snapshot(identity)) is None:
            self.forget_snapshot(identity)
        return self.snapshot(identity)

    def passed(self, identity: SnapshotId) -> Snapshot:
        """A snapshot on the way through a history: damage in its tree shows when it is used."""
        return self._snapshots.get(identity, lambda: self._load_snapshot(identity, self._glance))

    def manifest(self, identity: ManifestId) -> Manifest:
        """The manifest with this id. A missing one is damage, not absence."""
        decode = self.ledger.codec.decode_manifest
        found = self._manifests.get(identity, lambda: self._load_manifest(identity, decode))
        if isinstance(found, Manifest):
            return found
        manifest = found.decode()
        self._manifests.put(identity, manifest)
        return manifest

    def find(self, identity: ManifestId, node_id: NodeId, index: Index) -> Payload | None:
        """One reference of a manifest; `None` when there is none."""
        load: Callable[..., Manifest | Search]
        load = self._search or self.ledger.codec.decode_manifest
        found = self._manifests.get(identity, lambda: self._load_manifest(identity, load))
        if not isinstance(found, Manifest):
            if found.is_worth_it():
                return found.find(node_id, index)
            found = self.manifest(identity)
        return found.of(node_id, len(index)).find(index)

    def find_at_hand(self, identity: ManifestId, node_id: NodeId, index: Index) -> Payload | None:
        """One reference of a manifest that is decoded already; `None` also for any other."""
        known = self._manifests.peek(identity)
        return known.of(node_id, len(index)).find(index) if isinstance(known, Manifest) else None

    def manifests(self, identities: Iterable[ManifestId]) -> list[Manifest]:
        """Many manifests, fetched and decoded at once, in the given order."""
        return run_all(self.manifest, list(identities), at_once=_AT_ONCE)

    def log(self, identity: SnapshotId) -> TransactionLog | None:
        """The transaction log of a snapshot; `None` where none was written.

        In generations that keep no logs it is derived; then only a first snapshot has none.
        """
        cached = self._logs.peek(identity)
        if cached is not None:
            return cached
        if not self.ledger.generation.keeps_logs:
            return self.derived_log(identity)
        return self._decoded_log(identity, self.storage.get(self._log_key(identity)))

    def bring_logs(self, identities: Iterable[SnapshotId]) -> None:
        """Read logs that will be asked for one after the other, with as few waits as can be."""
        if not self.ledger.generation.keeps_logs:
            return
        missing = [one for one in identities if self._logs.peek(one) is None][:_LOGS_AHEAD]
        found = self.storage.get_many([(self._log_key(one), None) for one in missing])
        for identity, file in zip(missing, found, strict=True):
            self._decoded_log(identity, file)

    def derived_log(self, identity: SnapshotId) -> TransactionLog | None:
        """What a commit changed, by comparison with its parent; `None` for a first snapshot."""
        snapshot = self.snapshot(identity)
        parent = self.ledger.parent(snapshot)
        if parent is None:
            return None
        log = derive_log(self.snapshot(parent), snapshot, self._references)
        self._logs.put(identity, log)
        return log

    def _log_key(self, identity: SnapshotId) -> str:
        return self.ledger.layout.transaction(identity)

    def _decoded_log(self, identity: SnapshotId, found: Fetched | None) -> TransactionLog | None:
        if found is None:
            return None
        key = self._log_key(identity)
        log = self.ledger.codec.decode_log(found.data, identity, where=key)
        self._logs.put(identity, log)
        return log

    def store_manifests(self, manifests: Sequence[Manifest]) -> list[ManifestFile]:
        """Encode and write manifests in parallel; durable after the storage settled."""
        encoded = run_all(self._encode_manifest, manifests, at_once=_AT_ONCE)
        self.storage.put_many([put for put, _ in encoded])
        for manifest in manifests:
            self._manifests.put(manifest.id, manifest)
        return [file for _, file in encoded]

    def store_commit(self, snapshot: Snapshot, log: TransactionLog | None) -> None:
        """Write a snapshot and its log; invisible until a reference names the snapshot."""
        put = self._snapshot_put(snapshot)
        puts = [put]
        if log is not None and self.ledger.generation.keeps_logs:
            data = self.ledger.codec.encode_log(log, level=self._level)
            key = self.ledger.layout.transaction(log.id)
            puts.append(self._put(key, data, FileType.TRANSACTION_LOG))
        self.storage.put_many(puts)
        self._snapshots.put(snapshot.id, self._as_stored(snapshot, put))
        if log is not None:
            self._logs.put(log.id, log)

    def rewrite_snapshot(self, snapshot: Snapshot) -> None:
        """Replace a snapshot file in place. Only expiration does this."""
        self.forget_snapshot(snapshot.id)
        self.storage.put_many([self._snapshot_put(snapshot)])
        self.storage.settle()

    def forget_snapshot(self, identity: SnapshotId) -> None:
        """Drop a snapshot from the cache."""
        self._snapshots.drop(identity)

    def show(self, identity: bytes) -> str:
        """An id as people see it."""
        return show_id(self.ledger.generation, identity)

    def _as_stored(self, snapshot: Snapshot, put: Put) -> Snapshot:
        """What a reader would get: logs are derived from documents as the generation keeps them."""
        if self.ledger.generation.keeps_logs:
            return snapshot
        return self.ledger.codec.decode_snapshot(bytes(put.data), snapshot.id, where=put.key)

    def _references(self, node: Node, refs: Iterable[ManifestRef]) -> list[ChunkRefs]:
        assert node.array is not None
        ndim = len(node.array.shape)
        manifests = self.manifests(ref.id for ref in refs)
        return [manifest.of(node.id, ndim) for manifest in manifests]

    def _load_snapshot(
        self, identity: SnapshotId, decode: Callable[..., Snapshot] | None = None
    ) -> Snapshot:
        key = self.ledger.layout.snapshot(identity)
        found = self.storage.get(key)
        if found is None:
            elsewhere = self.ledger.relocate(identity)
            if elsewhere is not None:
                return self.snapshot(elsewhere)
            raise NotFoundError(
                f"there is no snapshot {self.show(identity)} in {self.storage.location}; it "
                "may have been expired and collected: see the history of its branch",
                kind=Kind.SNAPSHOT_NOT_FOUND,
            )
        decode = decode or self.ledger.codec.decode_snapshot
        return decode(found.data, identity, where=key)

    def _load_manifest(
        self, identity: ManifestId, decode: Callable[..., Manifest | Search]
    ) -> Manifest | Search:
        key = self.ledger.layout.manifest(identity)
        found = self.storage.get(key)
        if found is None:
            raise StorageError(
                f"the manifest {key} is missing in {self.storage.location} although a snapshot "
                "names it: the snapshot was collected while it was in use, or an object was lost",
                kind=Kind.OBJECT_MISSING,
            )
        return decode(found.data, identity, where=key)

    def _encode_manifest(self, manifest: Manifest) -> tuple[Put, ManifestFile]:
        data = self.ledger.codec.encode_manifest(manifest, level=self._level)
        key = self.ledger.layout.manifest(manifest.id)
        put = self._put(key, data, FileType.MANIFEST)
        return put, ManifestFile(manifest.id, len(data), len(manifest))

    def _snapshot_put(self, snapshot: Snapshot) -> Put:
        data = self.ledger.codec.encode_snapshot(snapshot, level=self._level)
        return self._put(self.ledger.layout.snapshot(snapshot.id), data, FileType.SNAPSHOT)

    def _put(self, key: str, data: bytes, kind: FileType) -> Put:
        generation = self.ledger.generation
        return Put(key, data, file_marks(generation, kind), file_content_type(generation))
