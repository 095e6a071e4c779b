"""MessagePack as rmp_serde writes it compactly, unpacked without trusting it and packed alike.

Structs are arrays without names, enum variants with data are maps of one entry, unit variants are
strings, newtypes are transparent. Unpacked arrays are tuples and maps are lists of pairs, so a map
may have any key, keeps repeated keys visible, and is never mistaken for an array.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard

import msgpack

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

Value: TypeAlias = "bool | int | float | str | bytes | Array | Pairs | None"
Array: TypeAlias = "tuple[Value, ...]"
Pairs: TypeAlias = "list[tuple[Value, Value]]"

MAX_JSON_DEPTH = 128
"""How deep JSON values inside a file may be nested."""

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1


def unpack(data: bytes | memoryview, *, where: str) -> Value:
    """The one value that fills `data`; bytes after it are refused.

    The bytes are first walked without building anything. A container that announces more items
    than there are bytes fails there, so memory stays in proportion to the input.
    """
    try:
        walker = msgpack.Unpacker(None, max_buffer_size=max(len(data), 1))
        walker.feed(data)
        walker.skip()
        used = walker.tell()
        if used != len(data):
            raise FormatError(f"{where}: {len(data) - used} bytes follow the MessagePack value")
        value: Value = msgpack.unpackb(
            data,
            use_list=False,
            strict_map_key=False,
            object_pairs_hook=list,
            ext_hook=_refuse_extension,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise FormatError(f"{where}: not valid MessagePack ({reason[:200]})") from None
    return value


def is_array(value: Value) -> TypeGuard[Array]:
    """Whether `value` was an array."""
    return type(value) is tuple


def as_array(value: Value, what: str, *, where: str, sizes: Sequence[int] = ()) -> Array:
    """`value` as an array, of one of the `sizes` where they are given."""
    if not is_array(value):
        raise _wrong(value, what, "an array", where)
    if sizes and len(value) not in sizes:
        allowed = " or ".join(map(str, sizes))
        raise FormatError(f"{where}: {what} has {len(value)} items, expected {allowed}")
    return value


def as_pairs(value: Value, what: str, *, where: str) -> Pairs:
    """`value` as the entries of a map, repeated keys included."""
    if type(value) is not list:
        raise _wrong(value, what, "a map", where)
    return value


def as_members(value: Value, what: str, *, where: str) -> dict[str, Value]:
    """`value` as a map with text keys, none of them twice."""
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
    """An array of items that are packed already."""
    return array_header(len(items)) + b"".join(items)


def pack_map(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A map of keys and values that are packed already, in the given order."""
    return map_header(len(items)) + b"".join(key + value for key, value in items)


def pack_variant(name: str, data: bytes) -> bytes:
    """An enum variant with data that is packed already."""
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


def _wrong(value: object, what: str, expected: str, where: str) -> FormatError:
    found = {list: "a map", tuple: "an array", str: "text", bytes: "binary", type(None): "nil"}
    name = found.get(type(value), type(value).__name__)
    return FormatError(f"{where}: {what} is {name}, expected {expected}")
