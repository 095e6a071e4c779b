"""Long vectors of FlatBuffers tables as NumPy columns: no Python object per table.

Writers share vtables, so a million tables have a handful of layouts. `batches` groups the tables by
vtable; a `Batch` then has a fixed offset for every slot, a field is one gather, and each check is
one comparison of arrays. Vectors and strings inside the tables stay spans of the payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.wire.distinct import distinct
from airflow_provider_icechunk.format.wire.flatbuffers import Buffer

Rows = slice | NDArray[np.int64]
"""Which tables of the vector a batch has."""

_FEW = 16
_MAX_LAYOUTS = 4096
_ROW_MEMORY = 16
"""What finding a table takes for each of them; its columns come on top."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tables of one layout, verified to lie inside the payload."""

    buffer: Buffer
    at: NDArray[np.int64]
    rows: Rows
    size: int
    slots: tuple[int, ...]

    def has(self, slot: int) -> bool:
        """Whether these tables have the slot."""
        return slot < len(self.slots) and self.slots[slot] != 0

    def numbers(self, slot: int, width: int) -> NDArray[np.unsignedinteger]:
        """`(n,)` numbers of `width` bytes."""
        found = gather(self.buffer, self._field(slot, width, width), width)
        return found.view(f"<u{width}").reshape(len(self.at))

    def fixed(self, slot: int, size: int) -> NDArray[np.uint8]:
        """`(n, size)` structs of bytes."""
        return gather(self.buffer, self._field(slot, size, 1), size)

    def spans(self, slot: int, *, text: bool = False) -> NDArray[np.int64]:
        """`(n, 2)` start and stop of byte vectors, or of strings with their NUL checked."""
        start, count = self._vectors(slot)
        stop = start + count
        end = self.buffer.size - (1 if text else 0)
        if bool((stop > end).any()):
            self.buffer.fail("a vector reaches beyond the end of the file")
        if text and len(stop) and bool(np.frombuffer(self.buffer.data, np.uint8)[stop].any()):
            self.buffer.fail("a string does not end with NUL")
        return np.stack([start, stop], axis=1)

    def coordinates(self, slot: int, *, most: int) -> NDArray[np.uint32]:
        """`(n, d)` 32-bit numbers of vectors that all have one length, `most` at most."""
        start, count = self._vectors(slot)
        length = int(count[0]) if len(count) else 0
        if bool((count != length).any()):
            self.buffer.fail("chunk coordinates of one array have different lengths")
        if length > most:
            self.buffer.fail(f"chunk coordinates have {length} dimensions, more than {most}")
        if bool((start > self.buffer.size - 4 * length).any()):
            self.buffer.fail("a vector reaches beyond the end of the file")
        self.buffer.hold(4 * length * len(start))
        return gather(self.buffer, start, 4 * length).view("<u4").reshape(len(start), length)

    def _vectors(self, slot: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions and counts of the items of the vectors in a slot."""
        at = self._field(slot, 4, 4)
        start = at + gather(self.buffer, at, 4).view("<u4").reshape(len(at))
        if bool((start > self.buffer.size - 4).any()) or bool((start & 3).any()):
            self.buffer.fail("a vector lies outside the file or is misaligned")
        count = gather(self.buffer, start, 4).view("<u4").reshape(len(at)).astype(np.int64)
        start += 4
        return start, count

    def _field(self, slot: int, width: int, align: int) -> NDArray[np.int64]:
        offset = self.slots[slot] if slot < len(self.slots) else 0
        if offset < 4 or offset + width > self.size:
            self.buffer.fail(f"slot {slot} of a table is missing or lies outside of it")
        at = self.at + offset
        if align > 1 and bool((at & (align - 1)).any()):
            self.buffer.fail(f"slot {slot} of a table is misaligned")
        return at


def batches(buffer: Buffer, at: NDArray[np.int64]) -> Iterator[Batch]:
    """The tables at positions `at`, grouped by layout and verified."""
    if not len(at):
        return
    if bool((at > buffer.size - 4).any()) or bool((at & 3).any()):
        buffer.fail("a table lies outside the file or is misaligned")
    buffer.spend(8 * len(at))
    buffer.hold(_ROW_MEMORY * len(at))
    vtables = at - gather(buffer, at, 4).view("<i4").reshape(len(at))
    for vtable, rows in _groups(buffer, vtables):
        size, slots = buffer.vtable(vtable)
        mine = at[rows]
        if bool((mine > buffer.size - size).any()):
            buffer.fail("a table reaches beyond the end of the file")
        yield Batch(buffer, mine, rows, size, slots)


def gather(buffer: Buffer, at: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """`(n, width)` bytes at verified positions."""
    if not width or not len(at):
        return np.zeros((len(at), width), np.uint8)
    every = np.ndarray((buffer.size - width + 1,), f"V{width}", buffer=buffer.data, strides=(1,))
    return every[at].view(np.uint8).reshape(len(at), width)


def _groups(buffer: Buffer, vtables: NDArray[np.int64]) -> Iterator[tuple[int, Rows]]:
    first = int(vtables[0])
    if bool((vtables == first).all()):
        yield first, slice(None)
        return
    left = np.arange(len(vtables), dtype=np.int64)
    for _ in range(_FEW):
        if not len(left):
            return
        first = int(vtables[left[0]])
        same = vtables[left] == first
        yield first, left[same]
        left = left[~same]
    found = distinct(vtables[left])
    if len(found) > _MAX_LAYOUTS:
        buffer.fail(f"its tables have more than {_MAX_LAYOUTS} layouts")
    inverse = np.searchsorted(found, vtables[left])
    order = np.argsort(inverse, kind="stable")
    ends = np.searchsorted(inverse[order], np.arange(len(found)), side="right")
    yield from zip(found.tolist(), np.split(left[order], ends[:-1]), strict=True)
