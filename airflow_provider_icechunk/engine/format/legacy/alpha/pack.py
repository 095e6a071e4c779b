"""Packing the references of an `alpha` manifest, all rows of a block at once.

Every field of a row gets as many byte columns as its widest value needs, and a mask says which of
them a row really uses. Selecting by the mask, row by row, leaves exactly the packed bytes. Rows are
packed in blocks so that the padded matrix stays small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.wire.messagepack import array_header
from airflow_provider_icechunk.exceptions import InvalidInputError

_BLOCK = 1 << 15
_NATIVE = b"\x81\xa3Ref\x93\x92\xc4\x0c"
_NATIVE_END_OF_ID = b"\x90"
_INLINE = b"\x81\xa6Inline"
_VIRTUAL = b"\x81\xa7Virtual\x94"
MODIFIED = b"\x81\xacLastModified"
ETAG = b"\x81\xa4ETag"
_NIL = b"\xc0"
Rows = NDArray[np.bool_]
_Packed = tuple[bytes, NDArray[np.int64]]
"""Packed rows one after the other, and where each of them ends."""


@dataclass(slots=True)
class _Matrix:
    """Byte columns of a block of rows, and which of them each row uses."""

    rows: int
    columns: list[NDArray[np.uint8]] = field(default_factory=list)
    masks: list[Rows] = field(default_factory=list)

    def constant(self, data: bytes, used: Rows) -> None:
        """The same bytes in every used row."""
        shape = (self.rows, len(data))
        self._add(np.broadcast_to(np.frombuffer(data, np.uint8), shape), used)

    def raw(self, data: NDArray[np.uint8], used: Rows) -> None:
        """The bytes of each used row of `data`."""
        self._add(data, used)

    def numbers(self, values: NDArray[np.unsignedinteger], used: Rows) -> None:
        """Unsigned integers in their shortest form."""
        sizes = np.array([0x80, 1 << 8, 1 << 16, 1 << 32], np.uint64)
        self._tagged(values, used, sizes, b"\x00\xcc\xcd\xce\xcf", fixed=0)

    def text_sizes(self, values: NDArray[np.uint64], used: Rows) -> None:
        """Headers of text of these lengths."""
        sizes = np.array([32, 1 << 8, 1 << 16, 1 << 32], np.uint64)
        self._tagged(values, used, sizes, b"\x00\xd9\xda\xdb\x00", fixed=0xA0)

    def binary_sizes(self, values: NDArray[np.uint64], used: Rows) -> None:
        """Headers of binary of these lengths."""
        sizes = np.array([0, 1 << 8, 1 << 16, 1 << 32], np.uint64)
        self._tagged(values, used, sizes, b"\x00\xc4\xc5\xc6\x00", fixed=0)

    def _tagged(
        self,
        values: NDArray[np.unsignedinteger],
        used: Rows,
        sizes: NDArray[np.uint64],
        tags: bytes,
        *,
        fixed: int,
    ) -> None:
        """A tag byte (or the value itself where small) and up to eight big-endian bytes.

        `sizes` are the first values for which 0, 1, 2 and 4 bytes are no longer enough.
        """
        wide = values.astype(np.uint64)
        wide[~used] = 0
        step = np.searchsorted(sizes, wide, side="right")
        if tags[4] == 0 and (step[used] == 4).any():
            raise InvalidInputError(
                "a chunk or its location has more than 4 GiB; it cannot be stored"
            )
        width = np.array([0, 1, 2, 4, 8], np.uint8)[step]
        tag = np.frombuffer(tags, np.uint8)[step]
        small = (wide & np.uint64(0xFF)).astype(np.uint8) | np.uint8(fixed)
        most = int(width[used].max(initial=0))
        self._add(np.where(step == 0, small, tag)[:, None], used)
        if most:
            payload = wide.astype(">u8").view(np.uint8).reshape(self.rows, 8)[:, 8 - most :]
            position = np.arange(most, 0, -1, dtype=np.uint8)
            self.columns.append(payload)
            self.masks.append(used[:, None] & (position <= width[:, None]))

    def _add(self, data: NDArray[np.uint8], used: Rows) -> None:
        self.columns.append(data)
        self.masks.append(np.broadcast_to(used[:, None], data.shape))

    def packed(self) -> _Packed:
        """The packed rows one after the other, and where each of them ends."""
        mask = np.concatenate(self.masks, axis=1)
        data = np.concatenate(self.columns, axis=1)[mask].tobytes()
        return data, np.cumsum(mask.sum(axis=1))


def pack_rows(refs: ChunkRefs) -> Iterator[bytes]:
    """Pieces of the entries `coordinates: payload` of a map, in the order of rows."""
    if (refs.kind == RefKind.ERASED).any():
        raise InvalidInputError("a manifest cannot hold erased references")
    heap = bytes(refs.heap)
    for start in range(0, len(refs), _BLOCK):
        yield from _pack_block(refs.take(slice(start, start + _BLOCK)), heap)


def pack_coordinates(index: NDArray[np.uint32]) -> bytes:
    """All coordinates one after the other, each as an array."""
    pieces = []
    for start in range(0, len(index), _BLOCK):
        block = index[start : start + _BLOCK]
        matrix = _Matrix(len(block))
        _add_coordinates(matrix, block)
        pieces.append(matrix.packed()[0])
    return b"".join(pieces)


def _add_coordinates(matrix: _Matrix, index: NDArray[np.uint32]) -> None:
    every = np.ones(len(index), np.bool_)
    matrix.constant(array_header(index.shape[1]), every)
    for axis in range(index.shape[1]):
        matrix.numbers(index[:, axis], every)


def _pack_block(refs: ChunkRefs, heap: bytes) -> list[bytes]:
    """Native rows are complete after the first matrix; others have heap bytes in between."""
    native, inline, virtual = (
        refs.kind == kind for kind in (RefKind.NATIVE, RefKind.INLINE, RefKind.VIRTUAL)
    )
    sizes = refs.span[:, 1] - refs.span[:, 0]
    head = _Matrix(len(refs))
    _add_coordinates(head, refs.index)
    if native.any():
        head.constant(_NATIVE, native)
        head.raw(refs.chunk_id, native)
        head.constant(_NATIVE_END_OF_ID, native)
        head.numbers(refs.offset, native)
        head.numbers(refs.length, native)
    if inline.any():
        head.constant(_INLINE, inline)
        head.binary_sizes(sizes, inline)
    if virtual.any():
        head.constant(_VIRTUAL, virtual)
        head.text_sizes(sizes, virtual)
    start = head.packed()
    if native.all():
        return [start[0]]
    end = _virtual_ends(refs, virtual).packed() if virtual.any() else None
    return _interleave(refs, heap, start, end)


def _virtual_ends(refs: ChunkRefs, virtual: Rows) -> _Matrix:
    tagged = virtual & (refs.etag[:, 1] > refs.etag[:, 0])
    dated = virtual & ~tagged & (refs.modified > 0)
    end = _Matrix(len(refs))
    end.numbers(refs.offset, virtual)
    end.numbers(refs.length, virtual)
    end.constant(_NIL, virtual & ~tagged & ~dated)
    end.constant(MODIFIED, dated)
    end.numbers(refs.modified, dated)
    end.constant(ETAG, tagged)
    end.text_sizes(refs.etag[:, 1] - refs.etag[:, 0], tagged)
    return end


def _interleave(refs: ChunkRefs, heap: bytes, start: _Packed, end: _Packed | None) -> list[bytes]:
    """Per row: its start, its inline bytes or location, its end, its entity tag."""
    held = refs.kind != RefKind.NATIVE
    columns = [_cut(*start), _from_heap(heap, refs.span, held)]
    if end is not None:
        columns += [_cut(*end), _from_heap(heap, refs.etag, refs.kind == RefKind.VIRTUAL)]
    pieces = [b""] * (len(columns) * len(refs))
    for at, column in enumerate(columns):
        pieces[at :: len(columns)] = column
    return pieces


def _cut(data: bytes, ends: NDArray[np.int64]) -> list[bytes]:
    stops = ends.tolist()
    return [data[low:high] for low, high in zip([0, *stops], stops, strict=False)]


def _from_heap(heap: bytes, spans: NDArray[np.uint64], used: Rows) -> list[bytes]:
    lows = np.where(used, spans[:, 0], np.uint64(0)).tolist()
    highs = np.where(used, spans[:, 1], np.uint64(0)).tolist()
    return [heap[low:high] for low, high in zip(lows, highs, strict=True)]
