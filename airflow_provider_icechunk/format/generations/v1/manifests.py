"""Reading manifest files of generation `1`: a million references in a handful of gathers.

The payload becomes the heap of the references: inline bytes, locations and entity tags are spans
of it. Everything that would make a lookup miss silently (order, rank, doubled rows) is refused
here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import UnsupportedError
from airflow_provider_icechunk.format.ids import NODE_ID_SIZE, OBJECT_ID_SIZE, ManifestId, NodeId
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind, sort_keys
from airflow_provider_icechunk.format.snapshot import Manifest
from airflow_provider_icechunk.format.wire.columns import Batch, batches
from airflow_provider_icechunk.format.wire.distinct import distinct
from airflow_provider_icechunk.format.wire.flatbuffers import Buffer, Table
from airflow_provider_icechunk.format.zarr_metadata import MAX_RANK

IDENTIFIER = b"Ichk"

INDEX, INLINE, OFFSET, LENGTH, CHUNK_ID, LOCATION, ETAG, MODIFIED, COMPRESSED_LOCATION = range(9)
"""Slots of a ChunkRef table."""

_REFERENCE_SLOTS = COMPRESSED_LOCATION + 1
_ARRAY_SLOTS = 2
_ROOT_SLOTS = 4
"""How many slots of each table this version knows; later ones belong to newer writers."""

_TOP_NUMBER = np.uint64(1 << 63)
_COLUMNS_MEMORY = 48
_JOINED_MEMORY = 65
"""What the columns of a reference take, beside its coordinates, if it has a few or all of them."""

Spans = NDArray[np.uint64]
Unpack = Callable[[bytes, Spans, bytes, str, Callable[[int], None]], tuple[bytes, Spans]]
"""Texts of the frames at spans of a payload, given a dictionary; and the span of each text.

