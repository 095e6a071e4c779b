"""Load and store the immutable objects of a repository, through bounded caches.

Objects are written once under random ids and never change, so the caches need no invalidation. The
one exception is expiration in generation `1`, which rewrites a snapshot in place: it calls
`forget_snapshot`, and other processes see the old parent until they reopen the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Index, Payload
from airflow_provider_icechunk.engine.format.codec import FileType, Glancing, Search, Searching
from airflow_provider_icechunk.engine.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId, format_id
from airflow_provider_icechunk.engine.format.model import (
    Deferred,
    Manifest,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.engine.refs.base import Refs
from airflow_provider_icechunk.engine.storage.base import Fetched, Put, Readable, Storage
from airflow_provider_icechunk.exceptions import FormatError, Kind, NotFoundError, StorageError

from .cache import WeightedCache
from .derived_logs import derive_log
from .line import read_line

_AT_ONCE = 16
_LOGS_AHEAD = 256
_LINES_AHEAD = 10
"""How far the ids of earlier commits are followed: about this many logs."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Cache sizes."""

    snapshot_nodes: int = 500_000
    manifest_bytes: int = 1 << 30
    log_changes: int = 1_000_000
    """Changed chunks in transaction logs."""


@dataclass(frozen=True, slots=True)
class EncodedManifests:
    """Manifests on their way to the storage."""

    manifests: tuple[Manifest, ...] = ()
    puts: tuple[Put, ...] = ()
    files: tuple[ManifestFile, ...] = ()


