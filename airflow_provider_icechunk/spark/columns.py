"""The Spark and Arrow types of array values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import UnsupportedError

_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "b1": ("boolean", pa.bool_()),
    "i1": ("byte", pa.int8()),
    "i2": ("short", pa.int16()),
    "i4": ("int", pa.int32()),
    "i8": ("long", pa.int64()),
    "u1": ("short", pa.int16()),
    "u2": ("int", pa.int32()),
    "u4": ("long", pa.int64()),
    "f2": ("float", pa.float32()),
    "f4": ("float", pa.float32()),
    "f8": ("double", pa.float64()),
}
TIME = ("timestamp", pa.timestamp("us", tz="UTC"))
TEXT = ("string", pa.string())
NUMBERS = ("array<long>", pa.list_(pa.field("element", pa.int64())))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a frame."""

    name: str
    spark: str
    """The type in Spark's schema syntax."""
    arrow: pa.DataType


def column_for(name: str, dtype: np.dtype[Any]) -> Column:
    """The column for values of a type; unsigned integers use the next wider signed type."""
    if dtype.kind == "M":
        return Column(name, *TIME)
    if dtype.kind in "UT":
        return Column(name, *TEXT)
    known = _TYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if known is None:
        raise UnsupportedError(
            f"Spark has no type for the values of {name!r}, which are {dtype}: read it with "
            'layout="chunks", or leave it out with `variables`'
        )
    return Column(name, *known)


CHUNK_COLUMNS = (
    Column("array", *TEXT),
    Column("chunk", *NUMBERS),
    Column("start", *NUMBERS),
    Column("shape", *NUMBERS),
    Column("data", "binary", pa.binary()),
)
"""One row per chunk: its index, start and shape, and its values in C order."""


def spark_schema(columns: tuple[Column, ...]) -> str:
    """The columns as a Spark schema."""
    return ", ".join(f"`{column.name.replace('`', '``')}` {column.spark}" for column in columns)


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """The columns as an Arrow schema."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def to_arrow(
    values: NDArray[Any], column: Column, absent: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Array values as an Arrow column.

    :param absent: where there is no value, which becomes NULL.
    """
    if column.arrow == TIME[1]:
        times = values.astype("datetime64[us]")
        return pa.array(times, pa.timestamp("us"), mask=absent).cast(column.arrow)
    if column.arrow == TEXT[1]:
        return pa.array([str(value) for value in values], column.arrow)
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    if native.dtype == np.float16:
        native = native.astype(np.float32)
    return pa.array(native, mask=absent).cast(column.arrow)


def lists(rows: NDArray[np.int64]) -> pa.Array:
    """Each row of a matrix as a list."""
    count, width = rows.shape
    borders = pa.array(np.arange(count + 1, dtype=np.int32) * width, pa.int32())
    return pa.ListArray.from_arrays(borders, pa.array(rows.reshape(-1)), type=NUMBERS[1])