The last argument is told how much memory the texts will take.
"""


class _Locations:
    """Locations that are compressed in the file: unpacked behind the payload, in one heap."""

    def __init__(self, root: Table, unpack: Unpack | None) -> None:
        self._unpack = unpack
        self._dictionary = root.blob(2) if root.has(2) else None
        self.buffer = root.buffer
        self.texts = bytearray()

    def of(self, batch: Batch) -> Spans:
        """Spans of the locations of references."""
        if self._unpack is None:
            raise UnsupportedError(
                f"{self.buffer.where}: its virtual locations are compressed with a dictionary, "
                "which belongs to format generation `2`"
            )
        if self._dictionary is None:
            self.buffer.fail("a location is compressed with a dictionary that is not there")
        frames = _span(batch, COMPRESSED_LOCATION, text=False)
        data = self.buffer.data
        texts, spans = self._unpack(
            data, frames, self._dictionary, self.buffer.where, self.buffer.hold
        )
        spans = spans + np.uint64(self.buffer.size + len(self.texts))
        self.texts += texts
        return spans

    def settle(self, manifest: Manifest) -> Manifest:
        """The manifest over the payload and the unpacked texts."""
        if not self.texts:
            return manifest
        self.buffer.hold(self.buffer.size + len(self.texts))
        heap = self.buffer.data + self.texts
        arrays = {
            identity: tuple(replace(refs, heap=heap) for refs in parts)
            for identity, parts in manifest.arrays.items()
        }
        return replace(manifest, arrays=arrays)


def decode(
    payload: bytes, *, where: str, unpack: Unpack | None = None, memory: Purse | None = None
) -> Manifest:
    """The manifest in a payload; `unpack` reads locations that are compressed."""
    buffer = Buffer(payload, where=where, memory=memory)
    root = buffer.root(IDENTIFIER)
    locations = _Locations(root, unpack)
    arrays: dict[NodeId, tuple[ChunkRefs, ...]] = {}
    unknown = "a field of the manifest" if any(root.slots[_ROOT_SLOTS:]) else None
    last = b""
    for table in root.tables(1):
        identity = NodeId(table.fixed(0, NODE_ID_SIZE))
        if identity <= last:
            buffer.fail("its arrays are not in the order of their node ids")
        last = identity
        refs, newer = _references(table, locations)
        arrays[identity] = () if refs is None else (refs,)
        if newer or any(table.slots[_ARRAY_SLOTS:]):
            unknown = "a field of a chunk reference" if newer else "a field of an array"
    manifest = Manifest(ManifestId(root.fixed(0, OBJECT_ID_SIZE)), arrays, unknown)
    _check_overlap(buffer, manifest, buffer.size + len(locations.texts))
    return locations.settle(manifest)


def _references(table: Table, locations: _Locations) -> tuple[ChunkRefs | None, bool]:
    """The references of one array, and whether they say more than this version knows.

    Without references there is `None`: the rank is unknown then.
    """
    buffer = table.buffer
    at = table.offsets(1)
    parts = [(batch, _batch(batch, locations)) for batch in batches(buffer, at)]
    if not parts:
        return None, False
    if len({part.ndim for _, part in parts}) != 1:
        buffer.fail("chunk coordinates of one array have different lengths")
    if len(parts) > 1:
        buffer.hold(len(at) * (_JOINED_MEMORY + 4 * parts[0][1].ndim))
    refs = parts[0][1] if len(parts) == 1 else _joined(len(at), parts)
    (keys,) = sort_keys(refs.index)
    if not bool(np.all(np.less(keys[:-1], keys[1:]))):
        buffer.fail("chunk references are not in order, or one is doubled")
    _check_numbers(buffer, refs)
    return refs, any(any(batch.slots[_REFERENCE_SLOTS:]) for batch, _ in parts)


def reference(buffer: Buffer, at: NDArray[np.int64]) -> ChunkRefs:
    """The one reference whose table is at `at`, if its location is not compressed."""
    (batch,) = batches(buffer, at)
    refs = _batch(batch, _Locations(buffer.root(IDENTIFIER), None))
    _check_numbers(buffer, refs)
    return refs


def _check_numbers(buffer: Buffer, refs: ChunkRefs) -> None:
    if bool((refs.offset >= _TOP_NUMBER).any()) or bool((refs.length >= _TOP_NUMBER).any()):
        buffer.fail("a chunk reference has an impossible offset or length")


def _batch(batch: Batch, locations: _Locations) -> ChunkRefs:
    """References of one layout, which all are of one kind."""
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
    return batch.buffer.fail("a chunk reference says nowhere where its bytes are")


def _native(batch: Batch, index: NDArray[np.uint32]) -> ChunkRefs:
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


def _virtual(batch: Batch, index: NDArray[np.uint32], location: Spans) -> ChunkRefs:
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


def _inline(batch: Batch, index: NDArray[np.uint32]) -> ChunkRefs:
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


def _span(batch: Batch, slot: int, *, text: bool) -> NDArray[np.uint64]:
    return batch.spans(slot, text=text).view(np.uint64)


def _joined(rows: int, parts: list[tuple[Batch, ChunkRefs]]) -> ChunkRefs:
    """Parts put back where their tables are in the vector."""
    ndim = parts[0][1].ndim
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
    )
    for batch, part in parts:
        joined.index[batch.rows] = part.index
        joined.kind[batch.rows] = part.kind
        joined.chunk_id[batch.rows] = part.chunk_id
        joined.offset[batch.rows] = part.offset
        joined.length[batch.rows] = part.length
        joined.span[batch.rows] = part.span
        joined.etag[batch.rows] = part.etag
        joined.modified[batch.rows] = part.modified
    return joined


def _check_overlap(buffer: Buffer, manifest: Manifest, size: int) -> None:
    """Refuse byte spans that overlap: copied out, they would be far more than the file.

    Equal spans are sharing, which is honest; they are counted once.
    """
    spans = [
        column
        for parts in manifest.arrays.values()
        for refs in parts
        for column in (refs.span, refs.etag)
        if column.strides[0]
    ]
    total = sum(int((column[:, 1] - column[:, 0]).sum()) for column in spans)
    if total <= size:
        return
    starts = np.concatenate([column[:, 0] for column in spans])
    sizes = np.concatenate([column[:, 1] - column[:, 0] for column in spans])
    once = distinct(starts << np.uint64(31) | sizes)
    if int((once & np.uint64((1 << 31) - 1)).sum()) > size:
        buffer.fail("its byte vectors overlap: they unpack to more than the file")
