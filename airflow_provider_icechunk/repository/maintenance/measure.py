"""How much a repository holds: by kind of chunk, by version, by array, by kind of file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.maintenance.idsets import contains
from airflow_provider_icechunk.repository.maintenance.listing import Listing, list_folder
from airflow_provider_icechunk.repository.maintenance.loading import Loader
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
    return Measuring(engine, Reachable(Loader(engine.storage, engine.ledger), limits)).run()


class Measuring:
    """One measurement. What lists and reads much can be done elsewhere by a subclass."""

    def __init__(self, engine: Engine, live: Reachable) -> None:
        self.engine = engine
        self.live = live

    def run(self) -> Measurement:
        """Look at everything that branches and tags reach."""
        roots = read_roots(self.engine.ledger)
        self.live.extend(roots.tips())
        links = self.live.walk.links
        loader = Loader(self.engine.storage, self.engine.ledger)
        arrays = {
            link.id: _manifests_of(loader.snapshot(identity)) for identity, link in links.items()
        }
        used = sorted(
            {one for paths in arrays.values() for _, ids in paths.values() for one in ids}
        )
        known = dict(zip(used, self.sizes(used), strict=True))
        versions = {
            version: {
                path: _total(known[one].get(node_id, Size()) for one in ids)
                for path, (node_id, ids) in paths.items()
            }
            for version, paths in arrays.items()
        }
        heads = {name: links[tip].id for name, tip in roots.branches.items()}
        tagged = {name: links[tip].id for name, tip in roots.tags.items()}
        return Measurement(
            snapshots={self.engine.show(one): _sum(sizes) for one, sizes in versions.items()},
            branches={name: _sum(versions[tip]) for name, tip in heads.items()},
            tags={name: _sum(versions[tip]) for name, tip in tagged.items()},
            arrays={name: versions[tip] for name, tip in heads.items()},
            files=self.files(),
        )

    def sizes(self, manifests: Sequence[ManifestId]) -> list[dict[NodeId, Size]]:
        """What each manifest holds of each array."""
        loader = Loader(self.engine.storage, self.engine.ledger)
        return run_all(lambda one: sizes_in(loader.manifest(one)), manifests, at_once=16)

    def files(self) -> dict[str, Stored]:
        """Files by folder, and which of them are in use."""
        layout = self.engine.ledger.layout
        snapshots = self.live.snapshots()
        kept = {
            layout.snapshots: snapshots,
            layout.transactions: snapshots,
            layout.manifests: self.live.manifests(),
            layout.chunks: self.live.chunks(),
            **({} if layout.attributes is None else {layout.attributes: self.live.attributes()}),
        }
        return {prefix.rstrip("/"): self.stored(prefix, ids) for prefix, ids in kept.items()}

    def stored(self, prefix: str, kept: NDArray[np.bytes_]) -> Stored:
        """The files of one folder, of which those in `kept` are in use."""
        listing = list_folder(self.engine.storage, self.engine.ledger.layout, prefix)
        return stored_files(listing, listing.take(~contains(kept, listing.ids)))


def _manifests_of(snapshot: Snapshot) -> dict[str, tuple[NodeId, tuple[ManifestId, ...]]]:
    """The manifests of each array by path."""
    return {
        path: (node.id, tuple(ref.id for ref in node.array.manifests))
        for path, node in snapshot.nodes.items()
        if node.array is not None
    }


def sizes_in(manifest: Manifest) -> dict[NodeId, Size]:
    """What a manifest holds of each array."""
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


def stored_files(listing: Listing, loose: Listing) -> Stored:
    """A folder in numbers."""
    return Stored(len(listing), listing.total_bytes, len(loose), loose.total_bytes)
