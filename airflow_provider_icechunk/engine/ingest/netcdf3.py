"""What a NetCDF3 file holds (classic, 64-bit offsets, 64-bit data): its header, nothing else.

Values are big-endian and not compressed. A variable without the record dimension is one piece; in
one with it, each record is a piece, between the records of others.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError

from .contents import FileVariable, Json, Ranges, for_xarray

MAGIC = b"CDF"
_TYPES = {
    1: "|i1", 2: "|S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8",
    7: "|u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8",
}  # fmt: skip
_FILLS: dict[str, float] = {
    "|i1": -127, ">i2": -32767, ">i4": -2147483647, ">f4": 9.969209968386869e36,
    ">f8": 9.969209968386869e36, "|u1": 255, ">u2": 65535, ">u4": 4294967295,
    ">i8": -9223372036854775806, ">u8": 18446744073709551614,
}  # fmt: skip
"""What NetCDF fills unwritten cells with, unless the variable says otherwise."""
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_STREAMING = 0xFFFFFFFF
_MOST_HEADER = 64 << 20
_MOST_ITEMS = 100_000
_MOST_RECORDS = 100_000_000


@dataclass(frozen=True, slots=True)
class _Variable:
    dtype: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    """With 0 for the record dimension."""
    is_record: bool
    begin: int
    attributes: dict[str, Json]

    @property
    def piece(self) -> int:
        """Bytes of all values, or of those of one record."""
        lengths = self.shape[1:] if self.is_record else self.shape
        return math.prod(lengths) * np.dtype(self.dtype).itemsize


class NetCdf3Content:
    """An open NetCDF3 file."""

    def __init__(self, file: Any, where: str, size: int) -> None:
        self._file = cast("BinaryIO", file)
        self._where = where
        header = _Header(self._file, where)
        self._attributes = header.attributes
        self._variables = header.variables
        records = [one for one in header.variables.values() if one.is_record]
        # Records are padded to four bytes, unless there is nothing beside them.
        padded = sum(-(-one.piece // 4) * 4 for one in records)
        self._step = records[0].piece if len(records) == 1 else padded
        begin = min((one.begin for one in records), default=size)
        streamed = (size - begin) // self._step if self._step else 0
        self._records: int = streamed if header.records is None else header.records
        if self._records > _MOST_RECORDS:
            raise InvalidInputError(f"{where}: {self._records} records are too many to refer to")
        for name, one in header.variables.items():
            last = one.begin + one.piece
            if one.is_record:
                last += (self._records - 1) * self._step
            if last > size and 0 not in self._shape(one):
                raise InvalidInputError(f"{where}: the file ends before the values of {name!r} do")

    def variables(self) -> dict[str, FileVariable]:
        """All variables by their name."""
        return {name: self._described(one) for name, one in self._variables.items()}

    def groups(self) -> dict[str, dict[str, Json]]:
        """Attributes of the only group."""
        return {"": self._attributes}

    def values(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """The stored values of a variable, or those between two positions of its first axis."""
        one = self._variables[name]
        shape = self._shape(one)
        if not shape:
            return self._read(one, one.begin, one.piece).reshape(())
        first, last, _ = slice(start, stop).indices(shape[0])
        shape = (max(0, last - first), *shape[1:])
        if not one.is_record:
            row = math.prod(shape[1:]) * np.dtype(one.dtype).itemsize
            return self._read(one, one.begin + first * row, shape[0] * row).reshape(shape)
        parts = [
            self._read(one, one.begin + number * self._step, one.piece)
            for number in range(first, last)
        ]
        return np.concatenate([np.zeros(0, one.dtype), *parts]).reshape(shape)

    def ranges(self, name: str) -> Ranges:
        """The pieces of a variable."""
        one = self._variables[name]
        count = self._records if one.is_record else 1
        if not one.piece:
            count = 0
        index = np.zeros((count, len(one.shape)), np.uint32)
        offset = np.full(count, one.begin, np.uint64)
        if one.is_record:
            index[:, 0] = np.arange(count)
            offset += np.arange(count, dtype=np.uint64) * np.uint64(self._step)
        return Ranges(index, offset, np.full(count, one.piece, np.uint64))

    def _shape(self, one: _Variable) -> tuple[int, ...]:
        return (self._records, *one.shape[1:]) if one.is_record else one.shape

    def _read(self, one: _Variable, start: int, length: int) -> NDArray[Any]:
        self._file.seek(start)
        return np.frombuffer(self._file.read(length), one.dtype)

    def _described(self, one: _Variable) -> FileVariable:
        dtype = np.dtype(one.dtype)
        shape = self._shape(one)
        chunks = (1, *one.shape[1:]) if one.is_record else one.shape
        if one.dtype not in _FILLS:
            return FileVariable(
                "char", shape, chunks, (), "", one.dimensions, one.attributes,
                "text of single characters has no counterpart in Zarr",
            )  # fmt: skip
        given = one.attributes.get("_FillValue")
        fill = _FILLS[one.dtype]
        if isinstance(given, int | float) and not isinstance(given, bool):
            fill = given
        elif given == "NaN":
            fill = math.nan
        return FileVariable(
            dtype=one.dtype,
            shape=shape,
            chunks=tuple(max(1, length) for length in chunks),
            codecs=(),
            fill=np.array(fill, dtype).tobytes().hex(),
            dimensions=one.dimensions,
            attributes=for_xarray(one.attributes, dtype),
            contiguous=not one.is_record,
        )


class _Header:
    """Reads the header; no number in it can be trusted."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where
        file.seek(0)
        version = file.read(4)[3]
        if version not in (1, 2, 5):
            raise UnsupportedError(f"{where}: version {version} of NetCDF3 is not known")
        self._wide = version == 5
        self._offset = ">I" if version == 1 else ">Q"
        records = self._number()
        streaming = (1 << 64) - 1 if self._wide else _STREAMING
        self.records = None if records == streaming else records
        dimensions = [(self._name(), self._number()) for _ in range(self._list(_DIMENSIONS))]
        self.attributes = self._attributes()
        self.variables = dict(self._variable(dimensions) for _ in range(self._list(_VARIABLES)))

    def _variable(self, dimensions: list[tuple[str, int]]) -> tuple[str, _Variable]:
        name = self._name()
        numbers = [self._number() for _ in range(self._count(self._number(), 64))]
        if any(number >= len(dimensions) for number in numbers):
            raise self._damaged(f"{name!r} has a dimension that is none")
        attributes = self._attributes()
        kind = self._type()
        self._number()  # the size, which is wrong for large variables; shapes give it
        begin = struct.unpack(self._offset, self._bytes(struct.calcsize(self._offset)))[0]
        shape = tuple(dimensions[number][1] for number in numbers)
        is_record = bool(shape) and shape[0] == 0
        if 0 in shape[1:]:
            raise self._damaged(f"the record dimension of {name!r} is not its first")
        names = tuple(dimensions[number][0] for number in numbers)
        return name, _Variable(kind, names, shape, is_record, begin, attributes)

    def _attributes(self) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for _ in range(self._list(_ATTRIBUTES)):
            name = self._name()
            dtype = np.dtype(self._type())
            count = self._number()
            raw = self._padded(count * dtype.itemsize)
            if dtype.kind == "S":
                found[name] = raw.decode("utf-8", "replace").rstrip("\0")
            else:
                items = [_plain(one) for one in np.frombuffer(raw, dtype).tolist()]
                found[name] = items[0] if len(items) == 1 else items
        return found

    def _list(self, wanted: int) -> int:
        tag = struct.unpack(">I", self._bytes(4))[0]
        count = self._number()
        if tag != wanted and (tag, count) != (0, 0):
            raise self._damaged("a list has another kind than it should")
        return self._count(count, _MOST_ITEMS)

    def _count(self, count: int, most: int) -> int:
        if count > most:
            raise self._damaged(f"it lists {count} things where at most {most} make sense")
        return count

    def _type(self) -> str:
        number = struct.unpack(">I", self._bytes(4))[0]
        if number not in _TYPES:
            raise self._damaged(f"there is no type {number}")
        return _TYPES[number]

    def _number(self) -> int:
        kind = ">Q" if self._wide else ">I"
        return int(struct.unpack(kind, self._bytes(struct.calcsize(kind)))[0])

    def _name(self) -> str:
        return self._padded(self._number()).decode("utf-8")

    def _padded(self, length: int) -> bytes:
        return self._bytes(-(-length // 4) * 4)[:length]

    def _bytes(self, length: int) -> bytes:
        if self._file.tell() + length > _MOST_HEADER:
            raise self._damaged("its header is larger than headers are")
        found = self._file.read(length)
        if len(found) < length:
            raise self._damaged("its header is cut off")
        return found

    def _damaged(self, why: str) -> InvalidInputError:
        return InvalidInputError(f"{self._where}: this NetCDF3 file is damaged: {why}")


def _plain(value: float) -> Json:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