class Objects:
    """Snapshots, manifests and transaction logs of one repository."""

    def __init__(
        self,
        storage: Storage,
        refs: Refs,
        *,
        level: int,
        limits: CacheLimits,
        reads: Readable | None = None,
    ) -> None:
        """The objects in `storage`, whose manifests are read through `reads` if that is given."""
        self.storage = storage
        self._reads = reads or storage
        self.refs = refs
        self._level = level
        codec = refs.codec
        self._glance = codec.glance_at_snapshot if isinstance(codec, Glancing) else None
        self._snapshots = WeightedCache[SnapshotId, Snapshot](
            limits.snapshot_nodes, lambda snapshot: 1 + len(snapshot.nodes)
        )
        self._search = codec.search_manifest if isinstance(codec, Searching) else None
        self._manifests = WeightedCache[ManifestId, Manifest | Search](
            limits.manifest_bytes, lambda manifest: 1024 + manifest.nbytes
        )
        self._logs = WeightedCache[tuple[SnapshotId, SnapshotId | None], TransactionLog](
            limits.log_changes,
            lambda log: 1 + sum(len(rows) for rows in log.updated_chunks.values()),
        )

    def snapshot(self, identity: SnapshotId) -> Snapshot:
        """The snapshot with this id; `NotFoundError` if it does not exist."""
        found = self._snapshots.get(identity, lambda: self._load_snapshot(identity))
        for part in (found.nodes, found.manifest_files):
            if isinstance(part, Deferred):
                part.content()
        return found

    def stored_now(self, identity: SnapshotId) -> Snapshot:
        """Like `snapshot`, but raises if a cached snapshot has been collected since."""
        if self.storage.head(self.refs.layout.snapshot(identity)) is None:
            self.forget_snapshot(identity)
        return self.snapshot(identity)

    def has_snapshot(self, identity: SnapshotId) -> bool:
        """Whether a snapshot is in memory."""
        return self._snapshots.peek(identity) is not None

    def snapshot_header(self, identity: SnapshotId) -> Snapshot:
        """A snapshot for walking a history: its tree is decoded only when used."""
        return self._snapshots.get(identity, lambda: self._load_snapshot(identity, self._glance))

    def manifest(self, identity: ManifestId) -> Manifest:
        """The manifest with this id. A missing one is damage, not absence."""
        decode = self.refs.codec.decode_manifest
        found = self._manifests.get(identity, lambda: self._load_manifest(identity, decode))
        if isinstance(found, Manifest):
            return found
        manifest = found.decode()
        self._manifests.put(identity, manifest)
        return manifest

    def find(self, identity: ManifestId, node_id: NodeId, index: Index) -> Payload | None:
        """One reference in a manifest; `None` if there is none."""
        load: Callable[..., Manifest | Search]
        load = self._search or self.refs.codec.decode_manifest
        found = self._manifests.get(identity, lambda: self._load_manifest(identity, load))
        if not isinstance(found, Manifest):
            if found.is_worth_it():
                return found.find(node_id, index)
            found = self.manifest(identity)
        return found.of(node_id, len(index)).find(index)

    def find_cached(self, identity: ManifestId, node_id: NodeId, index: Index) -> Payload | None:
        """Like `find`, but `None` if the manifest is not decoded yet."""
        known = self._manifests.peek(identity)
        return known.of(node_id, len(index)).find(index) if isinstance(known, Manifest) else None

    def manifests(self, identities: Iterable[ManifestId]) -> list[Manifest]:
        """Many manifests, fetched and decoded concurrently, in the given order."""
        return run_all(self.manifest, list(identities), at_once=_AT_ONCE)

    def log(self, identity: SnapshotId) -> TransactionLog | None:
        """The transaction log of a snapshot; `None` if there is none.

        Generations without logs derive it; then only the first snapshot has none.
        """
        if not self.refs.generation.keeps_logs:
            return self.derived_log(identity)
        cached = self._logs.peek((identity, None))
        if cached is not None:
            return cached
        return self._decoded_log(identity, self.storage.get(self._log_key(identity)))

    def prefetch(self, logs: Iterable[SnapshotId], manifests: Iterable[ManifestId] = ()) -> None:
        """Read logs and manifests that will be needed one after the other in one batch."""
        wanted = logs if self.refs.generation.keeps_logs else ()
        missing = [one for one in wanted if self._logs.peek((one, None)) is None][:_LOGS_AHEAD]
        unread = [one for one in manifests if self._manifests.peek(one) is None]
        keys = [*map(self._log_key, missing), *map(self.refs.layout.manifest, unread)]
        found = self._reads.get_many([(key, None) for key in keys])
        for identity, file in zip(missing, found, strict=False):
            self._decoded_log(identity, file)
        for manifest, file in zip(unread, found[len(missing) :], strict=True):
            if file is not None:
                where = self.refs.layout.manifest(manifest)
                decoded = self.refs.codec.decode_manifest(file.data, manifest, where=where)
                self._manifests.put(manifest, decoded)

    def prefetch_commit(self, identity: SnapshotId, above: SnapshotId) -> None:
        """Read a snapshot and its log at once: a rebase over the commit needs both.

        Also reads those between it and `above`, as far as its metadata names them.
        """
        if not self.refs.generation.keeps_logs:
            return
        self._read_commits([identity])
        newest: SnapshotId | None = identity
        for _ in range(_LINES_AHEAD):
            if newest is not None:
                newest = self._read_below(newest, above)

    def _read_below(self, newest: SnapshotId, above: SnapshotId) -> SnapshotId | None:
        """Read the commits that `newest` names; returns the last of them if there may be more.

        The parents must lead there too: a line may be wrong, and is then not followed.
        """
        commit = self._snapshots.peek(newest)
        parent = None if commit is None else self.refs.parent(commit)
        line = [] if commit is None else read_line(commit.metadata, self.refs.generation)
        if parent is None:
            return None
        below = list(takewhile(lambda one: one != above, [parent, *line]))
        try:
            self._read_commits(below)
        except FormatError:
            # It may not be needed; a later reader gets the error.
            return None
        if not line or len(below) <= len(line):
            return None
        current: SnapshotId | None = parent
        for told in below:
            found = self._snapshots.peek(told)
            if found is None or told != current:
                return None
            current = self.refs.parent(found)
            if current is None:
                return None
        return below[-1]

    def _read_commits(self, identities: Iterable[SnapshotId]) -> None:
        missing = [one for one in identities if self._snapshots.peek(one) is None]
        if not missing:
            return
        keys = [self.refs.layout.snapshot(one) for one in missing]
        wanted = [*keys, *map(self._log_key, missing)]
        found = self.storage.get_many([(key, None) for key in wanted])
        decode = self._glance or self.refs.codec.decode_snapshot
        for identity, key, snapshot, log in zip(
            missing, keys, found[: len(missing)], found[len(missing) :], strict=True
        ):
            if snapshot is not None:
                self._snapshots.put(identity, decode(snapshot.data, identity, where=key))
                self._decoded_log(identity, log)

    def derived_log(self, identity: SnapshotId) -> TransactionLog | None:
        """What a commit changed, by comparison with its parent; `None` for a first snapshot."""
        parent = self.refs.parent(self.snapshot_header(identity))
        if parent is None:
            return None
        # Expiration gives a snapshot another parent, and thus another log.
        return self._logs.get(
            (identity, parent),
            lambda: derive_log(self.snapshot(parent), self.snapshot(identity), self._references),
        )

    def _log_key(self, identity: SnapshotId) -> str:
        return self.refs.layout.transaction(identity)

    def _decoded_log(self, identity: SnapshotId, found: Fetched | None) -> TransactionLog | None:
        if found is None:
            return None
        key = self._log_key(identity)
        log = self.refs.codec.decode_log(found.data, identity, where=key)
        self._logs.put((identity, None), log)
        return log

    def store_manifests(self, manifests: Sequence[Manifest]) -> list[ManifestFile]:
        """Encode and write manifests concurrently; durable after the storage's `settle`."""
        encoded = self.encode_manifests(manifests)
        self.storage.put_many(encoded.puts)
        self._keep(encoded)
        return list(encoded.files)

    def encode_manifests(self, manifests: Sequence[Manifest]) -> EncodedManifests:
        """Manifests that are not stored yet, and what a snapshot says about them."""
        encoded = run_all(self._encode_manifest, manifests, at_once=_AT_ONCE)
        return EncodedManifests(
            tuple(manifests), tuple(put for put, _ in encoded), tuple(file for _, file in encoded)
        )

    def _keep(self, encoded: EncodedManifests) -> None:
        for manifest in encoded.manifests:
            self._manifests.put(manifest.id, manifest)

    def store_commit(
        self,
        snapshot: Snapshot,
        log: TransactionLog | None,
        manifests: EncodedManifests | None = None,
    ) -> None:
        """Write a snapshot, its log and new manifests, all at once.

        Nothing is visible until a ref points at the snapshot.
        """
        put = self._snapshot_put(snapshot)
        puts = [put] if manifests is None else [*manifests.puts, put]
        if log is not None and self.refs.generation.keeps_logs:
            data = self.refs.codec.encode_log(log, level=self._level)
            key = self.refs.layout.transaction(log.id)
            puts.append(self._put(key, data, FileType.TRANSACTION_LOG))
        self.storage.put_many(puts)
        if manifests is not None:
            self._keep(manifests)
        self._snapshots.put(snapshot.id, self._as_stored(snapshot, put))
        if log is not None:
            derived = not self.refs.generation.keeps_logs
            self._logs.put((log.id, snapshot.parent_id if derived else None), log)

    def rewrite_snapshot(self, snapshot: Snapshot) -> None:
        """Replace a snapshot file in place. Only expiration does this."""
        self.forget_snapshot(snapshot.id)
        self.storage.put_many([self._snapshot_put(snapshot)])
        self.storage.settle()

    def forget_snapshot(self, identity: SnapshotId) -> None:
        """Drop a snapshot from the cache."""
        self._snapshots.drop(identity)

    def format_id(self, identity: bytes) -> str:
        """An id as text."""
        return format_id(self.refs.generation, identity)

    def _as_stored(self, snapshot: Snapshot, put: Put) -> Snapshot:
        """The snapshot as a reader would decode it, because logs are derived from that."""
        if self.refs.generation.keeps_logs:
            return snapshot
        return self.refs.codec.decode_snapshot(bytes(put.data), snapshot.id, where=put.key)

    def _references(self, node: Node, refs: Iterable[ManifestRef]) -> list[ChunkRefs]:
        assert node.array is not None
        ndim = len(node.array.shape)
        manifests = self.manifests(ref.id for ref in refs)
        return [manifest.of(node.id, ndim) for manifest in manifests]

    def _load_snapshot(
        self, identity: SnapshotId, decode: Callable[..., Snapshot] | None = None
    ) -> Snapshot:
        key = self.refs.layout.snapshot(identity)
        found = self.storage.get(key)
        if found is None:
            elsewhere = self.refs.relocate(identity)
            if elsewhere == identity:
                # A collection has restored it. `snapshot` would wait for this very call.
                found = self.storage.get(key)
            elif elsewhere is not None:
                return self.snapshot(elsewhere)
        if found is None:
            raise NotFoundError(
                f"snapshot {self.format_id(identity)} does not exist in {self.storage.location}; "
                "it may have expired and been collected: check the history of its branch",
                kind=Kind.SNAPSHOT_NOT_FOUND,
            )
        decode = decode or self.refs.codec.decode_snapshot
        return decode(found.data, identity, where=key)

    def _load_manifest(
        self, identity: ManifestId, decode: Callable[..., Manifest | Search]
    ) -> Manifest | Search:
        key = self.refs.layout.manifest(identity)
        found = self._reads.get(key)
        if found is None:
            raise StorageError(
                f"the manifest {key} is missing in {self.storage.location} although a snapshot "
                "refers to it: the snapshot was collected while in use, or an object was lost",
                kind=Kind.OBJECT_MISSING,
            )
        return decode(found.data, identity, where=key)

    def _encode_manifest(self, manifest: Manifest) -> tuple[Put, ManifestFile]:
        data = self.refs.codec.encode_manifest(manifest, level=self._level)
        key = self.refs.layout.manifest(manifest.id)
        put = self._put(key, data, FileType.MANIFEST)
        return put, ManifestFile(manifest.id, len(data), len(manifest))

    def _snapshot_put(self, snapshot: Snapshot) -> Put:
        data = self.refs.codec.encode_snapshot(snapshot, level=self._level)
        return self._put(self.refs.layout.snapshot(snapshot.id), data, FileType.SNAPSHOT)

    def _put(self, key: str, data: bytes, kind: FileType) -> Put:
        generation = self.refs.generation
        return Put(key, data, file_marks(generation, kind), file_content_type(generation))
