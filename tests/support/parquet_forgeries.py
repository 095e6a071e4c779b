"""Parquet inventories of generation `draft` made byte by byte, with what no library would write."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import zstandard

Item = tuple[int, bytes]
"""A value in Thrift's compact form, after the code of its type."""

_BINARY, _LIST, _STRUCT = 8, 9, 12
_INT_32, _INT_64 = 5, 6
_BYTES, _FIXED_BYTES = 6, 7
_PLAIN, _ZSTD, _DICTIONARY_INDEX = 0, 6, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def short(number: int, *, beyond: int = 0) -> Item:
    """A number of 32 bits; `beyond` is added above them, where the library does not look."""
    return _INT_32, _varint((number << 1) + (beyond << 33))


def long(number: int) -> Item:
    return _INT_64, _varint(number << 1)


def _text(value: bytes) -> Item:
    return _BINARY, _varint(len(value)) + value


def _list(items: list[Item]) -> Item:
    return _LIST, bytes([0xF0 | items[0][0]]) + _varint(len(items)) + b"".join(d for _, d in items)


def _struct(*fields: tuple[int, Item]) -> Item:
    body = b"".join(bytes([kind]) + _varint(number << 1) + data for number, (kind, data) in fields)
    return _STRUCT, body + b"\0"


def page(
    kind: int,
    content: bytes,
    count: int,
    *,
    packed: bytes = b"",
    sizes: tuple[tuple[int, Item], ...] = (),
) -> bytes:
    """A page; `sizes` are fields of its header that state the size of its content."""
    encoding = _PLAIN if kind == _DICTIONARY_PAGE else _DICTIONARY_INDEX
    about = _struct((1, short(count)), (2, short(encoding)), (3, short(3)), (4, short(3)))
    packed = packed or zstandard.ZstdCompressor(level=19).compress(content)
    sizes = sizes or ((2, short(len(content))),)
    place = 7 if kind == _DICTIONARY_PAGE else 5
    return _struct((1, short(kind)), *sizes, (3, short(len(packed))), (place, about))[1] + packed


@dataclass(frozen=True)
class Column:
    """A column whose rows all have the first value of a dictionary."""

    name: bytes
    physical: int
    dictionary: bytes
    entries: int = 1
    width: int = 0
    told_type: Item | None = None
    told_name: bytes = b""
    packed: bytes = b""
    """The dictionary's page as it is stored."""
    sizes: tuple[tuple[int, Item], ...] = ()
    empty_pages: int = 0


def text(name: bytes, value: bytes) -> Column:
    return Column(name, _BYTES, struct.pack("<I", len(value)) + value)


def fixed(name: bytes, value: bytes) -> Column:
    return Column(name, _FIXED_BYTES, value, width=len(value))


def number(name: bytes) -> Column:
    return Column(name, 1, bytes(4))


def inventory(rows: int, *columns: Column, groups: int = 1) -> bytes:
    """An inventory with these columns and the required ones; row groups share their pages."""
    named = {one.name: one for one in columns}
    usual = [number(b"id"), number(b"array_id"), text(b"coord", b"\0\0"), number(b"length")]
    every = [named.pop(one.name, one) for one in usual] + list(named.values())
    data = bytearray(b"PAR1")
    schema = [_struct((4, _text(b"schema")), (5, short(len(every))))]
    chunks = []
    for one in every:
        schema.append(
            _struct(
                (1, short(one.physical)), (2, short(one.width)), (3, short(0)), (4, _text(one.name))
            )
        )
        start = len(data)
        data += page(
            _DICTIONARY_PAGE, one.dictionary, one.entries, packed=one.packed, sizes=one.sizes
        )
        values = len(data)
        data += page(_DATA_PAGE, b"\1" + _varint(rows << 1) + b"\0", rows)
        data += page(_DATA_PAGE, b"", 0) * one.empty_pages
        about = _struct(
            (1, one.told_type or short(one.physical)),
            (2, _list([short(_PLAIN), short(_DICTIONARY_INDEX)])),
            (3, _list([_text(one.told_name or one.name)])),
            (4, short(_ZSTD)),
            (5, long(rows)),
            (6, long(len(data) - start)),
            (7, long(len(data) - start)),
            (9, long(values)),
            (11, long(start)),
        )
        chunks.append(_struct((2, long(0)), (3, about)))
    group = _struct((1, _list(chunks)), (2, long(1)), (3, long(rows)))
    footer = _struct(
        (1, short(1)), (2, _list(schema)), (3, long(rows * groups)), (4, _list([group] * groups))
    )[1]
    return bytes(data) + footer + struct.pack("<I", len(footer)) + b"PAR1"
