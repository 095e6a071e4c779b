"""MessagePack in the compact form of rmp_serde; unpacking does not trust the bytes.

Structs are arrays without names, enum variants with data are maps of one entry, unit variants are
strings, newtypes are transparent. Unpacked arrays are tuples and maps are lists of pairs, so a map
may have any key, keeps repeated keys visible, and is never mistaken for an array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeAlias, TypeGuard

import msgpack
import numpy as np

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

Value: TypeAlias = "bool | int | float | str | bytes | Array | Pairs | None"
Array: TypeAlias = "tuple[Value, ...]"
Pairs: TypeAlias = "list[tuple[Value, Value]]"

MAX_JSON_DEPTH = 128
"""How deep JSON values inside a file may be nested."""

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1


def measure(data: bytes | memoryview, memory: Purse | None, *, where: str) -> None:
    """Check that `data` is one complete value, and charge its memory before it is built.

    A container that announces more items than there are bytes fails here. If the worst case, one
    value per byte, exceeds the budget, the values are counted one by one.
    """
    if memory is None:
        memory = Purse(len(data), where=where)
    worst = _worst(data)
    if worst > memory.left:
        _walk(data, memory, where)
        return
    walker = msgpack.Unpacker(None, max_buffer_size=max(len(data), 1))
    walker.feed(data)
    walker.skip()
    used = walker.tell()
    if used != len(data):
        raise FormatError(f"{where}: {len(data) - used} bytes follow the MessagePack value")
    memory.charge(worst)


def _worst(data: bytes | memoryview) -> int:
    """The memory of `data` if every byte starts a value; walking needs a copy as well."""
    if len(data) < _FEW:
        return _MOST_FOR_A_BYTE * len(data)
    counts = np.zeros(256, np.int64)
    for start in range(0, len(data), _BLOCK):
        block = np.frombuffer(data, np.uint8, min(_BLOCK, len(data) - start), start)
        counts += np.bincount(block, minlength=256)
    # Long maps need a pair per entry, which is not visible in single bytes.
    pairs = _PAIR_MEMORY * len(data) // 2 if counts[0xDE] or counts[0xDF] else 0
    return int((counts * _WORST).sum()) + pairs + len(data)


def _walk(data: bytes | memoryview, memory: Purse, where: str) -> None:
    """Charge for each value of `data`, one after the other, without building anything."""
    at, missing, size, owed = 0, 1, len(data), 0
    while missing:
        if at >= size:
            raise FormatError(f"{where}: not valid MessagePack (it ends inside a value)")
        tag = data[at]
        fixed, width, items = _TAGS[tag]
        at += 1
        if width:
            announced = int.from_bytes(data[at : at + width], "big")
            at += width
            items *= announced
            fixed += 0 if items else announced
        at += fixed
        missing += items - 1
        owed += _VALUE_MEMORY + fixed
        if missing > size - at + 1:
            raise FormatError(f"{where}: not valid MessagePack (it announces more than it has)")
        if owed > _DEBT:
            memory.charge(owed)
            owed = 0
    if at != size:
        raise FormatError(f"{where}: {size - at} bytes follow the MessagePack value")
    memory.charge(owed)


def _tags() -> list[tuple[int, int, int]]:
    """For each first byte: following bytes, bytes of a count, and items.

    If a count follows, the third is the number of items per count, or 0 for bytes.
    """
    tags = [(0, 0, 0)] * 256
    for low in range(16):
        tags[0x80 + low] = (0, 0, 2 * low)
        tags[0x90 + low] = (0, 0, low)
    for low in range(32):
        tags[0xA0 + low] = (low, 0, 0)
    for tag, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
        tags[tag] = (0, width, 0)
    for tag, width in ((0xC7, 1), (0xC8, 2), (0xC9, 4)):
        tags[tag] = (1, width, 0)
    for tag, width, each in ((0xDC, 2, 1), (0xDD, 4, 1), (0xDE, 2, 2), (0xDF, 4, 2)):
        tags[tag] = (0, width, each)
    for tag, fixed in (
        *((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)),
        *((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)),
        *((0xD4, 2), (0xD5, 3), (0xD6, 5), (0xD7, 9), (0xD8, 17)),
    ):
        tags[tag] = (fixed, 0, 0)
    return tags


def _worst_of(tag: int) -> int:
    """Memory of the value that a byte starts, including its slot in the container."""
    if tag < 0x80 or tag in (0xC0, 0xC2, 0xC3):
        return 8
    if tag < 0x90:
        return 80 + _PAIR_MEMORY * (tag & 15)
    return 80 if tag < 0xA0 else 64


_PAIR_MEMORY = 64
_TAGS = _tags()
_WORST = np.array([_worst_of(tag) for tag in range(256)], np.int64)
_VALUE_MEMORY = 64
_FEW = 128
"""Shorter values are not checked."""
_MOST_FOR_A_BYTE = 100
_BLOCK = 1 << 16
_DEBT = 1 << 16
_SHORT = 1024
"""Maximum number of items of a value, including nested ones, that is read at once."""


def unpack(data: bytes | memoryview, *, where: str, memory: Purse | None = None) -> Value:
    """The single value in `data`; trailing bytes are refused.

    The bytes are first walked without building anything.
    """
    try:
        measure(data, memory, where=where)
        value: Value = msgpack.unpackb(data, **_OPTIONS)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise _invalid(error, where) from None
    return value


class Reader:
    """Reads a value in parts, for long lists that need not be in memory as a whole.

    On exit it checks that nothing follows. Values read at once are small; containers are charged by
    the caller's estimate of their items.
    """

    def __init__(self, data: bytes | memoryview, *, where: str, memory: Purse) -> None:
        self.memory = memory
        self._size = len(data)
        self._where = where
        self._built = 0
        self._unpacker = msgpack.Unpacker(
            None,
            max_buffer_size=max(len(data), 1),
            max_array_len=_SHORT,
            max_map_len=_SHORT,
            **_OPTIONS | {"list_hook": self._count, "object_pairs_hook": self._pairs},
        )
        self._unpacker.feed(data)

    def array(self, item_memory: int = 0) -> int:
        """The number of items of the array that is read next."""
        return self._announced(self._unpacker.read_array_header, item_memory)

    def map(self, item_memory: int = 0) -> int:
        """The number of entries of the map whose keys and values are read next, alternately."""
        return self._announced(self._unpacker.read_map_header, item_memory)

    def value(self) -> Value:
        """The next value; raises while it is built if it takes too much memory."""
        self._built = 0
        value: Value = self._read(self._unpacker.unpack)
        return value

    def _count(self, items: Array) -> Array:
        self._built += 1 + len(items)
        if self._built > _SHORT:
            raise ValueError("it has a long list where short ones belong")
        return items

    def _pairs(self, items: Iterable[tuple[Value, Value]]) -> Pairs:
        pairs = list(items)
        self._built += 1 + 2 * len(pairs)
        if self._built > _SHORT:
            raise ValueError("it has a long map where short ones belong")
        return pairs

    def _announced(self, read: Callable[[], int], item_memory: int) -> int:
        count: int = self._read(read)
        if count > self._size - self._unpacker.tell():
            raise FormatError(f"{self._where}: not valid MessagePack (it announces too much)")
        self.memory.charge(item_memory * count)
        return count

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
            raise _invalid(error, self._where) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        rest = self._size - self._unpacker.tell()
        if kind is None and rest:
            raise FormatError(f"{self._where}: {rest} bytes follow the MessagePack value")


def is_array(value: Value) -> TypeGuard[Array]:
    """Whether `value` was an array."""
    return type(value) is tuple


def as_array(value: Value, what: str, *, where: str, sizes: Sequence[int] = ()) -> Array:
    """`value` as an array, of one of the `sizes` if given."""
    if not is_array(value):
        raise _wrong(value, what, "an array", where)
    if sizes and len(value) not in sizes:
        allowed = " or ".join(map(str, sizes))
        raise FormatError(f"{where}: {what} has {len(value)} items, expected {allowed}")
    return value


def as_pairs(value: Value, what: str, *, where: str) -> Pairs:
    """`value` as the entries of a map, including duplicate keys."""
    if type(value) is not list:
        raise _wrong(value, what, "a map", where)
    return value


def as_members(value: Value, what: str, *, where: str) -> dict[str, Value]:
    """`value` as a map with distinct text keys."""
    entries = as_pairs(value, what, where=where)
    members = {as_text(key, f"a key of {what}", where=where): item for key, item in entries}
    if len(members) != len(entries):
        raise FormatError(f"{where}: {what} has a key twice")
    return members


def as_variant(value: Value, what: str, *, where: str) -> tuple[str, Value]:
    """An enum value as its name and data; the data of a unit variant is `None`."""
    if isinstance(value, str):
        return value, None
    entries = as_pairs(value, what, where=where)
    if len(entries) != 1:
        raise FormatError(f"{where}: {what} has {len(entries)} entries, expected one variant")
    name, data = entries[0]
    return as_text(name, f"the variant of {what}", where=where), data


def as_text(value: Value, what: str, *, where: str) -> str:
    """`value` as text."""
    if not isinstance(value, str):
        raise _wrong(value, what, "text", where)
    return value


def as_bytes(value: Value, what: str, *, where: str) -> bytes:
    """`value` as binary."""
    if not isinstance(value, bytes):
        raise _wrong(value, what, "binary", where)
    return value


def as_number(value: Value, what: str, *, where: str, most: int = _U64) -> int:
    """`value` as an unsigned integer up to `most`; booleans are not numbers."""
    if type(value) is not int:
        raise _wrong(value, what, "an integer", where)
    if not 0 <= value <= most:
        raise FormatError(f"{where}: {what} is {value}, expected 0 to {most}")
    return value


def as_numbers(value: Value, what: str, *, where: str, most: int = _U64) -> tuple[int, ...]:
    """`value` as an array of unsigned integers."""
    items = as_array(value, what, where=where)
    return tuple(as_number(item, what, where=where, most=most) for item in items)


def as_index(value: Value, what: str, *, where: str) -> tuple[int, ...]:
    """`value` as chunk coordinates."""
    return as_numbers(value, what, where=where, most=_U32)


def as_json(value: Value, what: str, *, where: str, depth: int = MAX_JSON_DEPTH) -> Any:
    """`value` as a JSON value with lists and dictionaries; binary data is refused."""
    if depth < 0:
        raise FormatError(f"{where}: {what} is nested deeper than {MAX_JSON_DEPTH} levels")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_array(value):
        return [as_json(item, what, where=where, depth=depth - 1) for item in value]
    members = as_members(value, what, where=where)
    return {
        name: as_json(item, what, where=where, depth=depth - 1) for name, item in members.items()
    }


def pack(value: object) -> bytes:
    """`value` in the shortest form: integers as narrow as they fit, floats as 64 bits."""
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError(f"this value cannot be stored as MessagePack: {error}") from None
    return packed


def pack_single(number: float) -> bytes:
    """A 32-bit float, as Rust writes an `f32`."""
    try:
        return b"\xca" + struct.pack(">f", number)
    except OverflowError:
        raise InvalidInputError(f"{number} does not fit a 32-bit float") from None


def pack_array(items: Sequence[bytes]) -> bytes:
    """An array of items that are already packed."""
    return array_header(len(items)) + b"".join(items)


def pack_map(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A map of keys and values that are already packed, in the given order."""
    return map_header(len(items)) + b"".join(key + value for key, value in items)


