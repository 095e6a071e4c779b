"""Dimensions of an array by name or by number, and the parts of them that are chosen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, TypeVar

import zarr

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.plan import Span

DimensionKey = str | int
"""The name of a dimension, or its number; the number may be text, as in the keys of JSON."""
Part = int | tuple[int, int] | slice
"""A position, or from the first up to, not including, the second."""
Parts = Mapping[str, Part] | Mapping[int, Part] | Mapping[DimensionKey, Part]
"""Parts of an array, by dimension; all of it along the others."""
Chosen = TypeVar("Chosen")


def dimension_names(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of the dimensions; `dim_0`, `dim_1`... where the array gives none."""
    given = getattr(array.metadata, "dimension_names", None) or (None,) * array.ndim
    return tuple(name or f"dim_{axis}" for axis, name in enumerate(given))


def axis_of(key: object, names: Sequence[str], where: str) -> int:
    """The number of the dimension that a key means; a name goes before a number in text.

    :param where: the array, for the words of a refusal.
    """
    if isinstance(key, str) and names.count(key) == 1:
        return names.index(key)
    if isinstance(key, str) and key.isascii() and key.isdigit() and key not in names:
        key = int(key)
    number = None if isinstance(key, bool | str) else _whole(key)
    if number is None or not 0 <= number < len(names):
        several = "more than one dimension" if key in names else "no dimension"
        raise InvalidInputError(
            f"{where} has {several} {key!r}; it has {_listed(names)}: name one of them, or give "
            "its number"
        )
    return number


def by_axis(chosen: Mapping[Any, Chosen], names: Sequence[str], where: str) -> dict[int, Chosen]:
    """What was chosen, by number of dimension; refuses a dimension that is named twice."""
    found: dict[int, Chosen] = {}
    for key, value in chosen.items():
        axis = axis_of(key, names, where)
        if axis in found:
            raise InvalidInputError(f"dimension {names[axis]!r} of {where} is selected twice")
        found[axis] = value
    return found


def span_of(part: object, name: str, length: int) -> Span:
    """The positions that a part of a dimension means; refuses what lies outside of it."""
    ends: tuple[object, ...]
    if isinstance(part, slice) and part.step in (None, 1):
        ends = (0 if part.start is None else part.start, length if part.stop is None else part.stop)
    elif isinstance(part, tuple | list):
        ends = tuple(part)
    else:
        ends = (part, None if (first := _whole(part)) is None else first + 1)
    whole = [_whole(end) for end in ends]
    if len(whole) != 2 or whole[0] is None or whole[1] is None:
        raise InvalidInputError(
            f"{part!r} is not a part of dimension {name!r}: give a position, or (first, one after "
            "the last)"
        )
    start, stop = whole[0], whole[1]
    if not 0 <= start <= stop <= length:
        raise InvalidInputError(
            f"positions {start} to {stop} do not lie in dimension {name!r} of {length}"
        )
    return start, stop


def _whole(value: object) -> int | None:
    """An integer of Python's or NumPy's; True is none."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _listed(names: Sequence[str]) -> str:
    return "no dimensions" if not names else f"the dimensions {', '.join(map(repr, names))}"
