"""Leave out what filters on dimensions exclude, before anything is read.

A filter is evaluated on the values that the frame would show. If the passing ones are adjacent, the
read is narrowed to them and the filter is done; otherwise it is narrowed to the range from the
first to the last, and Spark filters the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.regions import Span
from airflow_provider_icechunk.spark.columns import Column, to_arrow

from .plan import PlannedRead

Operator = Literal["=", "<", "<=", ">", ">=", "in", "is not null"]
_COMPUTE = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class ColumnFilter:
    """A column compared with a value; with several for `in`, with none for `is not null`."""

    column: str
    operator: Operator
    value: Any = None


def prune(
    reading: PlannedRead, filters: Sequence[ColumnFilter | None]
) -> tuple[PlannedRead, list[int]]:
    """The read narrowed by filters, and the numbers of those that still have to be applied."""
    axes = {dimension.column.name: axis for axis, dimension in enumerate(reading.dimensions)}
    spans: dict[int, Span] = {}
    left = []
    for number, one in enumerate(filters):
        axis = None if one is None else axes.get(one.column)
        if one is None or axis is None:
            left.append(number)
            continue
        start, stop = spans.get(axis, reading.box[axis])
        values, absent = reading.labels(axis, (start, stop))
        column = reading.dimensions[axis].column
        passing = _passing(to_arrow(values, column, absent), column, one)
        if passing is None:
            left.append(number)
            continue
        places = np.flatnonzero(passing)
        first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        spans[axis] = (start + first, start + last)
        if last - first > len(places):
            left.append(number)
    return reading.narrowed(spans), left


def _passing(values: pa.Array, column: Column, one: ColumnFilter) -> NDArray[np.bool_] | None:
    """Which values pass; `None` if Spark's result cannot be reproduced."""
    if one.operator == "is not null":
        return np.asarray(pc.is_valid(values))
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return None  # Spark treats it as larger than every number, and equal to itself.
    try:
        if one.operator == "in":
            wanted = pa.array([_plain(value, column) for value in one.value], values.type)
            passing = pc.is_in(values, wanted, skip_nulls=True)
        else:
            wanted = pa.scalar(_plain(one.value, column), values.type)
            passing = _COMPUTE[one.operator](values, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
        return None
    return np.asarray(pc.fill_null(passing, False))


def _plain(value: Any, column: Column) -> Any:
    """A value that Arrow accepts for the column's type without a change of meaning."""
    if value is None or value != value:
        raise ValueError("no value is equal to this one")
    if pa.types.is_timestamp(column.arrow) and getattr(value, "tzinfo", None) is None:
        raise ValueError("a time without a time zone")
    return value
