"""A snapshot: the whole tree of one version, with references to its manifests. Pure values.

Every node keeps its `zarr.json` verbatim in `user_data`; generations that store Zarr metadata in
another shape rebuild the document when they decode. Node paths are text; order is that of their raw
UTF-8 bytes, because official readers search by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_icechunk.format.ids import AttributesId, ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.format.references import ChunkRefs, Extents, Index

Metadata = Mapping[str, Any]
"""JSON values by name."""

FIRST_MESSAGE = "Repository initialized"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One side of an array."""

    length: int
    chunk_length: int
    """As stored. Not to be trusted when read (2.x recomputes it): ask the node's `zarr.json`."""
    num_chunks: int | None = field(default=None, compare=False)
    """Chunks along this side, where known; follows from `zarr.json`, so it is not compared."""


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest that holds chunks of an array, and the box they lie in."""

    id: ManifestId
    extents: Extents | None
    """Bounding box of the chunks really there; `None` where the generation does not say."""
    row: int = field(default=0, compare=False)
    """Row of the file at which the array's references begin; only `draft` keeps it."""

    def may_hold(self, index: Index) -> bool:
        """Whether the chunk at `index` could be in this manifest."""
        if self.extents is None:
            return True
        return all(
            low <= number < high for number, (low, high) in zip(index, self.extents, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ArrayData:
    """What a snapshot knows of an array beyond its `zarr.json`."""

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
    """What newer official releases keep with a node and nobody reads yet; stored again as it is."""

    @property
    def is_group(self) -> bool:
        """Whether this is a group."""
        return self.array is None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest file named by a snapshot."""

    id: ManifestId
    size_bytes: int
    """Length of the whole file, header included; official readers fetch exactly this much."""
    num_chunk_refs: int
    extra: bytes | None = None
    """Kept as it is, like that of a node; generation `2` only."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of the repository."""

    id: SnapshotId
    parent_id: SnapshotId | None
    """`None` in the first snapshot, and where the generation keeps parents elsewhere."""
    flushed_at: int
    """Microseconds since 1970 UTC."""
    message: str
    metadata: Metadata
    nodes: Mapping[str, Node]
    """By path, in the order of the paths' raw UTF-8 bytes. Build with `in_order`."""
    manifest_files: Mapping[ManifestId, ManifestFile] = field(default_factory=dict)
    """By id, in the order of ids: exactly the manifests that the nodes name."""
    attribute_files: frozenset[AttributesId] = field(default=frozenset(), compare=False)
    """Files in which attributes of nodes were found, in generations that have such files."""
    extra: bytes | None = None
    """Kept as it is when this snapshot is written again; new snapshots have none."""
    started_at: int | None = field(default=None, compare=False)
    """When its session began, in microseconds since 1970 UTC; only `alpha1` keeps it."""


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
    """What a newer version stored in the file and these values do not hold, if anything."""

    def of(self, node_id: NodeId, ndim: int) -> ChunkRefs:
        """The references of an array with `ndim` dimensions; coordinates of other rank are void."""
        for refs in self.arrays.get(node_id, ()):
            if refs.ndim == ndim:
                return refs
        return ChunkRefs.empty(ndim)

    def __len__(self) -> int:
        return sum(len(refs) for parts in self.arrays.values() for refs in parts)

    @property
    def nbytes(self) -> int:
        """Memory held, about. Heaps are shared between the arrays of one file."""
        columns = sum(r.nbytes - len(r.heap) for parts in self.arrays.values() for r in parts)
        heaps = {id(r.heap): len(r.heap) for parts in self.arrays.values() for r in parts}
        return columns + sum(heaps.values())