def pack_variant(name: str, data: bytes) -> bytes:
    """An enum variant with data that is already packed."""
    return b"\x81" + pack(name) + data


def array_header(size: int) -> bytes:
    """The start of an array of `size` items."""
    return _header(size, 0x90, b"\xdc", b"\xdd")


def map_header(size: int) -> bytes:
    """The start of a map of `size` entries."""
    return _header(size, 0x80, b"\xde", b"\xdf")


def _header(size: int, fixed: int, medium: bytes, large: bytes) -> bytes:
    if size < 16:
        return bytes([fixed | size])
    if size < 1 << 16:
        return medium + struct.pack(">H", size)
    if size <= _U32:
        return large + struct.pack(">I", size)
    raise InvalidInputError(f"{size} items do not fit one MessagePack container")


def _refuse_extension(code: int, data: bytes) -> Value:
    raise ValueError(f"extension type {code} with {len(data)} bytes")


_OPTIONS: dict[str, Any] = {
    "use_list": False,
    "strict_map_key": False,
    "object_pairs_hook": list,
    "ext_hook": _refuse_extension,
}


def _invalid(error: Exception, where: str) -> FormatError:
    reason = str(error) or type(error).__name__
    return FormatError(f"{where}: not valid MessagePack ({reason[:200]})")


def _wrong(value: object, what: str, expected: str, where: str) -> FormatError:
    found = {list: "a map", tuple: "an array", str: "text", bytes: "binary", type(None): "nil"}
    name = found.get(type(value), type(value).__name__)
    return FormatError(f"{where}: {what} is {name}, expected {expected}")
