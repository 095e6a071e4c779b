"""Write FlatBuffers front to back: tables first, then what they refer to.

Offsets in FlatBuffers point forwards, so a file can be written front to back if every reference is
filled in when its target is appended. Vtables come before all tables, once per layout. Long vectors
of tables are appended as NumPy records whose offsets the caller computes.

`Vectors` does so for the vectors of many tables at once: a commit of many small arrays would
otherwise pay for a dozen array operations per array. In a `Heap` every span becomes a length, its
bytes and a NUL, padded to four bytes: both a string and a byte vector. Spans are copied
in groups of equal length, one gather and one scatter for each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.coordinates import distinct
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from .flatbuffers_read import MAX_PAYLOAD
from .nested import increasing

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Shape:
    """Layout of a table: its size, and the position of each slot (0: absent)."""

    size: int
    slots: tuple[int, ...]

    def vtable(self) -> bytes:
        """The vtable with this layout."""
        count = len(self.slots)
        return struct.pack(f"<{count + 2}H", 4 + 2 * count, self.size, *self.slots)


class PayloadWriter:
    """A growing payload; positions are offsets from its start."""

    __slots__ = ("_vtables", "data")

    def __init__(self, identifier: bytes, shapes: tuple[Shape, ...]) -> None:
        self.data = bytearray(4) + identifier
        self._vtables: dict[Shape, int] = {}
        for shape in shapes:
            self._vtables[shape] = len(self.data)
            self.data += shape.vtable()

    @classmethod
    def onto(cls, data: bytearray, shapes: tuple[Shape, ...]) -> PayloadWriter:
        """A payload that continues at the end of `data`, which begins with the same shapes."""
        writer = cls(bytes(data[4:8]), shapes)
        writer.data = data
        return writer

    def align(self, size: int, ahead: int = 0) -> int:
        """Pad until the position plus `ahead` is a multiple of `size`; returns the position."""
        self.data += bytes(-(len(self.data) + ahead) % size)
        return len(self.data)

    def vtable(self, shape: Shape) -> int:
        """The position of the vtable of `shape`."""
        return self._vtables[shape]

    def table(self, shape: Shape, align: int = 4) -> int:
        """Append an empty table; returns its position."""
        at = self.align(align)
        self.data += _I32.pack(at - self._vtables[shape])
        self.data += bytes(shape.size - 4)
        return at

    def root(self, shape: Shape, align: int = 4) -> int:
        """Append the root table."""
        at = self.table(shape, align)
        _U32.pack_into(self.data, 0, at)
        return at

    def put(self, at: int, value: bytes) -> None:
        """Fill in a field."""
        self.data[at : at + len(value)] = value

    def number(self, at: int, code: str, value: int) -> None:
        """Fill in a number of a `struct` code."""
        struct.pack_into(f"<{code}", self.data, at, value)

    def link(self, at: int, target: int | None = None) -> None:
        """Point the reference at `at` to `target`, by default to the next appended item."""
        _U32.pack_into(self.data, at, (len(self.data) if target is None else target) - at)

    def text(self, at: int, value: str) -> None:
        """Append a string and point the reference at `at` to it."""
        self.align(4)
        self.link(at)
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(f"{value[:80]!r} is not valid Unicode text") from None
        self.data += _U32.pack(len(encoded)) + encoded + b"\0"

    def blob(self, at: int, value: bytes, *, count: int | None = None, align: int = 1) -> None:
        """Append a vector of `count` items with the bytes `value`, and point `at` to it."""
        self.align(max(align, 4), ahead=4)
        self.link(at)
        self.data += _U32.pack(len(value) if count is None else count)
        self.data += value

    def references(self, at: int, count: int) -> range:
        """Append a vector of `count` empty references; returns their positions."""
        self.blob(at, bytes(4 * count), count=count, align=4)
        end = len(self.data)
        return range(end - 4 * count, end, 4)

    def finish(self) -> bytearray:
        """The payload; raises if readers would refuse it."""
        check_size(len(self.data))
        return self.data


def check_size(size: int) -> None:
    """Raise for a payload longer than readers accept."""
    if size > MAX_PAYLOAD:
        raise InvalidInputError(
            f"a metadata file would have {size} bytes before compression, more than {MAX_PAYLOAD}; "
            "split the manifest into smaller ones",
            kind=Kind.LIMIT_EXCEEDED,
        )


@dataclass(frozen=True, slots=True)
class Vectors:
    """Consecutive vectors: each is a count and an offset to every record."""

    start: int
    counts: NDArray[np.int64]
    heads: NDArray[np.int64]
    """Which of the words are counts."""

    @classmethod
    def link(cls, writer: PayloadWriter, links: Sequence[int], counts: Sequence[int]) -> Vectors:
        """Point each of `links` to its vector; the vectors come next."""
        start = writer.align(4)
        sizes = np.array(counts, np.int64)
        heads = np.cumsum(sizes + 1) - (sizes + 1)
        for at, head in zip(links, heads.tolist(), strict=True):
            writer.link(at, start + 4 * head)
        return cls(start, sizes, heads)

    @property
    def words(self) -> int:
        """Counts and offsets, each of four bytes."""
        return int(self.counts.sum()) + len(self.counts)

    @property
    def end(self) -> int:
        """Where the vectors end."""
        return self.start + 4 * self.words

    def increasing(self, keys: NDArray[np.generic]) -> bool:
        """Whether keys, one per record, increase strictly inside each vector."""
        return increasing(keys, self.counts)

    def render(self, out: NDArray[np.uint32], at: NDArray[np.int64]) -> None:
        """Fill `out` with the vectors of records at the positions `at`."""
        if len(self.counts) == 1:
            out[0] = self.counts[0]
            out[1:] = at - np.arange(self.start + 4, self.end, 4)
            return
        is_offset = np.ones(self.words, np.bool_)
        is_offset[self.heads] = False
        out[self.heads] = self.counts
        out[is_offset] = at - self.start - 4 * np.flatnonzero(is_offset)


_SIZE_BITS = np.uint64(31)
_SIZE_MASK = np.uint64((1 << 31) - 1)
_LONG = 4096
"""Longer spans are copied one by one: the copy costs more than the step."""


class Heap:
    """The positions of the spans of `source` from position `base` on, a multiple of four."""

    __slots__ = ("_base", "_keys", "_places", "_source", "end")

    _places: NDArray[np.int64]

    def __init__(
        self, source: bytes | bytearray | memoryview, spans: NDArray[np.uint64], *, base: int
    ) -> None:
        check_size(len(source) >> 2)  # keys have 33 bits for the start of a span
        if len(source) > MAX_PAYLOAD and len(spans):
            check_size(int((spans[:, 1] - spans[:, 0]).max()))
        self._source = source
        self._base = base
        keys = span_keys(spans)
        if not bool((keys[:-1] < keys[1:]).all()):
            keys = distinct(keys)
        self._keys = keys
        _, sizes = split_keys(keys)
        taken = (sizes + 8) & ~3
        ends = base + np.cumsum(taken)
        self._places = ends - taken
        self.end = int(ends[-1]) if len(ends) else base

    def find(self, spans: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Positions of spans in the heap."""
        keys = span_keys(spans)
        if len(keys) == len(self._keys) and bool((keys == self._keys).all()):
            return self._places
        return np.asarray(self._places[np.searchsorted(self._keys, keys)])

    def render(self) -> NDArray[np.uint8]:
        """The bytes from `base` to `end`."""
        if not len(self._keys):
            return np.zeros(0, np.uint8)
        out = np.zeros(self.end - self._base, np.uint8)
        starts, sizes = split_keys(self._keys)
        places = self._places - self._base
        out.view("<u4")[places >> 2] = sizes
        copy_spans(self._source, starts, out, places + 4, sizes)
        return out


