"""What the page headers of a Parquet file announce, read before anything is unpacked.

The footer has sizes as well, but they are not enforced: pyarrow allocates what the header of each
page says. Headers and footer use Thrift's compact protocol. They are parsed here and not by the
library, which aborts the process when asked about columns of a damaged footer. Whatever the library
could understand differently is refused: it skips fields whose type it does not expect, lets later
fields replace earlier ones, and cuts numbers to the width of their type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_icechunk.exceptions import FormatError

_MAGIC = b"PAR1"
_ROW_GROUPS, _COLUMNS, _COLUMN = 4, 1, 3
_CLAIMS = (5, 7, 9)
"""Fields of a column: its number of values, number of bytes, and position."""
_DICTIONARY_OFFSET = 11
_MOST_DEPTH = 8
_LONGEST_HEADER = 1 << 16
_BOOLEANS, _LISTS, _STRUCT, _BINARY, _DOUBLE, _BYTE = (1, 2), (9, 10), 12, 8, 7, 3
_INTEGERS = {4: 16, 5: 32, 6: 64}
"""Bits of the integer types."""
_LAST_FIELD = (1 << 15) - 1
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8
"""Fields of a page header that describe one kind of page; the first member of each is a count."""
_ENCODINGS = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}
_DELTA_BYTE_ARRAY = 7

Fields = dict[int, Any]


class Long(int):
    """A number stored with 64 bits; elsewhere it is ignored."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one column, of all row groups."""

    values: int
    """Values in data pages, gaps included."""
    entries: int
    """Values in dictionaries."""
    unpacked: int
    """Bytes of all pages."""
    largest: int
    """Bytes of the largest page: no value is larger, unless values share their beginnings."""
    shares: bool
    """Whether values may share their beginnings."""


_NONE = Pages(0, 0, 0, 0, shares=False)


def survey(data: bytes, *, where: str) -> list[Pages]:
    """The pages of all columns of a file, in the order of its schema.

    A column's own entry also has a name and a type, which the library ignores.
    """
    size = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - size
    if start < 4 or data[-4:] != _MAGIC:
        raise FormatError(f"{where}: it does not end as a Parquet file does")
    footer, _ = _parse(data, start, len(data) - 8, where)
    surveyor = _Surveyor(data, start, where)
    found: list[Pages] = []
    for group in surveyor.items(footer, _ROW_GROUPS):
        for number, column in enumerate(surveyor.items(group, _COLUMNS)):
            found += [_NONE] * (number + 1 - len(found))
            found[number] = _joined(found[number], surveyor.column(column.get(_COLUMN)))
    return found


def _joined(one: Pages, other: Pages) -> Pages:
    return Pages(
        one.values + other.values,
        one.entries + other.entries,
        one.unpacked + other.unpacked,
        max(one.largest, other.largest),
        one.shares or other.shares,
    )


class _Surveyor:
    """Looks at the pages of one file, at every byte at most once."""

    def __init__(self, data: bytes, end: int, where: str) -> None:
        self._data = data
        self._left = end
        self._where = where

    def items(self, fields: Fields, number: int) -> list[Fields]:
        """The structures in a list."""
        items = fields.get(number, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self._damaged("its footer is damaged")
        return items

    def column(self, about: object) -> Pages:
        """The pages of a column in one row group, given its entry in the footer."""
        fields = about if isinstance(about, dict) else {}
        numbers = [number for number in map(fields.get, _CLAIMS) if type(number) is Long]
        first = fields.get(_DICTIONARY_OFFSET, Long(0))
        if len(numbers) != len(_CLAIMS) or type(first) is not Long:
            raise self._damaged("its footer does not describe a column")
        claimed, size, start = numbers
        if claimed <= 0:
            # It is never read; writers leave it at 0.
            return _NONE
        if 0 < first < start:
            start = first
        if start < 0 or size < 0 or start + size > len(self._data):
            raise self._damaged("a column lies outside the file")
        self._left -= size
        if self._left < 0:
            raise self._damaged("its columns overlap")
        found = self._pages(start, start + size)
        return replace(found, values=max(found.values, claimed))

    def _pages(self, at: int, stop: int) -> Pages:
        values = entries = unpacked = largest = 0
        shares = False
        while at < stop:
            header, at = _parse(self._data, at, min(stop, at + _LONGEST_HEADER), self._where)
            page, packed = self._size(header.get(2)), self._size(header.get(3))
            at += packed
            unpacked += page
            largest = max(largest, page)
            for number, encoding in _ENCODINGS.items():
                details = header.get(number)
                if isinstance(details, dict):
                    count = self._size(details.get(1))
                    values += count if number != _DICTIONARY else 0
                    entries += count if number == _DICTIONARY else 0
                    shares |= details.get(encoding) == _DELTA_BYTE_ARRAY
        return Pages(values, entries, unpacked, largest, shares)

    def _size(self, number: object) -> int:
        if type(number) is not int or number < 0:
            raise self._damaged("a page has an impossible size")
        return number

    def _damaged(self, problem: str) -> FormatError:
        return FormatError(f"{self._where}: {problem}")


def _parse(data: bytes, start: int, stop: int, where: str) -> tuple[Fields, int]:
    """A structure in Thrift's compact form, by the numbers of its fields, and where it ends."""
    piece = data[start:stop]
    try:
        fields, size = _struct(piece, 0, 0)
    except (IndexError, _DamagedError):
        # Reading past the end of the piece raises an `IndexError`: no position is negative.
        raise FormatError(f"{where}: its footer or the header of a page is damaged") from None
    return fields, start + size


class _DamagedError(Exception):
    """The bytes are not valid Thrift."""


def _struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    fields: Fields = {}
    number = 0
    while head := data[at]:
        step, kind = head >> 4, head & 15
        at += 1
        if step:
            number += step
        else:
            number, at = _signed(data, at)
        if number in fields or not 0 < number <= _LAST_FIELD:
            raise _DamagedError
        fields[number], at = _value(kind, data, at, depth)
    return fields, at + 1


def _value(kind: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    bits = _INTEGERS.get(kind)
    if bits:
        number, at = _signed(data, at)
        if number >> bits - 1 not in (0, -1):
            raise _DamagedError
        return Long(number) if bits == 64 else number, at
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        return _bytes(data, at, size)
    if kind in _BOOLEANS:
        return kind == 1, at
    if kind == _BYTE:
        return data[at], at + 1
    if kind == _DOUBLE:
        return _bytes(data, at, 8)
    if depth < _MOST_DEPTH:
        if kind == _STRUCT:
            return _struct(data, at, depth + 1)
        if kind in _LISTS:
            return _list(data, at, depth + 1)
    raise _DamagedError


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    head = data[at]
    count, kind, at = head >> 4, head & 15, at + 1
    if count == 15:
        count, at = _unsigned(data, at)
    if count > len(data) - at:
        raise _DamagedError
    # In lists a boolean takes a whole byte; in structures it shares one with its number.
    kind = _BYTE if kind in _BOOLEANS else kind
    items = []
    for _ in range(count):
        item, at = _value(kind, data, at, depth)
        items.append(item)
    return items, at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _DamagedError


def _signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return number >> 1 ^ -(number & 1), at


def _bytes(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise _DamagedError
    return data[at : at + size], at + size
