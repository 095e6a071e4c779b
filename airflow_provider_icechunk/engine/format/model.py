"""Snapshots, manifests and transaction logs as values, for all generations.

Every node keeps its `zarr.json` verbatim in `user_data`; generations that store Zarr metadata in
another form rebuild the document when they decode. Node paths are text, ordered by their raw UTF-8
bytes, because official readers search in that order.

Walking a history visits hundreds of snapshots of which only ids, times and parents matter. Their
trees are decoded and checked only on access.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.concurrency import PerProcess

from .chunk_refs import ChunkRefs, Extents, Index
from .ids import AttributesId, ManifestId, NodeId, SnapshotId

Metadata = Mapping[str, Any]
"""JSON values by name."""

FIRST_MESSAGE = "Repository initialized"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One side of an array."""

    length: int
    chunk_length: int
    """As stored. Do not trust it when reading (2.x recomputes it): use the node's `zarr.json`."""
    num_chunks: int | None = field(default=None, compare=False)
    """Chunks along this side, if known; derived from `zarr.json`, so it is not compared."""


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest with chunks of an array, and their extents."""

    id: ManifestId
    extents: Extents | None
    """Bounding box of the existing chunks; `None` if the generation does not store it."""
    row: int = field(default=0, compare=False)
    """First row of the array's references in the file; only in `draft`."""

    def may_hold(self, index: Index) -> bool:
        """Whether the chunk at `index` could be in this manifest."""
        if self.extents is None:
            return True
        return all(
            low <= number < high for number, (low, high) in zip(index, self.extents, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ArrayData:
    """What a snapshot stores about an array beyond its `zarr.json`."""

    shape: tuple[Dimension, ...]
    dimension_names: tuple[str | None, ...] | None
    manifests: tuple[ManifestRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A group or an array."""

    id: NodeId
    path: str
    user_data: bytes
    """The `zarr.json` document, verbatim."""
    array: ArrayData | None = None
    """`None` for a group."""
    extra: bytes | None = None
    """Node data of newer official releases; not used yet, written back unchanged."""

    @property
    def is_group(self) -> bool:
        """Whether this is a group."""
        return self.array is None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest file of a snapshot."""

    id: ManifestId
    size_bytes: int
    """Length of the whole file, header included; official readers fetch exactly this much."""
    num_chunk_refs: int
    extra: bytes | None = None
    """Kept unchanged, like that of a node; only in generation `2`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of the repository."""

    id: SnapshotId
    parent_id: SnapshotId | None
    """`None` in the first snapshot, and if the generation stores parents elsewhere."""
    flushed_at: int
    """Microseconds since 1970 UTC."""
    message: str
    metadata: Metadata
    nodes: Mapping[str, Node]
    """By path, in the order of the paths' raw UTF-8 bytes. Build with `in_order`."""
    manifest_files: Mapping[ManifestId, ManifestFile] = field(default_factory=dict)
    """By id, in the order of ids: exactly the manifests that the nodes use."""
    attribute_files: frozenset[AttributesId] = field(default=frozenset(), compare=False)
    """Files with attributes of nodes, in generations that have such files."""
    extra: bytes | None = None
    """Kept unchanged when this snapshot is rewritten; new snapshots have none."""
    started_at: int | None = field(default=None, compare=False)
    """Start of its session in microseconds since 1970 UTC; only in `alpha1`."""


def in_order(nodes: Iterable[Node]) -> dict[str, Node]:
    """Nodes by path, in the order official readers search by."""
    return {node.path: node for node in sorted(nodes, key=lambda node: node.path.encode())}


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """References of one or more arrays."""

    id: ManifestId
    arrays: Mapping[NodeId, tuple[ChunkRefs, ...]]
    """By node id, in the order of ids. One entry per rank found under that id: more than one only
    in `alpha` files that an old writer bug filled with coordinates of another array."""
    unknown: str | None = None
    """Additional values that a newer version stored in the file, if any."""
    extra: bytes | None = None
    """Manifest data of newer releases; not used yet, written back unchanged."""
    extras: Mapping[NodeId, bytes] = field(default_factory=dict)
    """The same for single arrays."""

    def of(self, node_id: NodeId, ndim: int) -> ChunkRefs:
        """The references of an array with `ndim` dimensions; those of another rank are ignored."""
        for refs in self.arrays.get(node_id, ()):
            if refs.ndim == ndim:
                return refs
        return ChunkRefs.empty(ndim)

    def __len__(self) -> int:
        return sum(len(refs) for parts in self.arrays.values() for refs in parts)

    @property
    def nbytes(self) -> int:
        """Approximate memory. Heaps are shared between the arrays of one file."""
        columns = sum(r.nbytes - len(r.heap) for parts in self.arrays.values() for r in parts)
        heaps = {id(r.heap): len(r.heap) for parts in self.arrays.values() for r in parts}
        return columns + sum(heaps.values())


Coordinates = NDArray[np.uint32]
"""`(n, d)` chunk coordinates, rows strictly increasing."""


@dataclass(frozen=True, slots=True)
class Move:
    """A node whose path changed. Its id stays the same."""

    node_id: NodeId
    is_array: bool
    source: str
    target: str


def in_target_order(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Moves ordered by target segments: `/a`, `/a/b`, `/a-b`, unlike the nodes of a snapshot."""
    return tuple(sorted(moves, key=lambda move: move.target.encode().split(b"/")))


@dataclass(frozen=True, slots=True, eq=False)
class TransactionLog:
    """Nodes and chunks that one commit touched.

    A created node is only in `new_*`, even if it was updated later; a node created and deleted in
    one session appears nowhere. `updated_chunks` lists written and deleted coordinates, also for
    new arrays.
    """

    id: SnapshotId
    new_groups: frozenset[NodeId] = frozenset()
    new_arrays: frozenset[NodeId] = frozenset()
    deleted_groups: frozenset[NodeId] = frozenset()
    deleted_arrays: frozenset[NodeId] = frozenset()
    updated_groups: frozenset[NodeId] = frozenset()
    updated_arrays: frozenset[NodeId] = frozenset()
    updated_chunks: Mapping[NodeId, Coordinates] = field(default_factory=dict)
    """Coordinates by array, in the order of ids."""
    moves: tuple[Move, ...] = ()
    """Net moves, including descendants of a moved group; only in generation `2`."""

    @property
    def renamed(self) -> frozenset[NodeId]:
        """Moved nodes where logs have no moves: deleted and created under the same id.

        All other new nodes have new ids.
        """
        return (self.new_groups & self.deleted_groups) | (self.new_arrays & self.deleted_arrays)

    @property
    def moves_nodes(self) -> bool:
        """Whether the commit moved nodes, in either form."""
        return bool(self.moves or self.renamed)


def log_of_nodes(
    identity: SnapshotId,
    created: Collection[Node],
    deleted: Collection[Node],
    updated: Collection[Node],
    chunks: Mapping[NodeId, Coordinates],
) -> TransactionLog:
    """A log from nodes, without moves."""

    def ids(nodes: Collection[Node], *, groups: bool) -> frozenset[NodeId]:
        return frozenset(node.id for node in nodes if node.is_group is groups)

    return TransactionLog(
        id=identity,
        new_groups=ids(created, groups=True),
        new_arrays=ids(created, groups=False),
        deleted_groups=ids(deleted, groups=True),
        deleted_arrays=ids(deleted, groups=False),
        updated_groups=ids(updated, groups=True),
        updated_arrays=ids(updated, groups=False),
        updated_chunks=chunks,
    )


_making = PerProcess(threading.Lock)
"""One lock for all: a decoder counts its memory, so no two threads may share one."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Deferred(Mapping[Key, Value]):
    """A mapping whose size is known and whose content is decoded later; may raise `FormatError`."""

    __slots__ = ("_content", "_make", "_memory", "_size")

    def __init__(
        self, size: int, make: Callable[[], Mapping[Key, Value]], memory: Purse | None = None
    ) -> None:
        self._size = size
        self._memory = memory
        self._make: Callable[[], Mapping[Key, Value]] | None = make
        self._content: Mapping[Key, Value] | None = None

    def content(self) -> Mapping[Key, Value]:
        """The decoded content."""
        if self._content is None:
            with _making.get():
                if self._make is not None:
                    with self._memory or nullcontext():
                        self._content = self._make()
                    # It holds the whole file, which is no longer needed.
                    self._make = None
        assert self._content is not None
        return self._content

    def __getitem__(self, key: Key) -> Value:
        return self.content()[key]

    def __contains__(self, key: object) -> bool:
        """As the content answers, which may not need to decode a value for it."""
        return key in self.content()

    def __iter__(self) -> Iterator[Key]:
        return iter(self.content())

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[type[dict[Key, Value]], tuple[Mapping[Key, Value]]]:
        """Pickled as its content."""
        return (dict, (dict(self.content()),))
