"""Find the positions of a sorted coordinate between two labels. Pure.

Nothing is cast to the coordinate's type: a cast would cut 2.5 to 2 and make 255 of -1. Numbers are
compared as Python does, which is exact between integers of any size and floats of any width, times
as whole attoseconds. Only the positions that a binary search visits are compared.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError

from .regions import Span

_ATTOSECONDS = {
    "W": 604_800 * 10**18, "D": 86_400 * 10**18, "h": 3_600 * 10**18, "m": 60 * 10**18,
    "s": 10**18, "ms": 10**15, "us": 10**12, "ns": 10**9, "ps": 10**6, "fs": 10**3, "as": 1,
}  # fmt: skip
_KINDS = {
    "b": "numbers", "i": "numbers", "u": "numbers", "f": "numbers",
    "M": "times", "m": "durations",
    "U": "texts", "T": "texts", "S": "bytes",
}  # fmt: skip
_OBJECTS: tuple[tuple[str, type], ...] = (("texts", str), ("bytes", bytes))
_WANTED = {
    "numbers": "a number",
    "times": "a time: a datetime, or a text like 2026-01-31T12:00:00",
    "durations": "a duration: a timedelta",
    "texts": "a text",
    "bytes": "a text",
}
_OFFSET = re.compile(
    r"(?P<local>.+[T ].+?)(?:Z|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)", re.ASCII
)
_BARE_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)", re.ASCII)
_LONG_YEAR = re.compile(r"\d{5}", re.ASCII)


def span_between(name: str, values: NDArray[Any], bounds: object) -> Span:
    """The positions whose values lie between two bounds, both included.

    `None` as the first sets no lower limit, as the second no upper one. A falling coordinate takes
    its bounds in either order.

    :param name: the coordinate, for error messages.
    """
    kind = _kind(values)
    if kind is None or (kind == "durations" and _unit(values.dtype)[0] not in _ATTOSECONDS):
        raise InvalidInputError(
            f"the coordinate {name!r} holds {values.dtype}, which has no order: select with `isel`"
        )
    falling = len(values) > 1 and bool(values[0] > values[-1])
    rising = values[::-1] if falling else values
    # NaN and NaT are not equal to themselves, even if there is only one.
    if not bool(np.all(rising[:-1] <= rising[1:])) or bool(np.any(values[:1] != values[:1])):
        raise InvalidInputError(f"the coordinate {name!r} is not sorted: select with `isel`")
    low, high = (_comparable(name, kind, values.dtype, bound) for bound in _ends(name, bounds))
    if falling and low is not None and high is not None and low > high:
        low, high = high, low
    key = _key(kind, values.dtype)
    start = 0 if low is None else bisect_left(rising, low, key=key)
    stop = len(values) if high is None else bisect_right(rising, high, key=key)
    stop = max(start, stop)
    return (len(values) - stop, len(values) - start) if falling else (start, stop)


def _kind(values: NDArray[Any]) -> str | None:
    """The type of a coordinate; objects are texts or bytes of any length."""
    if values.dtype.kind == "O":
        return next(
            (kind for kind, made in _OBJECTS if all(isinstance(v, made) for v in values)), None
        )
    return _KINDS.get(values.dtype.kind)


def _ends(name: str, bounds: object) -> tuple[Any, Any]:
    # A text of two letters has two parts as well. An open slice means another half of a falling
    # coordinate in Xarray.
    if isinstance(bounds, tuple | list) and len(bounds) == 2:
        return bounds[0], bounds[1]
    raise InvalidInputError(
        f"{bounds!r} does not select a range of {name!r}: give (first, last), both included"
    )


def _key(kind: str, dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """Convert a value of the coordinate for comparison with a bound."""
    if kind not in ("times", "durations"):
        return lambda value: value.item() if isinstance(value, np.generic) else value
    unit, count = _unit(dtype)
    if unit in _ATTOSECONDS:
        scale = _ATTOSECONDS[unit] * count
        return lambda value: int(value.astype(np.int64)) * scale
    # Years and months have no fixed length, but each begins on a day.
    return lambda value: int(value.astype("M8[D]").astype(np.int64)) * _ATTOSECONDS["D"]


def _comparable(name: str, kind: str, dtype: np.dtype[Any], bound: Any) -> Any:
    if isinstance(bound, np.ndarray) and bound.ndim == 0:
        bound = bound[()]
    if bound is None:
        return None
    found: Any
    if kind == "times":
        found = _moment(bound)
    elif kind == "durations":
        found = _duration(bound)
    elif kind == "numbers":
        found = _number(bound, dtype)
    else:
        found = _text(bound, kind)
    if found is None:
        raise InvalidInputError(
            f"the coordinate {name!r} holds {kind} ({dtype}), and {bound!r} cannot be compared "
            f"with them: give {_WANTED[kind]}, or select positions with `isel`"
        )
    return found


def _number(bound: Any, dtype: np.dtype[Any]) -> Any:
    plain = bound.item() if isinstance(bound, np.generic) else bound
    if not isinstance(plain, int | float | Decimal | Fraction):
        return None
    # A signalling one may not even be compared with itself.
    if plain.is_nan() if isinstance(plain, Decimal) else plain != plain:
        return None
    if dtype.kind == "f" and isinstance(plain, float) and abs(plain) <= float(np.finfo(dtype).max):
        # 0.1 means the cell displayed as 0.1, even if that is a float32 and slightly larger.
        near = dtype.type(plain)
        return near.item() if float(str(near)) == plain else plain
    return plain


def _moment(bound: Any) -> int | None:
    if isinstance(bound, datetime):
        if bound != bound:
            return None  # pandas' "not a time" is a datetime
        finer = _nanoseconds(bound, "nanosecond")
        bound = bound if bound.tzinfo is None else bound.astimezone(UTC).replace(tzinfo=None)
        return int(_key("times", np.dtype("M8[us]"))(np.datetime64(bound, "us"))) + finer
    if isinstance(bound, str):
        return _moment_of_text(bound)
    if not isinstance(bound, date | np.datetime64):
        return None
    moment = np.datetime64(bound)
    return None if np.isnat(moment) else int(_key("times", moment.dtype)(moment))


def _moment_of_text(text: str) -> int | None:
    """The moment in a text; without an offset it is UTC, as times in arrays are."""
    text = _BARE_DATE.sub(r"\1-\2-\3", text) if _BARE_DATE.fullmatch(text) else text
    if _LONG_YEAR.match(text):
        return None  # NumPy would read epoch seconds as a year.
    offset = _OFFSET.fullmatch(text)
    try:
        moment = _moment(np.datetime64(text if offset is None else offset["local"]))
    except ValueError:
        return None
    if moment is None or offset is None or offset["hours"] is None:
        return moment
    minutes = 60 * int(offset["hours"]) + int(offset["minutes"] or 0)
    return moment - (-minutes if offset["sign"] == "-" else minutes) * _ATTOSECONDS["m"]


def _duration(bound: Any) -> int | None:
    if not isinstance(bound, timedelta | np.timedelta64):
        return None
    length = np.timedelta64(bound)
    finer = _nanoseconds(bound, "nanoseconds")
    if np.isnat(length) or _unit(length.dtype)[0] not in _ATTOSECONDS:
        return None
    return int(_key("durations", length.dtype)(length)) + finer


def _nanoseconds(bound: Any, part: str) -> int:
    """The nanoseconds of a pandas time or duration, which NumPy drops."""
    return int(getattr(bound, part, 0)) * _ATTOSECONDS["ns"]


def _text(bound: Any, kind: str) -> str | bytes | None:
    plain = bound.item() if isinstance(bound, np.generic) else bound
    if kind == "bytes" and isinstance(plain, str):
        return plain.encode()
    return plain if isinstance(plain, bytes if kind == "bytes" else str) else None


def _unit(dtype: np.dtype[Any]) -> tuple[str, int]:
    unit, count = np.datetime_data(dtype)
    return unit, int(count)
