"""Read manifests of generation `1`: all references in a few gathers, or one by a search.

The payload becomes the heap of the references: inline bytes, locations and entity tags are spans of
it. Everything that would make a lookup miss silently (order, rank, duplicate rows) is refused.

Reading one chunk of a million costs unpacking the file, not a million rows of columns. A search
verifies what it visits: tables, vectors, ranks, and that each row is in order between those seen on
both sides. The rest is left to `decode`, which every other use of a manifest goes through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.concurrency import PerProcess
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    Payload,
    RefKind,
    sort_keys,
)
from airflow_provider_icechunk.engine.format.coordinates import Index, distinct
from airflow_provider_icechunk.engine.format.ids import (
    NODE_ID_SIZE,
    OBJECT_ID_SIZE,
    ManifestId,
    NodeId,
)
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import (
    Buffer,
    Table,
    TableBatch,
    batches,
)
from airflow_provider_icechunk.engine.format.wire.nested import Links, increasing, together
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_RANK
from airflow_provider_icechunk.exceptions import UnsupportedError

IDENTIFIER = b"Ichk"

INDEX, INLINE, OFFSET, LENGTH, CHUNK_ID, LOCATION, ETAG, MODIFIED, COMPRESSED_LOCATION = range(9)
EXTRA = 9
"""Slots of a ChunkRef table; the last one is reserved for later releases."""

_REFERENCE_SLOTS = EXTRA + 1
_ARRAY_EXTRA, _ARRAY_SLOTS = 2, 3
_ROOT_EXTRA, _ROOT_SLOTS = 4, 5
"""Number of known slots of each table; later ones belong to newer writers."""

_TOP_NUMBER = np.uint64(1 << 63)
_ARRAY_MEMORY = 1400
"""Memory of the columns of an array as Python objects, in addition to their content."""
_COLUMNS_MEMORY = 48
_JOINED_MEMORY = 65
_EXTRA_MEMORY = 32
"""Memory of the columns of a reference besides its coordinates, with few or all columns."""

Spans = NDArray[np.uint64]
Unpack = Callable[[bytes, Spans, bytes, str, Callable[[int], None]], tuple[bytes, Spans]]
"""Returns the texts of frames at spans of a payload, given a dictionary, and their spans.

