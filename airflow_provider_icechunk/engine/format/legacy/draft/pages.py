"""What the page headers of a Parquet file announce, read before anything is unpacked.

The footer has sizes as well, but they are not enforced: pyarrow allocates what the header of each
page says. Headers and footer use Thrift's compact protocol. They are parsed here and not by the
library, which aborts the process when asked about columns of a damaged footer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_icechunk.exceptions import FormatError

_MAGIC = b"PAR1"
_ROW_GROUPS, _COLUMNS, _COLUMN = 4, 1, 3
_PATH, _DICTIONARY_OFFSET = 3, 11
_CLAIMS = (1, 5, 7, 9)
"""Fields of a column: its physical type, number of values, number of bytes, and position."""
_TEXTS = (6, 7)
_MOST_PAGES = 1 << 17
_MOST_DEPTH = 8
_LONGEST_HEADER = 1 << 16
_BOOLEANS, _LISTS, _STRUCT, _BINARY, _DOUBLE, _BYTE = (1, 2), (9, 10), 12, 8, 7, 3
_INTEGERS = (4, 5, 6)
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8
"""Fields of a page header that describe one kind of page; the first member of each is a count."""
_ENCODINGS = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}
_DELTA_BYTE_ARRAY = 7

Fields = dict[int, Any]


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one column, of all row groups."""

    path: str
    holds_bytes: bool
    values: int
    """Values in data pages, gaps included."""
    unpacked: int
    """Bytes of all pages."""
    largest: int
    """Bytes of the largest page: no value is larger, unless values share their beginnings."""
    shares: bool
    """Whether values may share their beginnings."""


def survey(data: bytes, *, where: str) -> list[Pages]:
    """The pages of all columns of a file."""
    size = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - size
    if start < 4 or data[-4:] != _MAGIC:
        raise FormatError(f"{where}: it does not end as a Parquet file does")
    footer, _ = _parse(data, start, len(data) - 8, where)
    found: dict[str, Pages] = {}
    for group in _items(footer, _ROW_GROUPS, where):
        for column in _items(group, _COLUMNS, where):
            pages = _column(data, column.get(_COLUMN), where)
            known = found.get(pages.path)
            found[pages.path] = pages if known is None else _joined(known, pages)
    return list(found.values())


def _items(fields: Fields, number: int, where: str) -> list[Fields]:
    items = fields.get(number, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise FormatError(f"{where}: its footer is damaged")
    return items


def _joined(one: Pages, other: Pages) -> Pages:
    return Pages(
        one.path,
        one.holds_bytes,
        one.values + other.values,
        one.unpacked + other.unpacked,
        max(one.largest, other.largest),
        one.shares or other.shares,
    )


def _column(data: bytes, about: object, where: str) -> Pages:
    """The pages of a column in one row group, given its entry in the footer."""
    fields = about if isinstance(about, dict) else {}
    numbers = [number for number in map(fields.get, _CLAIMS) if isinstance(number, int)]
    first, path = fields.get(_DICTIONARY_OFFSET), fields.get(_PATH)
    if not isinstance(path, list) or len(numbers) != len(_CLAIMS):
        raise FormatError(f"{where}: its footer does not describe a column")
    kind, claimed, size, start = numbers
    name = b".".join(part for part in path if isinstance(part, bytes)).decode("utf-8", "replace")
    if claimed <= 0:
        # Nothing of it is ever read; writers leave its place at 0.
        return Pages(name, kind in _TEXTS, 0, 0, 0, shares=False)
    if isinstance(first, int) and 0 < first < start:
        start = first
    stop = start + size
    if start < 0 or stop > len(data) or stop < start:
        raise FormatError(f"{where}: a column lies outside the file")
    values = unpacked = largest = 0
    shares = False
    at = start
    for _ in range(_MOST_PAGES):
        if at >= stop:
            break
        header, at = _parse(data, at, min(stop, at + _LONGEST_HEADER), where)
        page, packed = header.get(2, 0), header.get(3, 0)
        if not isinstance(page, int) or not isinstance(packed, int) or min(page, packed) < 0:
            raise FormatError(f"{where}: a page has an impossible size")
        at += packed
        unpacked += page
        largest = max(largest, page)
        for number in (_DATA, _DICTIONARY, _DATA_2):
            details = header.get(number)
            if isinstance(details, dict):
                count = details.get(1, 0)
                values += count if isinstance(count, int) and number != _DICTIONARY else 0
                shares |= details.get(_ENCODINGS[number]) == _DELTA_BYTE_ARRAY
    else:
        raise FormatError(f"{where}: a column has more than {_MOST_PAGES} pages")
    return Pages(name, kind in _TEXTS, max(values, claimed), unpacked, largest, shares)


def _parse(data: bytes, start: int, stop: int, where: str) -> tuple[Fields, int]:
    """A structure in Thrift's compact form, by the numbers of its fields, and where it ends."""
    piece = data[start:stop]
    try:
        fields, size = _struct(piece, 0, 0)
    except (IndexError, _DamagedError):
        # Whoever reads past the end of the piece raises an `IndexError`: no position is negative.
        raise FormatError(f"{where}: its footer or the header of a page is damaged") from None
    return fields, start + size


class _DamagedError(Exception):
    """What is there is not Thrift."""


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
        fields[number], at = _value(kind, data, at, depth)
    return fields, at + 1


def _value(kind: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _signed(data, at)
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
    # In lists a boolean takes a byte, which in structures it shares with its number.
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
