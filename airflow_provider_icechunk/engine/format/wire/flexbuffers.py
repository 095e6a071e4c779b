"""FlexBuffers for JSON values: a verified reader and a writer that Rust readers accept.

A value refers backwards to its parts, so parts may be shared and a small buffer could unpack to a
huge value. Each element and each byte of text is charged to a budget of a few times the buffer's
size; only the texts of keys, which normal writers share, are charged once.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from typing import NoReturn, TypeAlias

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_DEPTH = 64
_PURSE_FACTOR = 4
_PURSE_BASE = 256
_ELEMENT_MEMORY = 128
"""Approximate memory of an element as a Python object in a list or a dictionary."""
_U64 = (1 << 64) - 1
_FLOATS = {2: struct.Struct("<e"), 4: struct.Struct("<f"), 8: struct.Struct("<d")}
_WIDTHS = (1, 2, 4, 8)


class _Type(IntEnum):
    NULL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    KEY = 4
    STRING = 5
    INDIRECT_INT = 6
    INDIRECT_UINT = 7
    INDIRECT_FLOAT = 8
    MAP = 9
    VECTOR = 10
    VECTOR_INT = 11
    VECTOR_UINT = 12
    VECTOR_FLOAT = 13
    VECTOR_KEY = 14
    VECTOR_INT2 = 16
    VECTOR_FLOAT4 = 24
    BOOL = 26
    VECTOR_BOOL = 36


_INDIRECT = {
    _Type.INDIRECT_INT: _Type.INT,
    _Type.INDIRECT_UINT: _Type.UINT,
    _Type.INDIRECT_FLOAT: _Type.FLOAT,
}
_TYPED = {
    _Type.VECTOR_INT: _Type.INT,
    _Type.VECTOR_UINT: _Type.UINT,
    _Type.VECTOR_FLOAT: _Type.FLOAT,
    _Type.VECTOR_KEY: _Type.KEY,
    _Type.VECTOR_BOOL: _Type.BOOL,
}
_SCALARS = (_Type.NULL, _Type.INT, _Type.UINT, _Type.FLOAT, _Type.BOOL)


def decode(data: bytes, *, where: str, memory: Purse | None = None) -> Json:
    """Decode a JSON value; `FormatError` if `data` is anything else."""
    with memory or Purse(len(data), where=where) as purse:
        return _FlexReader(data, where, purse).root()


def encode(value: object) -> bytes:
    """Encode a JSON value with sorted keys; raises for what JSON or 64 bits cannot express."""
    return _Writer().root(value)


class _FlexReader:
    __slots__ = ("_data", "_keys", "_memory", "_purse", "_where")

    def __init__(self, data: bytes, where: str, memory: Purse) -> None:
        self._memory = memory
        self._data = data
        self._where = where
        self._keys: dict[int, str] = {}
        self._purse = _PURSE_FACTOR * len(data) + _PURSE_BASE

    def root(self) -> Json:
        size = len(self._data)
        if size < 3:
            self._fail("it is too short")
        packed, width = self._data[-2], self._data[-1]
        if width not in _WIDTHS or width + 2 > size:
            self._fail("its root has an impossible width")
        at = size - 2 - width
        return self._value(at, width, packed, at, 0)

    def _value(self, at: int, parent_width: int, packed: int, end: int, depth: int) -> Json:
        """The value in the `parent_width` bytes at `at`, whose parts all end before `end`."""
        self._spend(1)
        code, width = packed >> 2, 1 << (packed & 3)
        if code in _SCALARS:
            return self._scalar(at, parent_width, code)
        target = self._target(at, parent_width)
        if code in _INDIRECT:
            self._inside(target, width, end)
            return self._scalar(target, width, _INDIRECT[_Type(code)])
        if code == _Type.KEY:
            return self._key(target)
        if code == _Type.STRING:
            return self._text(target, width, end)
        if depth >= MAX_DEPTH:
            self._fail(f"it is nested more than {MAX_DEPTH} deep")
        if code == _Type.MAP:
            return self._map(target, width, end, depth + 1)
        if code == _Type.VECTOR:
            return self._vector(target, width, end, depth + 1)
        if code in _TYPED:
            count = self._size(target, width, end)
            return self._typed(target, width, _Type(code), count)
        if _Type.VECTOR_INT2 <= code <= _Type.VECTOR_FLOAT4:
            count, kind = divmod(code - _Type.VECTOR_INT2, 3)
            self._inside(target, (count + 2) * width, end)
            return self._typed(target, width, _Type(_Type.VECTOR_INT + kind), count + 2)
        return self._fail(f"it has a value of type {code}, which is not a JSON value")

    def _scalar(self, at: int, width: int, code: int) -> Json:
        raw = self._data[at : at + width]
        if code == _Type.INT:
            return int.from_bytes(raw, "little", signed=True)
        if code == _Type.UINT:
            return int.from_bytes(raw, "little")
        if code == _Type.BOOL:
            return any(raw)
        if code == _Type.NULL:
            return None
        if width not in _FLOATS:
            self._fail("it has a float of one byte")
        number: float = _FLOATS[width].unpack(raw)[0]
        return number

    def _target(self, at: int, width: int) -> int:
        """The target of the reference at `at`: before it, or itself for something empty."""
        distance = int.from_bytes(self._data[at : at + width], "little")
        if distance > at:
            self._fail("a reference points outside of it")
        return at - distance

    def _inside(self, at: int, size: int, end: int) -> None:
        if at < 0 or at + size > end:
            self._fail("a part of it is outside")

    def _size(self, target: int, width: int, end: int) -> int:
        """The checked number of elements of `width` bytes at `target`."""
        self._inside(target - width, width, end)
        count = int.from_bytes(self._data[target - width : target], "little")
        self._inside(target, count * width, end)
        return count

    def _text(self, target: int, width: int, end: int) -> str:
        self._inside(target - width, width, end)
        count = int.from_bytes(self._data[target - width : target], "little")
        self._inside(target, count + 1, end)
        self._spend(count)
        self._memory.charge(count)
        return self._decoded(target, target + count)

    def _key(self, target: int) -> str:
        known = self._keys.get(target)
        if known is not None:
            return known
        stop = self._data.find(b"\0", target)
        if stop < 0:
            self._fail("a key does not end")
        self._spend(stop - target)
        self._keys[target] = key = self._decoded(target, stop)
        return key

    def _decoded(self, start: int, stop: int) -> str:
        try:
            return self._data[start:stop].decode()
        except UnicodeDecodeError:
            return self._fail("a text of it is not UTF-8")

    def _typed(self, target: int, width: int, code: _Type, count: int) -> list[Json]:
        self._spend(count)
        self._memory.charge(_ELEMENT_MEMORY * count)
        kind = _TYPED[code]
        places = range(target, target + count * width, width)
        if kind is _Type.KEY:
            return [self._key(self._target(at, width)) for at in places]
        return [self._scalar(at, width, kind) for at in places]

    def _vector(self, target: int, width: int, end: int, depth: int) -> list[Json]:
        count = self._size(target, width, end)
        types = target + count * width
        self._inside(types, count, end)
        self._spend(count)
        self._memory.charge(_ELEMENT_MEMORY * count)
        return [
            self._value(target + n * width, width, self._data[types + n], target, depth)
            for n in range(count)
        ]

    def _map(self, target: int, width: int, end: int, depth: int) -> dict[str, Json]:
        self._inside(target - 3 * width, 3 * width, end)
        key_width = int.from_bytes(self._data[target - 2 * width : target - width], "little")
        if key_width not in _WIDTHS:
            self._fail("the keys of a map have an impossible width")
        keys_at = self._target(target - 3 * width, width)
        names = self._typed(
            keys_at, key_width, _Type.VECTOR_KEY, self._size(keys_at, key_width, end)
        )
        values = self._vector(target, width, end, depth)
        found = {str(name): value for name, value in zip(names, values, strict=False)}
        if not len(names) == len(values) == len(found):
            self._fail("a map has a key twice, or not as many keys as values")
        return found

    def _spend(self, cost: int) -> None:
        self._purse -= cost
        if self._purse < 0:
            self._fail("its parts are shared so much that it unpacks to far more than its size")

    def _fail(self, problem: str) -> NoReturn:
        raise FormatError(f"{self._where}: not a valid FlexBuffers value: {problem}")


class _Slot:
    """An element of a container: a number, or a reference to something already written."""

    __slots__ = ("code", "least", "number", "target", "width")

    def __init__(
        self,
        code: _Type,
        *,
        number: int | float = 0,
        target: int | None = None,
        least: int = 1,
        width: int = 1,
    ) -> None:
        self.code = code
        self.number = number
        self.target = target
        self.least = least
        """Narrowest width of a container that can hold the number."""
        self.width = width
        """Width inside the target."""

    def fits(self, at: int, width: int) -> bool:
        """Whether a container of `width` bytes per element can hold this at `at`."""
        if self.target is None:
            return width >= self.least
        return at - self.target < 1 << 8 * width

    def render(self, at: int, width: int) -> bytes:
        """The bytes of the element."""
        if self.target is not None:
            return (at - self.target).to_bytes(width, "little")
        if isinstance(self.number, float):
            return _FLOATS[width].pack(self.number)
        return self.number.to_bytes(width, "little", signed=self.code is _Type.INT)

    def packed(self, parent_width: int) -> int:
        """The byte with its type and width."""
        width = parent_width if self.target is None else self.width
        return self.code << 2 | width.bit_length() - 1


class _Writer:
    __slots__ = ("_data", "_keys")

    def __init__(self) -> None:
        self._data = bytearray()
        self._keys: dict[bytes, int] = {}

    def root(self, value: object) -> bytes:
        slot = self._slot(value, 0)
        width = self._width([slot], 0)
        self._align(width)
        self._data += slot.render(len(self._data), width)
        self._data += bytes((slot.packed(width), width))
        return bytes(self._data)

    def _slot(self, value: object, depth: int) -> _Slot:
        match value:
            case None:
                return _Slot(_Type.NULL)
            case bool():
                return _Slot(_Type.BOOL, number=int(value))
            case int():
                return _integer(value)
            case float():
                return _float(value)
            case str():
                return self._text(value)
        if depth >= MAX_DEPTH:
            raise _unstorable(f"it is nested more than {MAX_DEPTH} deep")
        match value:
            case list() | tuple():
                return self._vector([self._slot(item, depth + 1) for item in value])
            case dict():
                return self._map(value, depth + 1)
        raise _unstorable(f"{type(value).__name__} is not a JSON value")

    def _text(self, value: str) -> _Slot:
        data = _utf8(value)
        width = next(width for width in _WIDTHS if len(data) < 1 << 8 * width)
        self._align(width)
        self._data += len(data).to_bytes(width, "little")
        at = len(self._data)
        self._data += data + b"\0"
        return _Slot(_Type.STRING, target=at, width=width)

    def _vector(self, slots: list[_Slot]) -> _Slot:
        width = self._width(slots, 1)
        self._align(width)
        self._data += len(slots).to_bytes(width, "little")
        at = self._elements(slots, width)
        return _Slot(_Type.VECTOR, target=at, width=width)

    def _map(self, value: dict[object, object], depth: int) -> _Slot:
        items = sorted((self._name(name), item) for name, item in value.items()) if value else []
        slots = [self._slot(item, depth) for _, item in items]
        keys = [_Slot(_Type.KEY, target=self._key(name)) for name, _ in items]
        key_width = self._width(keys, 1)
        self._align(key_width)
        self._data += len(keys).to_bytes(key_width, "little")
        keys_at = len(self._data)
        for slot in keys:
            self._data += slot.render(len(self._data), key_width)
        prefix = _Slot(_Type.VECTOR_KEY, target=keys_at)
        width = self._width([prefix, *[_Slot(_Type.UINT)] * 2, *slots], 0)
        self._align(width)
        self._data += prefix.render(len(self._data), width)
        self._data += key_width.to_bytes(width, "little")
        self._data += len(slots).to_bytes(width, "little")
        at = self._elements(slots, width)
        return _Slot(_Type.MAP, target=at, width=width)

    def _elements(self, slots: list[_Slot], width: int) -> int:
        at = len(self._data)
        for slot in slots:
            self._data += slot.render(len(self._data), width)
        self._data += bytes(slot.packed(width) for slot in slots)
        return at

    def _width(self, slots: list[_Slot], ahead: int) -> int:
        """The narrowest width that fits every element, `ahead` elements from here."""
        start = len(self._data)
        for width in _WIDTHS:
            first = start + -start % width + ahead * width
            if len(slots) + 1 < 1 << 8 * width and all(
                slot.fits(first + n * width, width) for n, slot in enumerate(slots)
            ):
                return width
        raise _unstorable("it is too large")

    def _align(self, width: int) -> None:
        self._data += bytes(-len(self._data) % width)

    @staticmethod
    def _name(name: object) -> bytes:
        if not isinstance(name, str):
            raise _unstorable(f"a key is {type(name).__name__}, not text")
        if "\0" in name:
            raise _unstorable("a key contains a NUL character")
        return _utf8(name)

    def _key(self, name: bytes) -> int:
        at = self._keys.get(name)
        if at is None:
            at = self._keys[name] = len(self._data)
            self._data += name + b"\0"
        return at


def _integer(value: int) -> _Slot:
    if not -(1 << 63) <= value <= _U64:
        raise _unstorable("a whole number needs more than 64 bits")
    if value >= 0:
        least = next(width for width in _WIDTHS if value < 1 << 8 * width)
        return _Slot(_Type.UINT, number=value, least=least)
    least = next(width for width in _WIDTHS if value >= -(1 << 8 * width - 1))
    return _Slot(_Type.INT, number=value, least=least)


def _float(value: float) -> _Slot:
    if not math.isfinite(value):
        raise _unstorable(f"{value} is not a JSON number")
    value = float(value)
    try:
        exact = _FLOATS[4].unpack(_FLOATS[4].pack(value))[0] == value
    except OverflowError:
        exact = False
    return _Slot(_Type.FLOAT, number=value, least=4 if exact else 8)


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise _unstorable("a text is not valid Unicode") from None


def _unstorable(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"this value cannot be stored as FlexBuffers: {problem}", kind=Kind.INVALID_METADATA
    )
