"""The tree of one session: its base snapshot with its changes, down to the bytes of chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    Index,
    Payload,
    Virtual,
    concatenate,
)
from airflow_provider_icechunk.engine.format.codec import Selective
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.engine.format.model import Node, Snapshot
from airflow_provider_icechunk.engine.format.names import (
    ROOT,
    check_node_path,
    is_below,
    parent_path,
)
from airflow_provider_icechunk.engine.format.zarr_metadata import (
    MAX_CHUNKS,
    array_document,
    in_grid,
    node_from_document,
)
from airflow_provider_icechunk.engine.objects.chunk_reader import Take, Wanted
from airflow_provider_icechunk.engine.storage.base import Data
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    Kind,
    NotFoundError,
    ReadOnlyError,
)

from .boxes import Boxes, cover, joined
from .changes import UNTOUCHED, ChangeSet, NodeIds, Untouched


def node_at(base: Snapshot, changes: ChangeSet, path: str) -> Node | None:
    """The node at `path` now."""
    created = changes.created.get(path)
    if created is not None:
        return created
    node = base.nodes.get(path)
    return (
        None if node is None or node.id in changes.deleted else changes.updated.get(node.id, node)
    )


def nodes_below(base: Snapshot, changes: ChangeSet, path: str) -> Iterator[Node]:
    """The node at `path` and all its descendants, in the order of their paths' raw bytes."""
    paths = list(base.nodes)
    if changes.created:
        paths = sorted({*paths, *changes.created}, key=str.encode)
    for candidate in paths:
        if path != ROOT and candidate != path and not is_below(candidate, path):
            continue
        node = node_at(base, changes, candidate)
        if node is not None:
            yield node


def nearest_ancestor(base: Snapshot, changes: ChangeSet, path: str) -> Node | None:
    """The closest existing node strictly above `path`."""
    above = parent_path(path)
    while above is not None:
        node = node_at(base, changes, above)
        if node is not None:
            return node
        above = parent_path(above)
    return None


Find = Callable[[ManifestId, NodeId, Index], Payload | None]


