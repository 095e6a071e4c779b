"""Writing FlatBuffers forwards: tables first, what they refer to after them.

Offsets of FlatBuffers point forwards, so a file can be laid out from front to back when every
reference is filled in at the moment its target is appended. Vtables come before all tables, once
per layout. Long vectors of tables are appended as NumPy records whose offsets the caller computes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

MAX_PAYLOAD = (1 << 31) - 1
"""Longest payload that FlatBuffers readers accept."""

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Shape:
    """Layout of a table: its size, and where each slot is (0: absent)."""

    size: int
    slots: tuple[int, ...]

    def vtable(self) -> bytes:
        """The vtable that says so."""
        count = len(self.slots)
        return struct.pack(f"<{count + 2}H", 4 + 2 * count, self.size, *self.slots)


class Writer:
    """A payload that grows; positions are offsets from its start."""

    __slots__ = ("_vtables", "data")

    def __init__(self, identifier: bytes, shapes: tuple[Shape, ...]) -> None:
        self.data = bytearray(4) + identifier
        self._vtables: dict[Shape, int] = {}
        for shape in shapes:
            self._vtables[shape] = len(self.data)
            self.data += shape.vtable()

    def align(self, size: int, ahead: int = 0) -> int:
        """Pad until the position `ahead` bytes on is a multiple of `size`; the position now."""
        self.data += bytes(-(len(self.data) + ahead) % size)
        return len(self.data)

    def vtable(self, shape: Shape) -> int:
        """Where the vtable of `shape` is."""
        return self._vtables[shape]

    def table(self, shape: Shape, align: int = 4) -> int:
        """Append an empty table; its position."""
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
        """Let the reference at `at` point to `target`; without one, to what is appended next."""
        _U32.pack_into(self.data, at, (len(self.data) if target is None else target) - at)

    def text(self, at: int, value: str) -> None:
        """Append a string and let `at` refer to it."""
        self.align(4)
        self.link(at)
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(f"{value[:80]!r} is not valid Unicode text") from None
        self.data += _U32.pack(len(encoded)) + encoded + b"\0"

    def blob(self, at: int, value: bytes, *, count: int | None = None, align: int = 1) -> None:
        """Append a vector of `count` items that are `value` as bytes, and let `at` refer to it."""
        self.align(max(align, 4), ahead=4)
        self.link(at)
        self.data += _U32.pack(len(value) if count is None else count)
        self.data += value

    def references(self, at: int, count: int) -> range:
        """Append a vector of `count` empty references; the positions of the references."""
        self.blob(at, bytes(4 * count), count=count, align=4)
        end = len(self.data)
        return range(end - 4 * count, end, 4)

    def finish(self) -> bytearray:
        """The payload; refuses one that readers would."""
        check_size(len(self.data))
        return self.data


def check_size(size: int) -> None:
    """Refuse a payload longer than readers accept."""
    if size > MAX_PAYLOAD:
        raise InvalidInputError(
            f"a metadata file would have {size} bytes before compression, more than {MAX_PAYLOAD}; "
            "split the manifest into smaller ones",
            kind=Kind.LIMIT_EXCEEDED,
        )
