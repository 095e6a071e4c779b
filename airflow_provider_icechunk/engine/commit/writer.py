"""Store what a commit consists of: manifests, log and snapshot, all at once.

Nothing refers to these objects before the branch moves. A process that dies before that leaves
garbage for the collector. Manifests written by an attempt that lost its race are reused by the
next attempt, for every array that the other side did not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.config.model import ManifestSplittingConfig
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId, new_id
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Manifest,
    ManifestFile,
    ManifestRef,
    Metadata,
    Node,
    Snapshot,
    TransactionLog,
    in_order,
)
from airflow_provider_icechunk.engine.format.node_table import edited, manifests_of, nodes_with
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.leases import Leasehold
from airflow_provider_icechunk.engine.objects.objects import EncodedManifests, Objects
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.engine.world import World, to_micros
from airflow_provider_icechunk.exceptions import Kind, StorageError, UnsupportedError

from .manifest_layout import array_grid, choose, distribute, share


@dataclass(frozen=True, slots=True)
class StoredManifests:
    """Stored manifests of one array, and what they were made of."""

    base: tuple[ManifestRef, ...]
    revision: int
    document: bytes
    refs: tuple[ManifestRef, ...]
    files: tuple[ManifestFile, ...]


@dataclass(slots=True)
class CommitWriter:
    """Writes what a session changed; remembers stored manifests between attempts."""

    objects: Objects
    splitting: ManifestSplittingConfig | None
    world: World
    held: Leasehold
    """Called before anything is stored."""
    rewrite_all: bool = False
    _written: dict[NodeId, StoredManifests] = field(default_factory=dict)
    _started_at: int = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = to_micros(self.world.now())

    def store(
        self,
        base: Snapshot,
        changes: ChangeSet,
        *,
        message: str,
        metadata: Metadata,
        log: Callable[[TransactionLog], TransactionLog] | None = None,
        chunks: Callable[[], None] | None = None,
    ) -> Snapshot:
        """Store manifests, log and snapshot of a child of `base`. No reference moves.

        :param log: gets the log of the changes and says which one to store.
        :param chunks: waits for the chunks that are being stored meanwhile.
        """
        flushed_at = max(to_micros(self.world.now()), base.flushed_at + 1)
        self.held.writing()
        written, encoded = self._encode_manifests(base, changes)
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
            manifest_files=self._used(nodes, files),
            started_at=min(self._started_at, flushed_at),
        )
        changed = changes.log(snapshot.id)
        self.objects.store_commit(snapshot, changed if log is None else log(changed), encoded)
        self._written |= written
        if chunks is not None:
            chunks()
        self.objects.storage.settle()
        return snapshot

    def _encode_manifests(
        self, base: Snapshot, changes: ChangeSet
    ) -> tuple[dict[NodeId, StoredManifests], EncodedManifests]:
        result: dict[NodeId, StoredManifests] = {}
        fresh: list[tuple[NodeId, StoredManifests]] = []
        pieces: list[tuple[NodeId, ChunkRefs]] = []
        sources: dict[NodeId, list[Manifest]] = {}
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
            keep, rows, sources[node.id] = self._rearrange(node, stored, refs)
            fresh.append((node.id, StoredManifests(stored, revision, node.user_data, keep, ())))
            pieces += [(node.id, piece) for piece in rows]
        manifests = [
            extended(
                Manifest(ManifestId(self._new_id()), {node: (piece,) for node, piece in group}),
                sources,
            )
            for group in share(pieces)
        ]
        homes: dict[NodeId, list[tuple[ManifestRef, ManifestFile]]] = {}
        encoded = self.objects.encode_manifests(manifests)
        for manifest, file in zip(manifests, encoded.files, strict=True):
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
        return result, encoded

    def _arrays_to_write(
        self, base: Snapshot, changes: ChangeSet
    ) -> list[tuple[Node, tuple[ManifestRef, ...]]]:
        """Arrays whose manifests may change, with the manifests they have in the base."""
        touched = set(changes.chunks) | set(changes.updated)
        arrays: list[tuple[Node, tuple[ManifestRef, ...]]] = [
            (node, ()) for node in changes.created.values() if node.id in touched and node.array
        ]
        found = base.nodes.values() if self.rewrite_all else nodes_with(base.nodes, touched)
        arrays += [
            (changes.updated.get(node.id, node), node.array.manifests)
            for node in found
            if node.array is not None and node.id not in changes.deleted
        ]
        return arrays

    def _rearrange(
        self, node: Node, stored: tuple[ManifestRef, ...], edits: ChunkRefs | None
    ) -> tuple[tuple[ManifestRef, ...], list[ChunkRefs], list[Manifest]]:
        """Manifests of an array that stay, rows of the new ones, and what they replace."""
        document = array_document(node)
        ndim = len(document.shape)
        edits = ChunkRefs.empty(ndim) if edits is None else edits
        known = () if self.rewrite_all else stored
        grid = array_grid(
            self.splitting, node.path, document.dimension_names, document.num_chunks, known
        )
        rewrite = choose(
            stored, edits.index, grid, document.num_chunks, everything=self.rewrite_all
        )
        manifests = self.objects.manifests(ref.id for ref in rewrite.load)
        for manifest in manifests:
            self._refuse_to_lose(manifest)
        loaded = [manifest.of(node.id, ndim) for manifest in manifests]
        return rewrite.keep, distribute(loaded, edits, grid, document.num_chunks), manifests

    def _refuse_to_lose(self, manifest: Manifest) -> None:
        if manifest.unknown is not None:
            raise UnsupportedError(
                f"manifest {self.objects.format_id(manifest.id)} was written by a newer version of "
                f"the format: rewriting it would lose {manifest.unknown}; update this "
                "package"
            )

    def _new_id(self) -> bytes:
        generation = self.objects.refs.generation
        return new_id(generation, self.world.entropy(generation.id_size))

    def _used(
        self, nodes: Mapping[str, Node], files: Mapping[ManifestId, ManifestFile]
    ) -> dict[ManifestId, ManifestFile]:
        """Exactly the manifests that the nodes name, in the order of ids."""
        ids = sorted(manifests_of(nodes))
        return {identity: self._described(identity, files) for identity in ids}

    def _described(
        self, identity: ManifestId, files: Mapping[ManifestId, ManifestFile]
    ) -> ManifestFile:
        """Facts of a manifest; looked up where early writers did not note them."""
        known = files.get(identity)
        if known is not None and known.size_bytes:
            return known
        if not self.objects.refs.generation.lists_manifests:
            return ManifestFile(identity, 0, 0)
        key = self.objects.refs.layout.manifest(identity)
        found = self.objects.storage.head(key)
        if found is None:
            raise StorageError(f"the manifest {key} is missing", kind=Kind.OBJECT_MISSING)
        return ManifestFile(identity, found.size, len(self.objects.manifest(identity)))


def extended(manifest: Manifest, sources: Mapping[NodeId, Sequence[Manifest]]) -> Manifest:
    """The manifest with the fields that newer releases added to its sources.

    Pure. How to merge two such fields that differ is unknown, so that is refused.
    """
    origins = [source for node_id in manifest.arrays for source in sources[node_id]]
    if not any(source.extra is not None or source.extras for source in origins):
        return manifest
    extras = {
        node_id: _only({source.extras.get(node_id) for source in sources[node_id]})
        for node_id in manifest.arrays
    }
    return replace(
        manifest,
        extra=_only({source.extra for source in origins}),
        extras={node_id: extra for node_id, extra in extras.items() if extra is not None},
    )


def _only(values: set[bytes | None]) -> bytes | None:
    found = values - {None}
    if len(found) > 1:
        raise UnsupportedError(
            "merging manifests with different fields of a newer version of the format would lose "
            "some; update this package"
        )
    return found.pop() if found else None


def new_nodes(
    base: Snapshot, changes: ChangeSet, manifests: Mapping[NodeId, tuple[ManifestRef, ...]]
) -> Mapping[str, Node]:
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

    if not changes.created and not changes.deleted:
        touched = nodes_with(base.nodes, {*changes.updated, *manifests})
        return edited(base.nodes, {node.path: current(node) for node in touched})
    nodes = {
        path: current(node) for path, node in base.nodes.items() if node.id not in changes.deleted
    }
    if not changes.created:
        return nodes
    return in_order([*nodes.values(), *(current(node) for node in changes.created.values())])
