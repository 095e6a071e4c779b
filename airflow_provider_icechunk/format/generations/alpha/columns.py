"""Lists of MessagePack values checked and turned into columns, without a step per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import FormatError
from airflow_provider_icechunk.format.wire.messagepack import Value

_T = TypeVar("_T")
_Unsigned = TypeVar("_Unsigned", np.uint32, np.uint64)


def typed(values: Sequence[Value], expected: type[_T], what: str, where: str) -> Sequence[_T]:
    """The same values, all of exactly one type; a boolean is no number."""
    if not set(map(type, values)) <= {expected}:
        raise FormatError(f"{where}: {what} is not of type {expected.__name__}")
    return cast("Sequence[_T]", values)


def numbers(
    values: Sequence[Value], dtype: type[_Unsigned], what: str, where: str
) -> NDArray[_Unsigned]:
    """A column of unsigned integers."""
    integers = typed(values, int, what, where)
    try:
        return np.fromiter(integers, dtype, len(integers))
    except OverflowError:
        most = np.iinfo(dtype).max
        raise FormatError(f"{where}: {what} is not within 0 and {most}") from None
