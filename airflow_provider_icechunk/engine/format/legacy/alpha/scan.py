"""Reading the references of an `alpha` manifest as columns, without an object for each.

The words that begin a reference (`Ref`, `Inline`, `Virtual`) are searched for in the whole payload
at once. From each of them the references of all rows are read together, and the coordinates of
the next row must begin where one ends. If there is no gap from the first byte to the last, the
payload was read. If anything is unusual (a location that looks like a reference, mixed ranks,
damage), the answer is `None`, and the general reader decides what it is.

A million virtual references take 0.7 s and 73 MB of columns this way. The general reader needs 20
s, and so much memory for its values that the file, 4 MB compressed, is refused as hostile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.ids import NODE_ID_SIZE, OBJECT_ID_SIZE, NodeId

from .pack import ETAG, MODIFIED

_SMALL = 1 << 14
"""Payloads up to this size are left to the general reader."""
_ROWS_PER_ARRAY = 64
"""With fewer references per array than this, on average, the general reader is used."""

_OPENERS = {
    RefKind.NATIVE: b"\x81\xa3Ref\x93\x92\xc4\x0c",
    RefKind.INLINE: b"\x81\xa6Inline",
    RefKind.VIRTUAL: b"\x81\xa7Virtual\x94",
}

_NIL = 0xC0
_LONGEST = 16
"""The longest constant or number, in bytes."""
_INVALID = 255
_BLOCK = 1 << 20
_ROW_MEMORY = 73
"""Bytes that a reference of two dimensions takes in columns."""
Positions = NDArray[np.int64]


def _sizes(tags: dict[int, int], small: range) -> NDArray[np.uint8]:
    table = np.full(256, _INVALID, np.uint8)
    table[small.start : small.stop] = 0
    for tag, size in tags.items():
        table[tag] = size
    return table


_NUMBER = _sizes({0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}, range(0x80))
_TEXT = _sizes({0xD9: 1, 0xDA: 2, 0xDB: 4}, range(0xA0, 0xC0))
_BINARY = _sizes({0xC4: 1, 0xC5: 2, 0xC6: 4}, range(0))


class _IrregularError(Exception):
    """The payload does not have the one form that this reader understands."""


@dataclass(frozen=True, slots=True)
class _Payload:
    """The bytes, padded so that reading past the last row finds zeros."""

    octets: NDArray[np.uint8]
    size: int

    def expect(self, at: Positions, constant: bytes) -> Positions:
        """The positions after a constant that every row must have."""
        for step, byte in enumerate(constant):
            _require(bool((self.octets[at + step] == byte).all()))
        return at + len(constant)

    def numbers(
        self, at: Positions, table: NDArray[np.uint8], most: int = 0xFF
    ) -> tuple[NDArray[np.uint64], Positions]:
        """Tagged numbers, and where they end; `most` masks the bits of a small one."""
        tags = self.octets[at]
        sizes = table[tags]
        values = (tags & np.uint8(most)).astype(np.uint64)
        for size in np.unique(sizes).tolist():
            _require(size != _INVALID)
            if size:
                rows = np.flatnonzero(sizes == size)
                values[rows] = self._big_endian(at[rows] + 1, size)
        return values, self._inside(at + 1 + sizes)

    def _big_endian(self, at: Positions, size: int) -> NDArray[np.uint64]:
        values = np.zeros(len(at), np.uint64)
        for step in range(size):
            values = values << np.uint64(8) | self.octets[at + step]
        return values

    def spans(self, at: Positions, table: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """Start and stop of text or binary."""
        sizes, start = self.numbers(at, table, most=0x1F)
        stop = self._inside(start + sizes.astype(np.int64))
        return np.stack([start, stop], axis=1).astype(np.uint64)

    def _inside(self, at: Positions) -> Positions:
        _require(bool((at <= self.size).all()))
        return at


def scan_manifest(
    payload: bytes, memory: Purse | None = None
) -> tuple[bytes, dict[NodeId, tuple[ChunkRefs, ...]]] | None:
    """The id inside a manifest and its references by node; `None` if it is not regular."""
    if len(payload) < _SMALL or payload[:1] != b"\x92":
        return None
    try:
        return _scan(payload, memory or Purse(len(payload), where="a manifest"))
    except _IrregularError:
        return None


def _scan(payload: bytes, memory: Purse) -> tuple[bytes, dict[NodeId, tuple[ChunkRefs, ...]]]:
    _require(len(payload) <= memory.left)
    padded = _Payload(np.frombuffer(payload + bytes(_LONGEST), np.uint8), len(payload))
    kinds, openers = _find_openers(padded)
    memory.charge(_ROW_MEMORY * len(openers))
    identity, at = _read_id(payload, 1, OBJECT_ID_SIZE)
    nodes, at = _read_map_header(payload, at)
    _require(nodes * _ROWS_PER_ARRAY <= len(openers))
    arrays: dict[NodeId, tuple[ChunkRefs, ...]] = {}
    done = 0
    for _ in range(nodes):
        node, at = _read_id(payload, at, NODE_ID_SIZE)
        count, at = _read_map_header(payload, at)
        _require(0 < count <= len(openers) - done and node not in arrays)
        rows = slice(done, done + count)
        refs, at = _read_rows(payload, padded, at, kinds[rows], openers[rows])
        arrays[NodeId(node)] = (ChunkRefs.of(refs),)
        done += count
    _require(at == len(payload))
    return identity, arrays


def _find_openers(payload: _Payload) -> tuple[NDArray[np.uint8], Positions]:
    """Where references open, in order, and of which kind they are."""
    kinds, openers = [np.zeros(0, np.uint8)], [np.zeros(0, np.int64)]
    for start in range(0, payload.size, _BLOCK):
        found, at = _openers_in(payload, start, min(start + _BLOCK, payload.size))
        kinds.append(found)
        openers.append(at)
    return np.concatenate(kinds), np.concatenate(openers)


def _openers_in(payload: _Payload, start: int, stop: int) -> tuple[NDArray[np.uint8], Positions]:
    candidates = np.flatnonzero(payload.octets[start:stop] == 0x81) + start
    kinds = np.zeros(len(candidates), np.uint8)
    second = payload.octets[candidates + 1]
    for kind, opener in _OPENERS.items():
        rows = np.flatnonzero(second == opener[1])
        for step in range(2, len(opener)):
            rows = rows[payload.octets[candidates[rows] + step] == opener[step]]
        kinds[rows] = kind
    found = kinds != 0
    return kinds[found], candidates[found]


def _read_rows(
    payload: bytes, padded: _Payload, at: int, kind: NDArray[np.uint8], openers: Positions
) -> tuple[ChunkRefs, int]:
    """The rows of one array whose first coordinates are at `at`, and where they end."""
    rows = len(kind)
    chunk_id = np.zeros((rows, OBJECT_ID_SIZE), np.uint8)
    ranges = np.zeros((rows, 2), np.uint64)
    span = np.zeros((rows, 2), np.uint64)
    etag = np.zeros((rows, 2), np.uint64)
    modified = np.zeros(rows, np.uint32)
    ends = np.zeros(rows, np.int64)

    native = np.flatnonzero(kind == RefKind.NATIVE)
    if len(native):
        start = openers[native] + len(_OPENERS[RefKind.NATIVE])
        _require(bool((start < padded.size - OBJECT_ID_SIZE).all()))
        chunk_id[native] = padded.octets[start[:, None] + np.arange(OBJECT_ID_SIZE)]
        after = padded.expect(start + OBJECT_ID_SIZE, b"\x90")
        ranges[native, 0], after = padded.numbers(after, _NUMBER)
        ranges[native, 1], ends[native] = padded.numbers(after, _NUMBER)

    inline = np.flatnonzero(kind == RefKind.INLINE)
    if len(inline):
        span[inline] = padded.spans(openers[inline] + len(_OPENERS[RefKind.INLINE]), _BINARY)
        ranges[inline, 1] = span[inline, 1] - span[inline, 0]
        ends[inline] = span[inline, 1]

    virtual = np.flatnonzero(kind == RefKind.VIRTUAL)
    if len(virtual):
        span[virtual] = padded.spans(openers[virtual] + len(_OPENERS[RefKind.VIRTUAL]), _TEXT)
        ranges[virtual, 0], after = padded.numbers(span[virtual, 1].astype(np.int64), _NUMBER)
        ranges[virtual, 1], after = padded.numbers(after, _NUMBER)
        etag[virtual], modified[virtual], ends[virtual] = _read_checksums(padded, after)

    refs = ChunkRefs(
        index=_read_coordinates(padded, np.append(at, ends[:-1]), openers),
        kind=kind,
        chunk_id=chunk_id,
        offset=ranges[:, 0],
        length=ranges[:, 1],
        span=span,
        etag=etag,
        modified=modified,
        heap=b"" if len(native) == rows else payload,
    )
    return refs, int(ends[-1])


def _read_coordinates(padded: _Payload, at: Positions, stop: Positions) -> NDArray[np.uint32]:
    """Arrays of one rank that begin at `at` and must end at `stop`."""
    header = int(padded.octets[at[0]])
    _require(0x90 <= header <= 0x9F)
    index = np.zeros((len(at), header & 0x0F), np.uint32)
    at = padded.expect(at, bytes([header]))
    for axis in range(index.shape[1]):
        values, at = padded.numbers(at, _NUMBER)
        _require(int(values.max()) < 1 << 32)
        index[:, axis] = values
    _require(bool((at == stop).all()))
    return index


def _read_checksums(
    padded: _Payload, at: Positions
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], Positions]:
    etag = np.zeros((len(at), 2), np.uint64)
    modified = np.zeros(len(at), np.uint32)
    ends = at + 1
    second = np.where(padded.octets[at] == _NIL, np.uint8(0), padded.octets[at + 1])
    _require(bool(np.isin(second, [0, MODIFIED[1], ETAG[1]]).all()))
    _require(bool((padded.octets[at[second == 0]] == _NIL).all()))
    dated = np.flatnonzero(second == MODIFIED[1])
    if len(dated):
        values, ends[dated] = padded.numbers(padded.expect(at[dated], MODIFIED), _NUMBER)
        _require(int(values.max()) < 1 << 32)
        modified[dated] = values
    tagged = np.flatnonzero(second == ETAG[1])
    if len(tagged):
        etag[tagged] = padded.spans(padded.expect(at[tagged], ETAG), _TEXT)
        ends[tagged] = etag[tagged, 1]
    return etag, modified, ends


def _read_id(payload: bytes, at: int, size: int) -> tuple[bytes, int]:
    opening = bytes([0x92, 0xC4, size])
    stop = at + len(opening) + size
    _require(payload.startswith(opening, at) and payload[stop : stop + 1] == b"\x90")
    return payload[stop - size : stop], stop + 1


def _read_map_header(payload: bytes, at: int) -> tuple[int, int]:
    tag = payload[at] if at < len(payload) else 0
    if 0x80 <= tag <= 0x8F:
        return tag & 0x0F, at + 1
    size = {0xDE: 2, 0xDF: 4}.get(tag, 0)
    number = payload[at + 1 : at + 1 + size]
    _require(bool(size) and len(number) == size)
    return int.from_bytes(number, "big"), at + 1 + size


def _require(holds: bool) -> None:
    if not holds:
        raise _IrregularError
