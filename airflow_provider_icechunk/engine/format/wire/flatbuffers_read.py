"""A verified FlatBuffers reader, with long vectors of tables as NumPy columns.

`Table` reads small things one at a time. Long vectors of tables are read by `TableBatch`, one
NumPy gather per field. The work that a file can cause is bounded by its own size: each table costs
8 units and each byte of a vector one, from a purse of twice the payload, so vectors that share
their parts cannot blow up; depth is bounded as well.

Writers share vtables, so a million tables have a handful of layouts. `batches` groups the tables by
vtable; a `TableBatch` then has a fixed offset for every slot, a field is one gather, and each check
is one comparison of arrays. Vectors and strings inside the tables stay spans of the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.coordinates import distinct
from airflow_provider_icechunk.exceptions import FormatError

MAX_DEPTH = 16
_TABLE_COST = 8
_TABLE_MEMORY = 256
_ITEM_MEMORY = 40
"""Approximate memory of a table, and of a small item of a vector, as Python objects."""
_PURSE_FACTOR = 2
_PURSE_BASE = 4096
_KNOWN_VTABLES = 1024
"""How many layouts are cached; normal files have a few dozen."""
_MOST_SLOTS = 64
_MAX_LAYOUTS = 4096
"""How often tables of one vector may differ in layout, in the whole file."""

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")


class Buffer:
    """A FlatBuffers payload under verification; `where` names the file in errors."""

    __slots__ = ("_layouts", "_purse", "_vtables", "data", "memory", "size", "where")

    def __init__(
        self,
        data: bytes,
        *,
        where: str,
        generosity: int = _PURSE_FACTOR,
        memory: Purse | None = None,
    ) -> None:
        self.data = data
        self.size = len(data)
        self.where = where
        self._vtables: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._layouts = 0
        self._purse = generosity * len(data) + _PURSE_BASE
        self.memory = memory

    def root(self, identifier: bytes) -> Table:
        """The root table.

        A file may have `identifier` in its bytes 4 to 8, or omit it, as schemas without one do.
        Everything is verified either way.
        """
        if self.size > MAX_PAYLOAD:
            self.fail(f"its payload has {self.size} bytes, more than FlatBuffers can address")
        try:
            return self.table(self.u32(0), 0) if self.size >= 8 else self.fail("it is too short")
        except FormatError:
            if self.data[4:8] != identifier:
                self.fail("the payload is not a FlatBuffers file")
            raise

    def table(self, at: int, depth: int) -> Table:
        """The table at `at`, with its vtable checked."""
        if depth > MAX_DEPTH:
            self.fail(f"tables are nested more than {MAX_DEPTH} deep")
        self.spend(_TABLE_COST)
        self.hold(_TABLE_MEMORY)
        if at % 4 or at + 4 > self.size:
            self.fail("a table is outside the file or misaligned")
        vtable = at - _I32.unpack_from(self.data, at)[0]
        size, slots = self.vtable(vtable)
        if at + size > self.size:
            self.fail("a table reaches beyond the end of the file")
        return Table(self, at, size, slots, depth)

    def vtable(self, at: int) -> tuple[int, tuple[int, ...]]:
        """Size of the tables and offset of each slot (0 when absent), from the vtable at `at`."""
        known = self._vtables.get(at)
        if known is not None:
            return known
        if at < 0 or at % 2 or at + 4 > self.size:
            self.fail("a vtable is outside the file or misaligned")
        length = _U16.unpack_from(self.data, at)[0]
        if length < 4 or length % 2 or at + length > self.size:
            self.fail("a vtable has an impossible size")
        count = min(length // 2 - 2, _MOST_SLOTS)
        size, *slots = struct.unpack_from(f"<{count + 1}H", self.data, at + 2)
        if size < 4:
            self.fail("a table has an impossible size")
        found = size, tuple(slots)
        if len(self._vtables) < _KNOWN_VTABLES:
            self._vtables[at] = found
        return found

    def u32(self, at: int) -> int:
        """The number at `at`, which the caller has checked."""
        value: int = _U32.unpack_from(self.data, at)[0]
        return value

    def vector(self, at: int, width: int, align: int) -> tuple[int, int]:
        """Position and count of the items of the vector at `at`."""
        if at % 4 or at + 4 > self.size:
            self.fail("a vector is outside the file or misaligned")
        count = self.u32(at)
        if at + 4 + count * width > self.size or (count and (at + 4) % align):
            self.fail("a vector reaches beyond the end of the file or is misaligned")
        return at + 4, count

    def text(self, at: int) -> str:
        """The string at `at`."""
        start, count = self.vector(at, 1, 1)
        stop = start + count
        if stop >= self.size or self.data[stop]:
            self.fail("a string does not end with NUL")
        self.spend(count)
        self.hold(count + _ITEM_MEMORY)
        try:
            return self.data[start:stop].decode()
        except UnicodeDecodeError:
            return self.fail("a string is not UTF-8")

    def spend(self, cost: int) -> None:
        """Charge for work; a file that causes more than its size allows is refused."""
        self._purse -= cost
        if self._purse < 0:
            self.fail("its parts overlap so much that it unpacks to far more than its size")

    def count_layouts(self, count: int) -> None:
        """Count layouts of vectors whose tables have several; each costs array operations."""
        self._layouts += count
        if self._layouts > _MAX_LAYOUTS:
            self.fail(f"its tables have more than {_MAX_LAYOUTS} layouts")

    def hold(self, size: int) -> None:
        """Charge for memory of decoded values; a file that takes too much is refused."""
        if self.memory is not None:
            self.memory.charge(size)

    def fail(self, problem: str) -> NoReturn:
        """The error for an invalid file."""
        raise FormatError(f"{self.where}: {problem}")


class Table:
    """A table whose slots are read by number; a required slot that is absent is an error."""

    __slots__ = ("at", "buffer", "depth", "size", "slots")

    def __init__(
        self, buffer: Buffer, at: int, size: int, slots: tuple[int, ...], depth: int
    ) -> None:
        self.buffer = buffer
        self.at = at
        self.size = size
        self.slots = slots
        self.depth = depth

    def has(self, slot: int) -> bool:
        """Whether the slot is present."""
        return slot < len(self.slots) and self.slots[slot] != 0

    def u8(self, slot: int) -> int:
        """An 8-bit number."""
        return self._scalar(slot, _U8)

    def u16(self, slot: int) -> int:
        """A 16-bit number."""
        return self._scalar(slot, _U16)

    def u32(self, slot: int) -> int:
        """A 32-bit number."""
        return self._scalar(slot, _U32)

    def u64(self, slot: int) -> int:
        """A 64-bit number."""
        return self._scalar(slot, _U64)

    def fixed(self, slot: int, size: int) -> bytes:
        """A required struct of bytes, such as an id."""
        value = self.fixed_or_none(slot, size)
        return self._missing(slot) if value is None else value

    def fixed_or_none(self, slot: int, size: int) -> bytes | None:
        """A struct of bytes, if present."""
        at = self._field(slot, size, 1)
        return None if at is None else self.buffer.data[at : at + size]

    def text(self, slot: int) -> str:
        """A required string."""
        value = self.text_or_none(slot)
        return self._missing(slot) if value is None else value

    def text_or_none(self, slot: int) -> str | None:
        """A string, if present."""
        at = self._target(slot)
        return None if at is None else self.buffer.text(at)

    def texts(self, slot: int) -> list[str]:
        """A required vector of strings."""
        start, count = self._vector(slot, 4, 4)
        self.buffer.hold(count * _ITEM_MEMORY)
        links = struct.unpack_from(f"<{count}I", self.buffer.data, start)
        return [self.buffer.text(start + 4 * n + link) for n, link in enumerate(links)]

    def blob(self, slot: int) -> bytes:
        """A required vector of bytes."""
        start, count = self._vector(slot, 1, 1)
        self.buffer.hold(count + _ITEM_MEMORY)
        return self.buffer.data[start : start + count]

    def fixed_items(self, slot: int, size: int) -> list[bytes]:
        """A required vector of structs of bytes, such as ids."""
        start, count = self._vector(slot, size, 1)
        self.buffer.hold(count * (size + _ITEM_MEMORY))
        data = self.buffer.data
        return [data[at : at + size] for at in range(start, start + count * size, size)]

    def structs(self, slot: int, dtype: DTypeLike, align: int) -> NDArray[np.void]:
        """A required vector of structs or numbers, as a read-only view of the payload."""
        kind = np.dtype(dtype)
        start, count = self._vector(slot, kind.itemsize, align)
        return np.frombuffer(self.buffer.data, kind, count, start)

    def numbers(self, slot: int, code: str) -> tuple[int, ...]:
        """A required vector of numbers of a `struct` code."""
        width = struct.calcsize(code)
        start, count = self._vector(slot, width, width)
        self.buffer.hold(count * _ITEM_MEMORY)
        return struct.unpack_from(f"<{count}{code}", self.buffer.data, start)

    def pairs(self, slot: int, code: str) -> list[tuple[int, int]]:
        """A required vector of structs of two numbers of a `struct` code."""
        width = struct.calcsize(code)
        start, count = self._vector(slot, 2 * width, width)
        self.buffer.hold(3 * count * _ITEM_MEMORY)
        numbers = struct.unpack_from(f"<{2 * count}{code}", self.buffer.data, start)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def tables(self, slot: int) -> list[Table]:
        """A required vector of tables."""
        start, count = self._vector(slot, 4, 4)
        buffer, depth = self.buffer, self.depth + 1
        buffer.hold(count * _ITEM_MEMORY)
        links = struct.unpack_from(f"<{count}I", buffer.data, start)
        return [buffer.table(start + 4 * n + link, depth) for n, link in enumerate(links)]

    def count(self, slot: int) -> int:
        """The announced number of items of a required vector; not checked here."""
        at = self._target(slot)
        return self._missing(slot) if at is None else self.buffer.vector(at, 1, 1)[1]

    def links(self, slot: int) -> tuple[int, int]:
        """Position and number of the links to the tables of a required vector."""
        return self._vector(slot, 4, 4)

    def offsets(self, slot: int) -> NDArray[np.int64]:
        """Unchecked positions of the tables of a required vector."""
        start, count = self.links(slot)
        self.buffer.hold(8 * count)
        links: NDArray[np.uint32] = np.frombuffer(self.buffer.data, "<u4", count, start)
        return np.arange(start, start + 4 * count, 4, dtype=np.int64) + links

    def child(self, slot: int) -> Table:
        """A required table, or the value of a union."""
        at = self._target(slot)
        if at is None:
            return self._missing(slot)
        return self.buffer.table(at, self.depth + 1)

    def _scalar(self, slot: int, number: struct.Struct) -> int:
        at = self._field(slot, number.size, number.size)
        if at is None:
            return 0
        value: int = number.unpack_from(self.buffer.data, at)[0]
        return value

    def _field(self, slot: int, width: int, align: int) -> int | None:
        if slot >= len(self.slots):
            return None
        offset = self.slots[slot]
        if not offset:
            return None
        at = self.at + offset
        if offset < 4 or offset + width > self.size or at % align:
            self.buffer.fail(f"slot {slot} of a table is outside of it or misaligned")
        return at

    def _target(self, slot: int) -> int | None:
        at = self._field(slot, 4, 4)
        return None if at is None else at + self.buffer.u32(at)

    def _vector(self, slot: int, width: int, align: int) -> tuple[int, int]:
        at = self._target(slot)
        if at is None:
            return self._missing(slot)
        start, count = self.buffer.vector(at, width, align)
        self.buffer.spend(count * width)
        return start, count

    def _missing(self, slot: int) -> NoReturn:
        self.buffer.fail(f"required slot {slot} of a table is missing")


Rows = slice | NDArray[np.int64]
"""The tables of the vector in this batch."""

_FEW = 16
_ROW_MEMORY = 16
"""Memory for finding each table, without its columns."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Tables of one layout, verified to be inside the payload."""

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
        """`(n, d)` 32-bit numbers of vectors of equal length, at most `most`."""
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

    def lengths(self, slot: int) -> NDArray[np.int64]:
        """`(n,)` announced numbers of items of vectors; not checked here."""
        return self._vectors(slot)[1]

    def targets(self, slot: int) -> NDArray[np.int64]:
        """`(n,)` unchecked positions of tables, or of the values of a union."""
        at = self._field(slot, 4, 4)
        links: NDArray[np.uint32] = gather(self.buffer, at, 4).view("<u4").reshape(len(at))
        return at + links

    def vectors(self, slot: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions and counts of items of `width` bytes, verified to be inside."""
        start, count = self._vectors(slot)
        if bool((start + count * width > self.buffer.size).any()):
            self.buffer.fail("a vector reaches beyond the end of the file")
        self.buffer.spend(int(count.sum()) * width)
        return start, count

    def _vectors(self, slot: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions and counts of the items of the vectors in a slot."""
        at = self._field(slot, 4, 4)
        start = at + gather(self.buffer, at, 4).view("<u4").reshape(len(at))
        if bool((start > self.buffer.size - 4).any()) or bool((start & 3).any()):
            self.buffer.fail("a vector is outside the file or misaligned")
        count = gather(self.buffer, start, 4).view("<u4").reshape(len(at)).astype(np.int64)
        start += 4
        return start, count

    def _field(self, slot: int, width: int, align: int) -> NDArray[np.int64]:
        offset = self.slots[slot] if slot < len(self.slots) else 0
        if offset < 4 or offset + width > self.size:
            self.buffer.fail(f"slot {slot} of a table is missing or outside of it")
        at = self.at + offset
        if align > 1 and bool((at & (align - 1)).any()):
            self.buffer.fail(f"slot {slot} of a table is misaligned")
        return at


def batches(buffer: Buffer, at: NDArray[np.int64]) -> Iterator[TableBatch]:
    """The tables at positions `at`, grouped by layout and verified."""
    if not len(at):
        return
    if bool((at > buffer.size - 4).any()) or bool((at & 3).any()):
        buffer.fail("a table is outside the file or misaligned")
    buffer.spend(8 * len(at))
    buffer.hold(_ROW_MEMORY * len(at))
    vtables = at - gather(buffer, at, 4).view("<i4").reshape(len(at))
    for vtable, rows in _groups(buffer, vtables):
        size, slots = buffer.vtable(vtable)
        mine = at[rows]
        if bool((mine > buffer.size - size).any()):
            buffer.fail("a table reaches beyond the end of the file")
        yield TableBatch(buffer, mine, rows, size, slots)


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
        buffer.count_layouts(1)
        first = int(vtables[left[0]])
        same = vtables[left] == first
        yield first, left[same]
        left = left[~same]
    found = distinct(vtables[left])
    buffer.count_layouts(len(found))
    inverse = np.searchsorted(found, vtables[left])
    order = np.argsort(inverse, kind="stable")
    ends = np.searchsorted(inverse[order], np.arange(len(found)), side="right")
    yield from zip(found.tolist(), np.split(left[order], ends[:-1]), strict=True)


MAX_PAYLOAD = (1 << 31) - 1
"""Longest payload that FlatBuffers readers accept."""
