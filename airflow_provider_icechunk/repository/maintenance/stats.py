"""Bytes of all chunks that branches and tags reach, every stored byte counted once."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.ids import ManifestId
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind
from airflow_provider_icechunk.format.snapshot import Manifest
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.maintenance.idsets import NOTHING, distinct
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.repository.maintenance.reachable import (
    MemoryLimits,
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
    """Bytes of all chunks that branches and tags reach, every stored byte counted once.

    The two sums are methods, as in the official package; its type stubs say otherwise.
    """

    native_bytes: int = 0
    virtual_bytes: int = 0
    """In foreign files."""
    inlined_bytes: int = 0
    """In manifests; counted in each manifest that repeats them."""

    def non_virtual_bytes(self) -> int:
        """Bytes in this repository's own files."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """Bytes of all kinds."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes


def chunk_storage_stats(engine: Engine, limits: MemoryLimits | None = None) -> ChunkStorageStats:
    """Bytes of the chunks that branches and tags reach."""
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
        rows = self._merged.view(np.uint8).reshape(-1, self._merged.itemsize)
        lengths = np.ascontiguousarray(rows[:, -8:]).view(">u8")
        return int(lengths.sum(dtype=np.uint64))

    def _merge(self) -> None:
        self._merged = distinct(np.concatenate([self._merged, *self._parts]))
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
    return distinct(np.concatenate([np.zeros(0, dtype), *parts]))
