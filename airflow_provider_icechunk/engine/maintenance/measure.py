"""The size of a repository by kind of chunk, version, array and file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot

from .listing import NOTHING, IdUnion, Listing, contains, distinct, list_folder
from .reachable import (
    Loader,
    MemoryLimits,
    Reachable,
    Walk,
    all_refs,
    read_roots,
    sizes_by_id,
    waves,
)


@dataclass(frozen=True, slots=True)
class Size:
    """Chunks of one array or version, by kind. Chunks shared by versions count in each."""

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
    """What a collection could free once it is old enough."""


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


def measure(core: Core, limits: MemoryLimits | None = None) -> Measurement:
    """Sizes of every version and array, and of the files that hold them."""
    return Measuring(core, Reachable(Loader(core.storage, core.refs), limits)).run()


class Measuring:
    """One measurement. A subclass can do the heavy listing and reading elsewhere."""

    def __init__(self, core: Core, live: Reachable) -> None:
        self.core = core
        self.live = live

    def run(self) -> Measurement:
        """Measure everything that branches and tags reach."""
        roots = read_roots(self.core.refs)
        self.live.extend(roots.tips())
        links = self.live.walk.links
        loader = Loader(self.core.storage, self.core.refs)
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
            snapshots={self.core.format_id(one): _sum(sizes) for one, sizes in versions.items()},
            branches={name: _sum(versions[tip]) for name, tip in heads.items()},
            tags={name: _sum(versions[tip]) for name, tip in tagged.items()},
            arrays={name: versions[tip] for name, tip in heads.items()},
            files=self.files(),
        )

    def sizes(self, manifests: Sequence[ManifestId]) -> list[dict[NodeId, Size]]:
        """Sizes by array for each manifest."""
        loader = Loader(self.core.storage, self.core.refs)
        return run_all(lambda one: sizes_in(loader.manifest(one)), manifests, at_once=16)

    def files(self) -> dict[str, Stored]:
        """Files by folder, and which of them are in use."""
        layout = self.core.refs.layout
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
        """The files of one folder; those in `kept` are in use."""
        listing = list_folder(self.core.storage, self.core.refs.layout, prefix)
        return stored_files(listing, listing.take(~contains(kept, listing.ids)))


def _manifests_of(snapshot: Snapshot) -> dict[str, tuple[NodeId, tuple[ManifestId, ...]]]:
    """The manifests of each array by path."""
    return {
        path: (node.id, tuple(ref.id for ref in node.array.manifests))
        for path, node in snapshot.nodes.items()
        if node.array is not None
    }


def sizes_in(manifest: Manifest) -> dict[NodeId, Size]:
    """Sizes by array in a manifest."""
    return {
        node_id: _total(_size(refs) for refs in parts) for node_id, parts in manifest.arrays.items()
    }


def _size(refs: ChunkRefs) -> Size:
    numbers: list[int] = []
    for kind in (RefKind.NATIVE, RefKind.INLINE, RefKind.VIRTUAL):
        lengths = refs.length[refs.kind == kind]
        numbers += len(lengths), int(lengths.sum())
    return Size(*numbers)


def _total(sizes: Iterable[Size]) -> Size:
    return sum(sizes, Size())


def _sum(sizes: Mapping[str, Size]) -> Size:
    return _total(sizes.values())


def stored_files(listing: Listing, loose: Listing) -> Stored:
    """Counts and sizes of a folder."""
    return Stored(len(listing), listing.total_bytes, len(loose), loose.total_bytes)


_RANGE = np.dtype("S28")
"""Chunk id, offset, length."""
_FOREIGN = np.dtype("S32")
"""Digest of the location, offset, length."""


@dataclass(frozen=True, slots=True, repr=False)
class ChunkStorageStats(Shown):
    """Bytes of all chunks that branches and tags reach, with every stored byte counted once.

    The two sums are methods, as in the official package, despite its type stubs.
    """

    native_bytes: int = 0
    virtual_bytes: int = 0
    """In external files."""
    inlined_bytes: int = 0
    """In manifests; counted in each manifest that repeats them."""

    def non_virtual_bytes(self) -> int:
        """Bytes in this repository's own files."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """Bytes of all kinds."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes


def chunk_storage_stats(core: Core, limits: MemoryLimits | None = None) -> ChunkStorageStats:
    """Bytes of the chunks that branches and tags reach."""
    limits = limits or MemoryLimits()
    loader = Loader(core.storage, core.refs)
    visited = Walk(loader, at_once=limits.snapshots).extend(read_roots(core.refs).tips())
    native, foreign = IdUnion(np.zeros(0, _RANGE)), IdUnion(np.zeros(0, _FOREIGN))
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
    return ChunkStorageStats(_bytes_in(native.ids()), _bytes_in(foreign.ids()), inlined)


@dataclass(frozen=True, slots=True, eq=False)
class _ManifestRanges:
    """Distinct ranges of one manifest, and its inline bytes."""

    native: NDArray[np.bytes_]
    foreign: NDArray[np.bytes_]
    inlined: int


def _bytes_in(ranges: NDArray[np.bytes_]) -> int:
    """Bytes in distinct ranges; the last 8 bytes of each are its length."""
    rows = ranges.view(np.uint8).reshape(-1, ranges.itemsize)
    lengths = np.ascontiguousarray(rows[:, -8:]).view(">u8")
    return int(lengths.sum(dtype=np.uint64))


def _ranges(manifest: Manifest) -> _ManifestRanges:
    native, foreign, inlined = [], [], 0
    for refs in all_refs(manifest):
        own = refs.take(refs.kind == np.uint8(RefKind.NATIVE))
        native.append(_keys(own.chunk_id, own))
        other = refs.take(refs.kind == np.uint8(RefKind.VIRTUAL))
        foreign.append(_keys(_digests(other), other))
        inlined += int(refs.length[refs.kind == RefKind.INLINE].sum())
    return _ManifestRanges(_joined(native, _RANGE), _joined(foreign, _FOREIGN), inlined)


def _digests(refs: ChunkRefs) -> NDArray[np.uint8]:
    """A 16-byte digest of the location of each row."""
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
    return distinct(np.concatenate([np.zeros(0, dtype), *parts]))
