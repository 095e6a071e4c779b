"""How much a repository holds: by kind of chunk, by version, by array, by kind of file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.ids import ManifestId, NodeId, encode_base32
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.maintenance.idsets import contains
from airflow_provider_icechunk.repository.maintenance.listing import Listing, list_objects
from airflow_provider_icechunk.repository.maintenance.loading import Loader, check_generation
from airflow_provider_icechunk.repository.maintenance.reachable import (
    MemoryLimits,
    Reachable,
)
from airflow_provider_icechunk.repository.maintenance.walk import read_roots
from airflow_provider_icechunk.storage.pool import run_all


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