def span_keys(spans: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Start (below 2**33) and size (below 2**31) of each span in one number that sorts by start."""
    return spans[:, 0] << _SIZE_BITS | (spans[:, 1] - spans[:, 0])


def split_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and sizes of spans from their keys."""
    return (keys >> _SIZE_BITS).astype(np.int64), (keys & _SIZE_MASK).astype(np.int64)


def copy_spans(
    source: bytes | bytearray | memoryview,
    starts: NDArray[np.int64],
    out: NDArray[np.uint8],
    places: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Copy `source[start : start + size]` to `out[place:]` for each row."""
    if not len(sizes):
        return
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    found = distinct(ordered)
    first = np.searchsorted(ordered, found)
    for size, rows in zip(found.tolist(), np.split(order, first[1:]), strict=True):
        if not size:
            continue
        if size > _LONG:
            view = np.frombuffer(source, np.uint8)
            for row in rows.tolist():
                begin, place = int(starts[row]), int(places[row])
                out[place : place + size] = view[begin : begin + size]
            continue
        kind = f"V{size}"
        old = np.ndarray((len(source) - size + 1,), kind, buffer=source, strides=(1,))
        new = np.ndarray((len(out) - size + 1,), kind, buffer=out.data, strides=(1,))
        new[places[rows]] = old[starts[rows]]