It passes the memory of the texts to the last argument.
"""


class _Locations:
    """Compressed locations: unpacked after the payload, in one heap."""

    def __init__(self, root: Table, unpack: Unpack | None) -> None:
        self._unpack = unpack
        self._dictionary = root.blob(2) if root.has(2) else None
        self.buffer = root.buffer
        self.texts = bytearray()

    def of(self, batch: TableBatch) -> Spans:
        """Spans of the locations of references."""
        if self._unpack is None:
            raise UnsupportedError(
                f"{self.buffer.where}: its virtual locations are compressed with a dictionary, "
                "which needs format generation `2`"
            )
        if self._dictionary is None:
            self.buffer.fail("a location is compressed with a missing dictionary")
        frames = _span(batch, COMPRESSED_LOCATION, text=False)
        data = self.buffer.data
        texts, spans = self._unpack(
            data, frames, self._dictionary, self.buffer.where, self.buffer.hold
        )
        spans = spans + np.uint64(self.buffer.size + len(self.texts))
        self.texts += texts
        return spans

    def heap(self) -> bytes:
        """The payload followed by the unpacked texts."""
        if not self.texts:
            return self.buffer.data
        self.buffer.hold(self.buffer.size + len(self.texts))
        return self.buffer.data + self.texts


def decode(
    payload: bytes, *, where: str, unpack: Unpack | None = None, memory: Purse | None = None
) -> Manifest:
    """The manifest in a payload; `unpack` reads compressed locations."""
    buffer = Buffer(payload, where=where, memory=memory)
    root = buffer.root(IDENTIFIER)
    locations = _Locations(root, unpack)
    unknown = "a field of the manifest" if any(root.slots[_ROOT_SLOTS:]) else None
    ids: list[NodeId] = []
    vectors: list[Links] = []
    extras: dict[NodeId, bytes] = {}
    last = b""
    for table in root.tables(1):
        buffer.hold(_ARRAY_MEMORY)
        identity = NodeId(table.fixed(0, NODE_ID_SIZE))
        if identity <= last:
            buffer.fail("its arrays are not in the order of their node ids")
        last = identity
        ids.append(identity)
        vectors.append(table.links(1))
        if table.has(_ARRAY_EXTRA):
            extras[identity] = table.blob(_ARRAY_EXTRA)
        if any(table.slots[_ARRAY_SLOTS:]):
            unknown = "a field of an array"
    found: list[tuple[list[int], list[int], ChunkRefs]] = []
    for rows, at in together(buffer, vectors, INDEX, most=MAX_RANK):
        counts = [vectors[row][1] for row in rows]
        refs, newer = _references(buffer, at, counts, locations)
        found.append((rows, counts, refs))
        if newer:
            unknown = "a field of a chunk reference"
    _check_overlap(buffer, [refs for _, _, refs in found], buffer.size + len(locations.texts))
    heap = locations.heap()
    arrays: dict[NodeId, tuple[ChunkRefs, ...]] = dict.fromkeys(ids, ())
    for rows, counts, refs in found:
        for row, part in zip(rows, _split(refs, counts, heap), strict=True):
            arrays[ids[row]] = (part,)
    extra = root.blob(_ROOT_EXTRA) if root.has(_ROOT_EXTRA) else None
    return Manifest(ManifestId(root.fixed(0, OBJECT_ID_SIZE)), arrays, unknown, extra, extras)


def _references(
    buffer: Buffer, at: NDArray[np.int64], counts: list[int], locations: _Locations
) -> tuple[ChunkRefs, bool]:
    """The references of arrays of one rank, and whether they have unknown fields."""
    parts = [(batch, _batch(batch, locations)) for batch in batches(buffer, at)]
    if len({part.ndim for _, part in parts}) != 1:
        buffer.fail("chunk coordinates of one array have different lengths")
    if len(parts) > 1:
        buffer.hold(len(at) * (_JOINED_MEMORY + 4 * parts[0][1].ndim))
    refs = parts[0][1] if len(parts) == 1 else _joined(len(at), parts)
    (keys,) = sort_keys(refs.index)
    if not increasing(keys, np.array(counts, np.int64)):
        buffer.fail("chunk references are not in order, or one occurs twice")
    _check_numbers(buffer, refs)
    return refs, any(any(batch.slots[_REFERENCE_SLOTS:]) for batch, _ in parts)


def _split(refs: ChunkRefs, counts: list[int], heap: bytes) -> Iterator[ChunkRefs]:
    """The references of each array, as views of the columns of all."""
    stop = 0
    for count in counts:
        start, stop = stop, stop + count
        yield ChunkRefs(
            refs.index[start:stop],
            refs.kind[start:stop],
            refs.chunk_id[start:stop],
            refs.offset[start:stop],
            refs.length[start:stop],
            refs.span[start:stop],
            refs.etag[start:stop],
            refs.modified[start:stop],
            heap,
            None if refs.extra is None else refs.extra[start:stop],
        )


def reference(buffer: Buffer, at: NDArray[np.int64]) -> ChunkRefs:
    """The one reference whose table is at `at`, if its location is not compressed."""
    (batch,) = batches(buffer, at)
    refs = _batch(batch, _Locations(buffer.root(IDENTIFIER), None))
    _check_numbers(buffer, refs)
    return refs


def _check_numbers(buffer: Buffer, refs: ChunkRefs) -> None:
    if bool((refs.offset >= _TOP_NUMBER).any()) or bool((refs.length >= _TOP_NUMBER).any()):
        buffer.fail("a chunk reference has an impossible offset or length")


def _batch(batch: TableBatch, locations: _Locations) -> ChunkRefs:
    """References of one layout, with what newer releases added to them."""
    refs = _of_one_kind(batch, locations)
    if not batch.has(EXTRA):
        return refs
    batch.buffer.hold(_EXTRA_MEMORY * len(batch.at))
    return replace(refs, extra=_span(batch, EXTRA, text=False))


def _of_one_kind(batch: TableBatch, locations: _Locations) -> ChunkRefs:
    """References of one layout and kind."""
    batch.buffer.hold(_COLUMNS_MEMORY * len(batch.at))
    index = batch.coordinates(INDEX, most=MAX_RANK)
    if batch.has(CHUNK_ID):
        return _native(batch, index)
    if batch.has(COMPRESSED_LOCATION):
        return _virtual(batch, index, locations.of(batch))
    if batch.has(LOCATION):
        return _virtual(batch, index, _span(batch, LOCATION, text=True))
    if batch.has(INLINE):
        return _inline(batch, index)
    return batch.buffer.fail("a chunk reference does not say where its bytes are")


def _native(batch: TableBatch, index: NDArray[np.uint32]) -> ChunkRefs:
    rest = ChunkRefs.blank(index, kind=RefKind.NATIVE)
    return ChunkRefs(
        index=index,
        kind=rest.kind,
        chunk_id=batch.fixed(CHUNK_ID, OBJECT_ID_SIZE),
        offset=batch.numbers(OFFSET, 8) if batch.has(OFFSET) else rest.offset,
        length=batch.numbers(LENGTH, 8) if batch.has(LENGTH) else rest.length,
        span=rest.span,
        etag=rest.etag,
        modified=rest.modified,
        heap=batch.buffer.data,
    )


def _virtual(batch: TableBatch, index: NDArray[np.uint32], location: Spans) -> ChunkRefs:
    rest = ChunkRefs.blank(index, kind=RefKind.VIRTUAL)
    return ChunkRefs(
        index=index,
        kind=rest.kind,
        chunk_id=rest.chunk_id,
        offset=batch.numbers(OFFSET, 8) if batch.has(OFFSET) else rest.offset,
        length=batch.numbers(LENGTH, 8) if batch.has(LENGTH) else rest.length,
        span=location,
        etag=_span(batch, ETAG, text=True) if batch.has(ETAG) else rest.etag,
        modified=batch.numbers(MODIFIED, 4) if batch.has(MODIFIED) else rest.modified,
        heap=batch.buffer.data,
    )


def _inline(batch: TableBatch, index: NDArray[np.uint32]) -> ChunkRefs:
    rest = ChunkRefs.blank(index, kind=RefKind.INLINE)
    span = _span(batch, INLINE, text=False)
    return ChunkRefs(
        index=index,
        kind=rest.kind,
        chunk_id=rest.chunk_id,
        offset=rest.offset,
        length=span[:, 1] - span[:, 0],
        span=span,
        etag=rest.etag,
        modified=rest.modified,
        heap=batch.buffer.data,
    )


def _span(batch: TableBatch, slot: int, *, text: bool) -> NDArray[np.uint64]:
    return batch.spans(slot, text=text).view(np.uint64)


def _joined(rows: int, parts: list[tuple[TableBatch, ChunkRefs]]) -> ChunkRefs:
    """Parts in the order of their tables in the vector."""
    ndim = parts[0][1].ndim
    extended = any(part.extra is not None for _, part in parts)
    joined = ChunkRefs(
        index=np.empty((rows, ndim), np.uint32),
        kind=np.empty(rows, np.uint8),
        chunk_id=np.empty((rows, OBJECT_ID_SIZE), np.uint8),
        offset=np.empty(rows, np.uint64),
        length=np.empty(rows, np.uint64),
        span=np.empty((rows, 2), np.uint64),
        etag=np.empty((rows, 2), np.uint64),
        modified=np.empty(rows, np.uint32),
        heap=parts[0][1].heap,
        extra=np.zeros((rows, 2), np.uint64) if extended else None,
    )
    for batch, part in parts:
        if joined.extra is not None and part.extra is not None:
            joined.extra[batch.rows] = part.extra
        joined.index[batch.rows] = part.index
        joined.kind[batch.rows] = part.kind
        joined.chunk_id[batch.rows] = part.chunk_id
        joined.offset[batch.rows] = part.offset
        joined.length[batch.rows] = part.length
        joined.span[batch.rows] = part.span
        joined.etag[batch.rows] = part.etag
        joined.modified[batch.rows] = part.modified
    return joined


def _check_overlap(buffer: Buffer, tables: list[ChunkRefs], size: int) -> None:
    """Raise for overlapping byte spans: copied, they would be far larger than the file.

    Equal spans are legitimate sharing and counted once.
    """
    columns = [column for refs in tables for column in (refs.span, refs.etag, refs.extra)]
    spans = [column for column in columns if column is not None and column.strides[0]]
    total = sum(int((column[:, 1] - column[:, 0]).sum()) for column in spans)
    if total <= size:
        return
    starts = np.concatenate([column[:, 0] for column in spans])
    sizes = np.concatenate([column[:, 1] - column[:, 0] for column in spans])
    once = distinct(starts << np.uint64(31) | sizes)
    if int((once & np.uint64((1 << 31) - 1)).sum()) > size:
        buffer.fail("its byte vectors overlap: they unpack to more than the file")


_ROWS_PER_SEARCH = 400
"""Number of rows decoded in the time of one search."""
_DEPTH = 2
"""Depth of a reference: below an array, which is below the root."""


class ManifestSearch:
    """A manifest that is unpacked but not decoded."""

    def __init__(
        self,
        payload: bytes,
        *,
        where: str,
        unpack: Unpack | None = None,
        memory: Purse | None = None,
    ) -> None:
        self._payload = payload
        self._memory = memory
        self._where = where
        self._unpack = unpack
        self._decoding = PerProcess(threading.Lock)
        self._decoded: Manifest | None = None
        buffer = Buffer(payload, where=where, memory=memory)
        root = buffer.root(IDENTIFIER)
        self.id = ManifestId(root.fixed(0, OBJECT_ID_SIZE))
        self._vectors: dict[NodeId, tuple[int, int]] = {}
        for table in root.tables(1):
            identity = NodeId(table.fixed(0, NODE_ID_SIZE))
            if identity in self._vectors:
                buffer.fail("an array is in it twice")
            self._vectors[identity] = table.links(1)
        self._compressed = root.has(2)
        self._asked = 0

    def __len__(self) -> int:
        return sum(count for _, count in self._vectors.values())

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return len(self._payload)

    def is_worth_it(self) -> bool:
        """Whether another search is cheaper than decoding everything now.

        Compressed locations share a dictionary, so they are always decoded together.
        """
        self._asked += 1
        return not self._compressed and self._asked * _ROWS_PER_SEARCH <= len(self)

    def find(self, node_id: NodeId, index: Index) -> Payload | None:
        """The reference at `index` of an array; `None` if there is none."""
        # A buffer counts its memory, so no two searches may share one.
        buffer = Buffer(self._payload, where=self._where)
        start, count = self._vectors.get(node_id, (0, 0))
        at = _search(buffer, start, count, index)
        if at is None:
            return None
        return reference(buffer, np.array([at], np.int64))[0]

    def decode(self) -> Manifest:
        """Decode everything, with orders, ranks and bounds checked."""
        with self._decoding.get():
            if self._decoded is None:
                with self._memory or nullcontext() as purse:
                    self._decoded = decode(
                        self._payload, where=self._where, unpack=self._unpack, memory=purse
                    )
            return self._decoded


def _search(buffer: Buffer, start: int, count: int, wanted: Index) -> int | None:
    """The table with the coordinates `wanted` among `count` links from `start` on."""
    low, high = 0, count
    below: Index | None = None
    above: Index | None = None
    while low < high:
        middle = (low + high) // 2
        link = start + 4 * middle
        at = link + buffer.u32(link)
        found = _coordinates(buffer, at)
        if len(found) != len(wanted):
            if below is None and above is None:
                return None
            buffer.fail("chunk coordinates of one array have different lengths")
        if (below is not None and found <= below) or (above is not None and found >= above):
            buffer.fail("chunk references are not in order, or one occurs twice")
        if found == wanted:
            return at
        if found < wanted:
            low, below = middle + 1, found
        else:
            high, above = middle, found
    return None


def _coordinates(buffer: Buffer, at: int) -> Index:
    table = buffer.table(at, _DEPTH)
    if table.count(INDEX) > MAX_RANK:
        buffer.fail(f"chunk coordinates have more than {MAX_RANK} dimensions")
    return table.numbers(INDEX, "I")
