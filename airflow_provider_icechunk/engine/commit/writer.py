"""Carry out a commit: manifests, then log and snapshot, then one conditional move of the branch.

Nothing is visible before the last step and nothing is deleted on any path. A process that dies
before it leaves objects that no reference names, which the collector removes; one that dies after
it has committed. Manifests written by a try that lost its race are used again by the next try for
every array that the other side did not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_provider_icechunk.exceptions import Kind, StorageError, UnsupportedError
from airflow_provider_icechunk.format.config import ManifestSplittingConfig
from airflow_provider_icechunk.format.generations.identities import new_id
from airflow_provider_icechunk.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.format.references import ChunkRefs
from airflow_provider_icechunk.format.snapshot import (
    ArrayData,
    Manifest,
    ManifestFile,
    ManifestRef,
    Metadata,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.format.splitting import split_grid
from airflow_provider_icechunk.format.transactions import TransactionLog
from airflow_provider_icechunk.repository.assets import Assets
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.documents import array_document
from airflow_provider_icechunk.repository.layout_plan import choose, deal_out, share
from airflow_provider_icechunk.repository.leases import Leasehold
from airflow_provider_icechunk.repository.ledgers.base import Trust
from airflow_provider_icechunk.repository.world import World, to_micros
from airflow_provider_icechunk.storage.base import Storage

MAX_CLOCK_SKEW_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Written:
    """Manifests of one array that are stored, and what they were made of."""

    base: tuple[ManifestRef, ...]
    revision: int
    document: bytes
    refs: tuple[ManifestRef, ...]
    files: tuple[ManifestFile, ...]


@dataclass(slots=True)
class Flusher:
    """Writes what a session changed; remembers stored manifests between tries."""

    assets: Assets
    splitting: ManifestSplittingConfig | None
    world: World
    held: Leasehold
    """Told before anything is stored."""
    rewrite_all: bool = False
    _written: dict[NodeId, Written] = field(default_factory=dict)
    _started_at: int = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = to_micros(self.world.now())

    def flush(
        self,
        base: Snapshot,
        changes: ChangeSet,
        *,
        message: str,
        metadata: Metadata,
        log: Callable[[TransactionLog], TransactionLog] | None = None,
    ) -> Snapshot:
        """Store manifests, log and snapshot of a child of `base`. No reference moves.

        :param log: gets the log of the changes and says which one to store.
        """
        flushed_at = max(to_micros(self.world.now()), base.flushed_at + 1)
        self.held.writing()
        written = self._write_manifests(base, changes)
        nodes = new_nodes(base, changes, {key: value.refs for key, value in written.items()})
        files = dict(base.manifest_files)
        files.update({file.id: file for value in written.values() for file in value.files})
        snapshot = Snapshot(
            id=SnapshotId(self._new_id()),
            parent_id=base.id,
            flushed_at=flushed_at,
            message=message,
            metadata=metadata,
            nodes=nodes,
            manifest_files=self._used(nodes.values(), files),
            started_at=min(self._started_at, flushed_at),
        )
        changed = changes.log(snapshot.id)
        self.assets.store_commit(snapshot, changed if log is None else log(changed))
        self.assets.storage.settle()
        return snapshot

    def _write_manifests(self, base: Snapshot, changes: ChangeSet) -> dict[NodeId, Written]:
        result: dict[NodeId, Written] = {}
        fresh: list[tuple[NodeId, Written]] = []
        pieces: list[tuple[NodeId, ChunkRefs]] = []
        for node, stored in self._arrays_to_write(base, changes):
            edits = changes.chunks.get(node.id)
            revision = 0 if edits is None else edits.revision
            reusable = self._written.get(node.id)
            if reusable is not None and (reusable.base, reusable.revision, reusable.document) == (
                stored,
                revision,
                node.user_data,
            ):
                result[node.id] = reusable
                continue
            refs = None if edits is None else edits.columns()
            keep, rows = self._rearrange(node, stored, refs)
            fresh.append((node.id, Written(stored, revision, node.user_data, keep, ())))
            pieces += [(node.id, piece) for piece in rows]
        manifests = [
            Manifest(ManifestId(self._new_id()), {node_id: (piece,) for node_id, piece in group})
            for group in share(pieces)
        ]
        homes: dict[NodeId, list[tuple[ManifestRef, ManifestFile]]] = {}
        for manifest, file in zip(manifests, self.assets.store_manifests(manifests), strict=True):
            row = 0
            for node_id, (piece,) in manifest.arrays.items():
                ref = ManifestRef(manifest.id, piece.extents(), row)
                row += len(piece)
                homes.setdefault(node_id, []).append((ref, file))
        for node_id, draft in fresh:
            new = homes.get(node_id, [])
            result[node_id] = replace(
                draft,
                refs=draft.refs + tuple(ref for ref, _ in new),
                files=tuple(file for _, file in new),
            )
        self._written |= result
        return result

    def _arrays_to_write(
        self, base: Snapshot, changes: ChangeSet
    ) -> list[tuple[Node, tuple[ManifestRef, ...]]]:
        """Arrays whose manifests may change, with the manifests they have in the base."""
        touched = set(changes.chunks) | set(changes.updated)
        arrays: list[tuple[Node, tuple[ManifestRef, ...]]] = [
            (node, ()) for node in changes.created.values() if node.id in touched and node.array
        ]
        for node in base.nodes.values():
            if node.array is None or node.id in changes.deleted:
                continue
            if node.id in touched or self.rewrite_all:
                arrays.append((changes.updated.get(node.id, node), node.array.manifests))
        return arrays

    def _rearrange(
        self, node: Node, stored: tuple[ManifestRef, ...], edits: ChunkRefs | None
    ) -> tuple[tuple[ManifestRef, ...], list[ChunkRefs]]:
        """Manifests of an array that stay, and the rows of those that are new."""
        document = array_document(node)
        ndim = len(document.shape)
        edits = ChunkRefs.empty(ndim) if edits is None else edits
        grid = split_grid(self.splitting, node.path, document.dimension_names, document.num_chunks)
        rewrite = choose(
            stored, edits.index, grid, document.num_chunks, everything=self.rewrite_all
        )
        manifests = self.assets.manifests(ref.id for ref in rewrite.load)
        for manifest in manifests:
            self._refuse_to_lose(manifest)
        loaded = [manifest.of(node.id, ndim) for manifest in manifests]
        return rewrite.keep, deal_out(loaded, edits, grid, document.num_chunks)

    def _refuse_to_lose(self, manifest: Manifest) -> None:
        if manifest.unknown is not None:
            raise UnsupportedError(
                f"manifest {self.assets.show(manifest.id)} was written by a newer version of the "
                f"format: writing its chunks anew would lose {manifest.unknown}; update this "
                "package"
            )

    def _new_id(self) -> bytes:
        generation = self.assets.ledger.generation
        return new_id(generation, self.world.entropy(generation.id_size))

    def _used(
        self, nodes: Iterable[Node], files: Mapping[ManifestId, ManifestFile]
    ) -> dict[ManifestId, ManifestFile]:
        """Exactly the manifests that the nodes name, in the order of ids."""
        ids = {ref.id for node in nodes if node.array for ref in node.array.manifests}
        return {identity: self._described(identity, files) for identity in sorted(ids)}

    def _described(
        self, identity: ManifestId, files: Mapping[ManifestId, ManifestFile]
    ) -> ManifestFile:
        """Facts of a manifest; looked up where early writers did not note them."""
        known = files.get(identity)
        if known is not None and known.size_bytes:
            return known
        if not self.assets.ledger.generation.lists_manifests:
            return ManifestFile(identity, 0, 0)
        key = self.assets.ledger.layout.manifest(identity)
        found = self.assets.storage.head(key)
        if found is None:
            raise StorageError(f"the manifest {key} is missing", kind=Kind.OBJECT_MISSING)
        return ManifestFile(identity, found.size, len(self.assets.manifest(identity)))


def new_nodes(
    base: Snapshot, changes: ChangeSet, manifests: Mapping[NodeId, tuple[ManifestRef, ...]]
) -> dict[str, Node]:
    """The tree after the changes. Manifests not mentioned stay as the base has them."""

    def current(node: Node) -> Node:
        updated = changes.updated.get(node.id, node)
        refs = manifests.get(node.id)
        if updated.array is None or (updated is node and refs is None):
            return updated
        if refs is None:
            refs = node.array.manifests if node.array else ()
        array = ArrayData(updated.array.shape, updated.array.dimension_names, refs)
        return replace(updated, array=array)

    nodes = {
        path: current(node) for path, node in base.nodes.items() if node.id not in changes.deleted
    }
    if not changes.created:
        return nodes
    return in_order([*nodes.values(), *(current(node) for node in changes.created.values())])


class ConditionGuard:
    """Refuses commits to a store that does not honour conditional writes. Tries it out once."""

    def __init__(self, storage: Storage, trust: Trust) -> None:
        self._storage = storage
        self._settled = not (trust.creates and trust.updates)

    def check(self) -> None:
        """Raise `UnsafeStorageError` if two writers could overwrite each other unnoticed."""
        if not self._settled:
            self._storage.check_conditional_writes()
            self._settled = True


class ClockGuard:
    """Refuses commits from a host whose clock is far from the store's.

    The store is asked once; again only when the host's wall clock has moved against its monotonic
    one, which is how a clock that was set shows.
    """

    def __init__(self, assets: Assets, world: World) -> None:
        self._assets = assets
        self._world = world
        self._known: tuple[float, float] | None = None
        """By how much the wall clock was ahead of the monotonic one, and of the store's."""

    def store_now(self) -> datetime:
        """The store's time, never ahead of it."""
        return self._world.now() - timedelta(seconds=self._skew())

    def estimate(self) -> datetime:
        """The same without asking: where the store was never asked, this host's own time."""
        skew = 0.0 if self._known is None else self._known[1]
        return self._world.now() - timedelta(seconds=skew)

    def check(self) -> None:
        """Raise `StorageError` with kind `clock_skew` beyond the limit."""
        skew = self._skew()
        if abs(skew) > MAX_CLOCK_SKEW_SECONDS:
            self._known = None
            raise StorageError(
                f"this host's clock is {skew:+.0f} s away from that of "
                f"{self._assets.storage.location}, more than {MAX_CLOCK_SKEW_SECONDS} s: commits "
                "would carry wrong times and retention would misjudge them; set the clock",
                kind=Kind.CLOCK_SKEW,
            )

    def _skew(self) -> float:
        now = self._world.now()
        offset = now.timestamp() - self._world.monotonic()
        if self._known is None or abs(offset - self._known[0]) >= 1:
            store = self._assets.storage.now()
            self._known = offset, (self._world.now() - store).total_seconds()
        return self._known[1]