class WorkingTree:
    """Nodes and chunks as a session sees and changes them. Safe to use from many threads.

    The lock guards the change set and its base; bytes are read and written without holding it.
    """

    def __init__(self, core: Core, base: Snapshot, *, read_only: bool) -> None:
        self.core = core
        self.lock = threading.RLock()
        self.base = base
        self.changes = ChangeSet()
        self.read_only = read_only
        self.held = core.leasehold()
        self.writer = core.writer(self.held)
        self.node_ids = NodeIds(core.generation, core.world.entropy)
        self._uneven = core.generation.rectilinear
        self._recordings: list[Mapping[str, Boxes]] = []

    @contextmanager
    def recording(self, boxes: Mapping[str, Boxes]) -> Iterator[None]:
        """Everything written to these arrays in the block, by any thread, is inside these boxes."""
        with self.lock:
            self._recordings.append(boxes)
        try:
            yield
        finally:
            with self.lock:
                self._recordings = [one for one in self._recordings if one is not boxes]

    def appended(self, axis: str, start: int, stop: int) -> None:
        """Record an append to a growing dimension, which may be moved later.

        :param axis: path of the coordinate, which is also the name of the dimension.
        """
        with self.lock:
            self.changes.add_appends({axis: (start, stop)})

    def is_recording(self, path: str) -> bool:
        """Whether writes to this array are being recorded."""
        return any(path in one for one in self._recordings)

    def _recorded(self, node: Node, places: Sequence[Index] | NDArray[np.uint32]) -> Boxes | None:
        """The boxes in which chunks are being written, if they are recorded and fit."""
        if not self._recordings:
            return None
        said = [one[node.path] for one in self._recordings if node.path in one]
        if not said:
            return None
        boxes = said[0] if len(said) == 1 else joined((), (box for one in said for box in one))
        index = np.asarray(places, np.int64).reshape(len(places), len(array_document(node).shape))
        return boxes if cover(boxes, array_document(node), index) else None

    def node(self, path: str) -> Node | None:
        """The node at `path`, if there is one."""
        with self.lock:
            return node_at(self.base, self.changes, path)

    def array(self, path: str) -> Node:
        """The array at `path`; otherwise an error that says what is there instead."""
        node = self.node(check_node_path(path))
        if node is None:
            raise NotFoundError(f"there is no array at {path}", kind=Kind.NODE_NOT_FOUND)
        if node.is_group:
            raise NotFoundError(f"{path} is a group, not an array", kind=Kind.NODE_NOT_FOUND)
        return node

    def nodes(self, path: str = ROOT) -> list[Node]:
        """The node at `path` and everything below it, in order."""
        with self.lock:
            return list(nodes_below(self.base, self.changes, path))

    def ancestor(self, path: str) -> Node | None:
        """The closest node strictly above `path`."""
        with self.lock:
            return nearest_ancestor(self.base, self.changes, path)

    def put_document(self, path: str, document: bytes) -> None:
        """Create the node at `path` or replace its `zarr.json`; equal bytes change nothing."""
        check_node_path(path)
        with self.lock:
            self.check_writable()
            known = node_at(self.base, self.changes, path)
            if known is None:
                identity = self.node_ids.new(self.base, self.changes)
                created = node_from_document(identity, path, document, rectilinear=self._uneven)
                self._check_node(created)
                self.changes.create(created)
                return
            if known.user_data == document:
                return
            manifests = known.array.manifests if known.array else ()
            node = node_from_document(known.id, path, document, manifests, rectilinear=self._uneven)
            node = replace(node, extra=known.extra)
            if node.is_group is not known.is_group:
                here, given = ("group", "array") if known.is_group else ("array", "group")
                raise AlreadyExistsError(
                    f"{path} is a {here}; delete it before creating an {given} there",
                    kind=Kind.NODE_EXISTS,
                )
            self._check_node(node)
            self.changes.update(node)

    def delete(self, path: str) -> None:
        """Delete the node at `path` with everything below it; nothing if there is none."""
        with self.lock:
            self.check_writable()
            if node_at(self.base, self.changes, path) is None:
                return
            for node in list(nodes_below(self.base, self.changes, path)):
                self.changes.delete(node)

    def chunk(self, path: str, index: Index) -> Payload | None:
        """Where the chunk at `index` of an array is; `None` if it was never written.

        A position outside the grid, or a path without an array, has no chunk.
        """
        return self._chunk(path, index, self.core.objects.find)

    def chunks(self, path: str, places: Sequence[Index]) -> list[Payload | None]:
        """Where many chunks of one array are: `chunk` for each of them."""
        with self.lock:
            node = node_at(self.base, self.changes, path)
            if node is None or node.array is None:
                return [None] * len(places)
            edited = [self._edited(node, index) for index in places]
        find = self.core.objects.find
        return [
            self._stored(node, index, find) if isinstance(edit, Untouched) else edit
            for index, edit in zip(places, edited, strict=True)
        ]

    def chunk_at_hand(self, path: str, index: Index) -> Payload | None:
        """`chunk` without waiting for the storage; `None` also if that would be necessary."""
        return self._chunk(path, index, self.core.objects.find_cached)

    def _chunk(
        self,
        path: str,
        index: Index,
        find: Find,
    ) -> Payload | None:
        with self.lock:
            node = node_at(self.base, self.changes, path)
            if node is None or node.array is None:
                return None
            edit = self._edited(node, index)
        if not isinstance(edit, Untouched):
            return edit
        return self._stored(node, index, find)

    def _edited(self, node: Node, index: Index) -> Payload | Untouched | None:
        """What the session did to a chunk; outside the grid there is nothing."""
        if not in_grid(node, index):
            return None
        edits = self.changes.chunks.get(node.id)
        return UNTOUCHED if edits is None else edits.find(index)

    def stored(self, node: Node, index: Index) -> Payload | None:
        """Where a chunk is by the manifests of a node, whatever the session did to it."""
        return self._stored(node, index, self.core.objects.find)

    @staticmethod
    def _stored(node: Node, index: Index, find: Find) -> Payload | None:
        assert node.array is not None
        for ref in node.array.manifests:
            if ref.may_hold(index):
                found = find(ref.id, node.id, index)
                if found is not None:
                    return found
        return None

    def references(self, node: Node) -> ChunkRefs:
        """All references of an array as columns, edits included."""
        assert node.array is not None
        ndim = len(node.array.shape)
        with self.lock:
            edits = self.changes.chunks.get(node.id)
            edited = ChunkRefs.empty(ndim) if edits is None else edits.columns()
        manifests = self.core.objects.manifests(ref.id for ref in node.array.manifests)
        parts = [part for part in (m.of(node.id, ndim) for m in manifests) if len(part)]
        stored = ChunkRefs.of(concatenate(parts)) if parts else ChunkRefs.empty(ndim)
        refs = stored.overlay(edited).without_erased()
        inside = refs.inside(tuple((0, count) for count in array_document(node).num_chunks))
        return refs if inside.all() else refs.take(inside)

    def put_chunk(self, path: str, index: Index, data: Data) -> None:
        """Write the bytes of one chunk."""
        self.check_writable()
        self._check_place(path, self.array(path), index)
        self.put_payload(path, index, self.writer.write(data))

    def put_chunks(self, path: str, chunks: Iterable[tuple[Index, Data]]) -> None:
        """Write the bytes of many chunks of one array: all of them, or none."""
        self.check_writable()
        node = self.array(path)
        written = []
        for index, data in chunks:
            self._check_place(path, node, index)
            written.append((index, self.writer.write(data)))
        with self.lock:
            self.check_writable()
            node = self.array(path)
            for index, _ in written:
                self._check_place(path, node, index)
            edits = self.changes.edits(node)
            boxes = self._recorded(node, [index for index, _ in written])
            for index, payload in written:
                edits.set(index, payload, boxes)

    def put_payload(self, path: str, index: Index, payload: Payload | None) -> None:
        """Make a chunk refer to `payload`, or erase it with `None`."""
        with self.lock:
            self.check_writable()
            node = self.array(path)
            self._check_place(path, node, index)
            if isinstance(payload, Virtual):
                self._check_references(ChunkRefs.from_items(len(index), [(index, payload)]))
            self.changes.edits(node).set(index, payload, self._recorded(node, [index]))

    def erase(self, path: str, places: Sequence[Index]) -> None:
        """Erase chunks as if they had never been written; positions without one are skipped."""
        with self.lock:
            self.check_writable()
            node = node_at(self.base, self.changes, path)
            if node is None or node.array is None:
                return
            edits = self.changes.edits(node)
            inside = [index for index in places if in_grid(node, index)]
            boxes = self._recorded(node, inside)
            for index in inside:
                edits.set(index, None, boxes)

    def put_references(self, path: str, refs: ChunkRefs, boxes: Boxes | None = None) -> None:
        """Change the references of many chunks at once.

        :param boxes: the cells that may have changed, if known.
        """
        with self.lock:
            self.check_writable()
            node = self.array(path)
            counts = array_document(node).num_chunks
            if refs.ndim != len(counts):
                raise InvalidInputError(
                    f"{path} has {len(counts)} dimensions, the references have {refs.ndim}"
                )
            inside = refs.inside(tuple((0, count) for count in counts))
            if not inside.all():
                outside = tuple(refs.index[int(inside.argmin())].tolist())
                self._refuse_place(path, node, outside)
            self._check_references(refs)
            if boxes is None:
                boxes = self._recorded(node, refs.index)
            elif not cover(boxes, array_document(node), refs.index):
                boxes = None
            self.changes.edits(node).set_many(refs, boxes)

    def cached(self, wanted: Wanted) -> bytes | None:
        """Bytes of a chunk range from memory; `None` if the storage must be read."""
        return self.core.reader.cached(wanted, self.writer)

    def read(self, wanted: Sequence[Wanted]) -> list[bytes]:
        """Bytes of chunk ranges, including chunks that wait to be stored."""
        return self.core.reader.read_many(wanted, self.writer)

    def read_each(self, wanted: Sequence[Wanted], take: Take) -> None:
        """Bytes of many chunk ranges, handed over in any order as they arrive."""
        self.core.reader.read_each(wanted, self.writer, take)

    def read_into(self, wanted: Wanted, space: memoryview) -> None:
        """`read` of one range into memory of its size."""
        self.core.reader.read_into(wanted, self.writer, space)

    def check_writable(self) -> None:
        """Refuse if this tree is read-only."""
        if self.read_only:
            raise ReadOnlyError(
                "this session is read-only; open one with `writable_session` (a session that has "
                "committed is finished)"
            )

    def _check_node(self, node: Node) -> None:
        if node.array is not None and max(array_document(node).num_chunks, default=0) >= MAX_CHUNKS:
            raise InvalidInputError(
                f"{node.path} would have {max(array_document(node).num_chunks)} chunks along one "
                f"dimension, and there is place for {MAX_CHUNKS - 1}: use longer chunks",
                kind=Kind.INVALID_METADATA,
            )
        codec = self.core.refs.codec
        if isinstance(codec, Selective):
            codec.check_node(node)

    def _check_references(self, refs: ChunkRefs) -> None:
        codec = self.core.refs.codec
        if isinstance(codec, Selective):
            codec.check_references(refs)

    def _check_place(self, path: str, node: Node, index: Index) -> None:
        if not in_grid(node, index):
            self._refuse_place(path, node, index)

    @staticmethod
    def _refuse_place(path: str, node: Node, index: Index) -> None:
        raise InvalidInputError(
            f"chunk {list(index)} lies outside of the grid of {path}, which has "
            f"{list(array_document(node).num_chunks)} chunks; resize the array first",
            kind=Kind.INVALID_KEY,
        )
