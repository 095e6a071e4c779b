"""How much a repository holds: by kind of chunk, by version, by array, by kind of file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.ids import ManifestId, NodeId, encode_base32
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.maintenance.idsets import NOTHING, contains
from airflow_provider_icechunk.repository.maintenance.listing import Listing, list_objects
from airflow_provider_icechunk.repository.maintenance.loading import Loader, check_generation
from airflow_provider_icechunk.repository.maintenance.reachable import (
    MemoryLimits,
    Reachable,
    all_refs,
    sizes_by_id,
    waves,
)
from airflow_provider_icechunk.repository.maintenance.walk import Walk, read_roots
from airflow_provider_icechunk.storage.pool import run_all

_RANGE = np.dtype("S28")
"""Chunk id, offset, length."""
_FOREIGN = np.dtype("S32")
"""Digest of the location, offset, length."""
_MERGE_AT = 1 << 20


@dataclass(frozen=True, slots=True)
class ChunkStorageStats:
    """Bytes of all chunks that branches and tags reach, every stored byte counted once."""

    native_bytes: int = 0
    virtual_bytes: int = 0
    """In foreign files."""
    inlined_bytes: int = 0
    """In manifests; counted in each manifest that repeats them."""

    @property
    def non_virtual_bytes(self) -> int:
        """Bytes in this repository's own files."""
        return self.native_bytes + self.inlined_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all kinds."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes


@dataclass(frozen=True, slots=True)
class Size:
    """Chunks of one array or of one version, by kind. What versions share counts in each."""

    native_chunks: int = 0
    native_bytes: int = 0
    inline_chunks: int = 0
    inline_bytes: int = 0
    virtual_chunks: int = 0
    virtual_bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.native_chunks + other.native_chunks,
            self.native_bytes + other.native_bytes,
            self.inline_chunks + other.inline_chunks,
            self.inline_bytes + other.inline_bytes,
            self.virtual_chunks + other.virtual_chunks,
            self.virtual_bytes + other.virtual_bytes,
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """Files of one kind."""

    count: int
    bytes: int
    unreachable_count: int
    unreachable_bytes: int
    """What a collection could free, if it is old enough."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The sizes of a repository."""

    snapshots: Mapping[str, Size]
    """By snapshot id; all that branches and tags reach."""
    branches: Mapping[str, Size]
    """The head of each branch."""
    tags: Mapping[str, Size]
    arrays: Mapping[str, Mapping[str, Size]]
    """By branch, then by path: the arrays of each head."""
    files: Mapping[str, Stored]
    """By folder."""

    def as_dict(self) -> dict[str, object]:
        """The measurement in JSON values."""
        return asdict(self)


def chunk_storage_stats(engine: Engine, limits: MemoryLimits | None = None) -> ChunkStorageStats:
    """Bytes of the chunks that branches and tags reach."""
    check_generation(engine.ledger, "measuring")
    limits = limits or MemoryLimits()
    loader = Loader(engine.storage, engine.ledger)
    visited = Walk(loader, at_once=limits.snapshots).extend(read_roots(engine.ledger).tips())
    native, foreign = _Ranges(_RANGE), _Ranges(_FOREIGN)
    inlined = 0
    for wave in waves(list(sizes_by_id(visited, NOTHING).items()), limits.manifest_bytes):
        for part in run_all(
            lambda identity: _ranges(loader.manifest(ManifestId(identity))),
            wave,
            at_once=limits.lanes,
        ):
            native.add(part.native)
            foreign.add(part.foreign)
            inlined += part.inlined
    return ChunkStorageStats(native.total(), foreign.total(), inlined)


