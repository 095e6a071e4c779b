"""Convert manifests, snapshots and logs to generation `1`.

A manifest that generation `1` can read stays. Others are rewritten under an id derived from the old
one, so that a second attempt finds them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Extents
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    OBJECT_ID_SIZE,
    ManifestId,
    NodeId,
    SnapshotId,
)
from airflow_provider_icechunk.engine.format.model import (
    Manifest,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
    in_order,
)
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec, V1Layout
from airflow_provider_icechunk.engine.format.zarr_metadata import node_from_document
from airflow_provider_icechunk.engine.objects.objects import Objects
from airflow_provider_icechunk.exceptions import (
    FormatError,
    IcechunkError,
    Kind,
    StorageError,
    UnsupportedError,
)

from .identities import fold_rows, manifest_id
from .survey import MigrationSource

Ranks = Mapping[NodeId, int]
"""Number of dimensions of the arrays that use a manifest."""
Choices = tuple[tuple[NodeId, int], ...]
"""The table used for nodes that have several, by its number of dimensions."""

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Converted:
    """A manifest of generation `1`, and the extents of its arrays that have chunks."""

    file: ManifestFile
    boxes: Mapping[NodeId, Extents]


@dataclass(frozen=True, slots=True)
class Family:
    """The results for one manifest: one file, or several if old software mixed up its arrays."""

    ambiguous: frozenset[NodeId]
    members: Mapping[Choices, Converted]

    def find(self, ranks: Ranks) -> Converted | None:
        """The file for a snapshot whose arrays have these ranks."""
        return self.members.get(_choices(self.ambiguous, ranks))


@dataclass(slots=True)
class ManifestConverter:
    """Reads manifests of the old repository and stores the converted ones."""

    source: MigrationSource
    target: Objects | None
    """Stores them; with `None` they are only counted."""
    there: Mapping[str, int] = field(default_factory=dict)
    """Keys and sizes of manifests that an earlier attempt may have stored."""
    families: dict[ManifestId, Family] = field(default_factory=dict)
    written: int = 0
    _natives: list[NDArray[np.uint8]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def convert(self, snapshots: Iterable[Snapshot]) -> None:
        """Convert every manifest of the snapshots that is not converted yet."""
        wanted: dict[ManifestId, list[Ranks]] = {}
        for snapshot in snapshots:
            for identity, ranks in uses(snapshot).items():
                family = self.families.get(identity)
                if family is None or family.find(ranks) is None:
                    wanted.setdefault(identity, []).append(ranks)
        items = list(wanted.items())
        found = run_all(lambda item: self._family(*item), items, at_once=_AT_ONCE)
        for (identity, _), family in zip(items, found, strict=True):
            known = self.families.get(identity)
            members = {**known.members, **family.members} if known else family.members
            self.families[identity] = Family(family.ambiguous, members)

    def find(self, identity: ManifestId, ranks: Ranks) -> Converted:
        """The converted manifest."""
        found = self.families[identity].find(ranks)
        assert found is not None
        return found

    def chunk_ids(self) -> NDArray[np.uint8]:
        """`(n, 16)` sorted distinct ids of the chunk files in use."""
        with self._lock:
            parts, self._natives = self._natives, []
        size = self.source.generation.id_size
        joined = np.concatenate(parts) if parts else np.zeros((0, size), np.uint8)
        distinct = _distinct_rows(joined)
        self._natives.append(distinct)
        return distinct

    def _family(self, identity: ManifestId, uses: list[Ranks]) -> Family:
        data = self._bytes(identity)
        kept = self._as_it_is(data, identity)
        if kept is not None:
            return kept
        key = self.source.refs.layout.manifest(identity)
        old = self.source.refs.codec.decode_manifest(data, identity, where=key)
        ambiguous = frozenset(node for node, tables in old.arrays.items() if len(tables) > 1)
        members = {
            choices: self._store(chosen(old, choices))
            for choices in {_choices(ambiguous, ranks) for ranks in uses}
        }
        return Family(ambiguous, members)

    def _store(self, manifest: Manifest) -> Converted:
        self._note_chunks(manifest)
        new = narrowed(manifest)
        boxes = _boxes(new)
        size = self.there.get(V1Layout().manifest(new.id))
        if self.target is None or size is not None:
            return Converted(ManifestFile(new.id, size or 0, len(new)), boxes)
        (file,) = self.target.store_manifests([new])
        return Converted(file, boxes)

    def _note_chunks(self, manifest: Manifest) -> None:
        used = [ids for (refs,) in manifest.arrays.values() if len(ids := refs.native_ids())]
        with self._lock:
            self.written += 1
            if used and self.source.generation.id_size != OBJECT_ID_SIZE:
                self._natives.append(_distinct_rows(np.concatenate(used)))

    def _as_it_is(self, data: bytes, identity: ManifestId) -> Family | None:
        """The manifest itself if it already is a file of generation `1`."""
        if self.source.generation is not Generation.ALPHA:
            return None
        try:
            found = V1Codec().decode_manifest(data, identity, where="a manifest")
        except (FormatError, UnsupportedError):
            return None
        file = ManifestFile(identity, len(data), len(found))
        return Family(frozenset(), {(): Converted(file, _boxes(found))})

    def _bytes(self, identity: ManifestId) -> bytes:
        key = self.source.refs.layout.manifest(identity)
        found = self.source.storage.get(key)
        if found is None:
            raise StorageError(
                f"the manifest {key} is missing in {self.source.storage.location} although a "
                "snapshot refers to it; nothing was migrated: run `verify` to see what is lost",
                kind=Kind.OBJECT_MISSING,
            )
        return found.data


def uses(snapshot: Snapshot) -> dict[ManifestId, dict[NodeId, int]]:
    """The manifests of a snapshot and the arrays that use them. Pure."""
    found: dict[ManifestId, dict[NodeId, int]] = {}
    for node in snapshot.nodes.values():
        if node.array is not None:
            for ref in node.array.manifests:
                found.setdefault(ref.id, {})[node.id] = len(node.array.shape)
    return found


def chosen(manifest: Manifest, choices: Choices) -> Manifest:
    """The manifest with one table per node, under the derived id. Pure."""
    ranks = dict(choices)
    arrays: dict[NodeId, tuple[ChunkRefs, ...]] = {}
    for node, tables in manifest.arrays.items():
        refs = manifest.of(node, ranks[node]) if node in ranks else tables[0]
        if len(refs):
            arrays[node] = (refs,)
    return replace(manifest, id=manifest_id(manifest.id, choices), arrays=arrays)


def narrowed(manifest: Manifest) -> Manifest:
    """The manifest with chunk ids of 12 bytes. Pure."""
    return replace(
        manifest,
        arrays={
            node: tuple(replace(refs, chunk_id=fold_rows(refs.chunk_id)) for refs in tables)
            for node, tables in manifest.arrays.items()
        },
    )


def _choices(ambiguous: frozenset[NodeId], ranks: Ranks) -> Choices:
    return tuple(sorted((node, ranks[node]) for node in ambiguous if node in ranks))


def _boxes(manifest: Manifest) -> dict[NodeId, Extents]:
    return {node: refs.extents() for node, (refs, *_) in manifest.arrays.items() if len(refs)}


def _distinct_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    size = rows.shape[1]
    keys = np.ascontiguousarray(rows).view(np.dtype((np.void, size))).reshape(len(rows))
    return np.unique(keys).view(np.uint8).reshape(-1, size)


Lookup = Callable[[ManifestId, Ranks], Converted]


def convert_snapshot(
    snapshot: Snapshot, identity: SnapshotId, parent: SnapshotId | None, find: Lookup
) -> Snapshot:
    """A snapshot with its converted manifests and their true extents."""
    ranks = uses(snapshot)
    files: dict[ManifestId, ManifestFile] = {}
    nodes = []
    for node in snapshot.nodes.values():
        refs = []
        for ref in node.array.manifests if node.array is not None else ():
            became = find(ref.id, ranks[ref.id])
            box = became.boxes.get(node.id)
            if box is not None and len(box) == ranks[ref.id][node.id]:
                refs.append(ManifestRef(became.file.id, box))
                files[became.file.id] = became.file
        _check_apart(node, [ref.extents for ref in refs if ref.extents is not None])
        nodes.append(_convert_node(node, tuple(refs)))
    return replace(
        snapshot,
        id=identity,
        parent_id=parent,
        nodes=in_order(nodes),
        manifest_files=dict(sorted(files.items())),
        attribute_files=frozenset(),
    )


def convert_log(log: TransactionLog, snapshot: Snapshot) -> TransactionLog:
    """A log under the new id of its snapshot, with groups and arrays separated.

    `alpha` does not say whether a node with new attributes is a group.
    """
    groups = frozenset(node.id for node in snapshot.nodes.values() if node.is_group)
    arrays = frozenset(node.id for node in snapshot.nodes.values() if not node.is_group)
    return replace(
        log,
        id=snapshot.id,
        updated_groups=log.updated_groups & groups,
        updated_arrays=log.updated_arrays & arrays,
    )


def _convert_node(node: Node, refs: tuple[ManifestRef, ...]) -> Node:
    try:
        return node_from_document(node.id, node.path, node.user_data, refs)
    except IcechunkError as error:
        raise UnsupportedError(f"{node.path} cannot be migrated: {error.message}") from error


def _check_apart(node: Node, boxes: list[Extents]) -> None:
    """Raise if manifests of one array overlap: readers use only the first one."""
    stored = node.array.manifests if node.array is not None else ()
    if len(boxes) < 2 or all(ref.extents is not None for ref in stored):
        return
    for number, one in enumerate(boxes):
        for other in boxes[:number]:
            if all(a[0] < b[1] and b[0] < a[1] for a, b in zip(one, other, strict=True)):
                raise UnsupportedError(
                    f"{node.path} has two manifests with chunks in the same region, which newer "
                    "generations cannot hold; copy its data into a new repository instead"
                )