def measure(engine: Engine, limits: MemoryLimits | None = None) -> Measurement:
    """Sizes of every version and array, and of the files that hold them."""
    check_generation(engine.ledger, "measuring")
    loader = Loader(engine.storage, engine.ledger)
    live = Reachable(loader, limits)
    roots = read_roots(engine.ledger)
    live.extend(roots.tips())
    known: dict[ManifestId, dict[NodeId, Size]] = {}
    versions = {
        link.id: _measure_version(loader, loader.snapshot(identity), known)
        for identity, link in live.walk.links.items()
    }
    heads = {name: live.walk.links[tip].id for name, tip in roots.branches.items()}
    tagged = {name: live.walk.links[tip].id for name, tip in roots.tags.items()}
    return Measurement(
        snapshots={encode_base32(one): _sum(sizes) for one, sizes in versions.items()},
        branches={name: _sum(versions[tip]) for name, tip in heads.items()},
        tags={name: _sum(versions[tip]) for name, tip in tagged.items()},
        arrays={name: versions[tip] for name, tip in heads.items()},
        files=_files(engine, live),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Distinct ranges of one manifest, and its inline bytes."""

    native: NDArray[np.bytes_]
    foreign: NDArray[np.bytes_]
    inlined: int


class _Ranges:
    """A growing set of byte ranges; the last 8 bytes of each are its length."""

    def __init__(self, dtype: np.dtype[np.bytes_]) -> None:
        self._merged: NDArray[np.bytes_] = np.zeros(0, dtype)
        self._parts: list[NDArray[np.bytes_]] = []
        self._pending = 0

    def add(self, keys: NDArray[np.bytes_]) -> None:
        self._parts.append(keys)
        self._pending += len(keys)
        if self._pending > max(_MERGE_AT, len(self._merged)):
            self._merge()

    def total(self) -> int:
        self._merge()
        rows = self._merged.view(np.uint8).reshape(len(self._merged), -1)
        lengths = np.ascontiguousarray(rows[:, -8:]).view(">u8")
        return int(lengths.sum(dtype=np.uint64))

    def _merge(self) -> None:
        self._merged = np.unique(np.concatenate([self._merged, *self._parts]))
        self._parts, self._pending = [], 0


def _ranges(manifest: Manifest) -> _Part:
    native, foreign, inlined = [], [], 0
    for refs in all_refs(manifest):
        own = refs.take(refs.kind == np.uint8(RefKind.NATIVE))
        native.append(_keys(own.chunk_id, own))
        other = refs.take(refs.kind == np.uint8(RefKind.VIRTUAL))
        foreign.append(_keys(_digests(other), other))
        inlined += int(refs.length[refs.kind == RefKind.INLINE].sum())
    return _Part(_joined(native, _RANGE), _joined(foreign, _FOREIGN), inlined)


def _digests(refs: ChunkRefs) -> NDArray[np.uint8]:
    """Sixteen bytes for the location of each row; equal locations have equal ones."""
    spans, inverse = np.unique(refs.span, axis=0, return_inverse=True)
    digests = b"".join(
        blake2b(bytes(refs.heap[start:stop]), digest_size=16).digest()
        for start, stop in spans.tolist()
    )
    return np.frombuffer(digests, np.uint8).reshape(len(spans), 16)[inverse.reshape(-1)]


def _keys(names: NDArray[np.uint8], refs: ChunkRefs) -> NDArray[np.bytes_]:
    numbers = np.stack([refs.offset, refs.length], axis=1).astype(">u8")
    rows = np.concatenate([names, numbers.view(np.uint8).reshape(len(refs), 16)], axis=1)
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(len(refs))


def _joined(parts: list[NDArray[np.bytes_]], dtype: np.dtype[np.bytes_]) -> NDArray[np.bytes_]:
    return np.unique(np.concatenate([np.zeros(0, dtype), *parts]))


def _measure_version(
    loader: Loader, snapshot: Snapshot, known: dict[ManifestId, dict[NodeId, Size]]
) -> dict[str, Size]:
    arrays = {path: node for path, node in snapshot.nodes.items() if node.array is not None}
    used = {
        ref.id for node in arrays.values() if node.array is not None for ref in node.array.manifests
    }
    fresh = sorted(used - known.keys())
    sizes = run_all(lambda identity: _sizes(loader.manifest(identity)), fresh, at_once=16)
    known.update(zip(fresh, sizes, strict=True))
    return {
        path: _sum(
            {
                str(n): known[ref.id].get(node.id, Size())
                for n, ref in enumerate(node.array.manifests)
            }
        )
        for path, node in arrays.items()
        if node.array is not None
    }


def _sizes(manifest: Manifest) -> dict[NodeId, Size]:
    return {
        node_id: _total(_size(refs) for refs in parts) for node_id, parts in manifest.arrays.items()
    }


def _size(refs: ChunkRefs) -> Size:
    counts = np.bincount(refs.kind, minlength=4).tolist()
    lengths = [
        int(refs.length[refs.kind == kind].sum())
        for kind in (RefKind.NATIVE, RefKind.INLINE, RefKind.VIRTUAL)
    ]
    return Size(
        counts[RefKind.NATIVE],
        lengths[0],
        counts[RefKind.INLINE],
        lengths[1],
        counts[RefKind.VIRTUAL],
        lengths[2],
    )


def _total(sizes: Iterable[Size]) -> Size:
    return sum(sizes, Size())


def _sum(sizes: Mapping[str, Size]) -> Size:
    return _total(sizes.values())


def _files(engine: Engine, live: Reachable) -> dict[str, Stored]:
    layout = engine.ledger.layout
    snapshots = live.snapshots()
    kept = {
        layout.snapshots: snapshots,
        layout.transactions: snapshots,
        layout.manifests: live.manifests(),
        layout.chunks: live.chunks(),
    }
    return {
        prefix.rstrip("/"): _stored(list_objects(engine.storage, prefix), ids)
        for prefix, ids in kept.items()
    }


def _stored(listing: Listing, kept: NDArray[np.bytes_]) -> Stored:
    loose = listing.take(~contains(kept, listing.ids))
    return Stored(len(listing), listing.total_bytes, len(loose), loose.total_bytes)
