"""Decode stored values by the CF conventions: times, scaled numbers, missing values. Pure.

Xarray has its own decoder; this is for readers without it, such as Spark executors. Times in
non-standard calendars stay numbers.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TIME = np.dtype("datetime64[us]")
_UNITS = {
    "days": 86_400_000_000, "hours": 3_600_000_000, "minutes": 60_000_000, "seconds": 1_000_000,
    "milliseconds": 1_000, "microseconds": 1,
}  # fmt: skip
_SHORT = {
    "d": "days", "h": "hours", "hr": "hours", "hrs": "hours", "min": "minutes", "mins": "minutes",
    "s": "seconds", "sec": "seconds", "secs": "seconds", "ms": "milliseconds",
    "msec": "milliseconds", "us": "microseconds",
}  # fmt: skip
_NANOSECONDS = ("ns", "nanosecond", "nanoseconds")
SINCE = re.compile(
    r"\s*(?P<unit>[a-zA-Z]+)\s+since\s+(?P<date>\d{1,4}-\d{1,2}-\d{1,2})"
    r"(?:[T ]\s*(?P<time>\d{1,2}(?::\d{1,2}(?::\d{1,2}(?:\.\d*)?)?)?))?\s*(?:Z|UTC|\+00:?00)?\s*",
    re.ASCII,
)
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
_GREGORIAN = np.datetime64("1582-10-15", "us")
"""From this point on, the calendars above agree."""
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Epoch:
    """Times as numbers of units since a moment."""

    start: np.datetime64
    micros: int
    """In a unit; 0 for nanoseconds, 1000 of which make one."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the values of an array are decoded. Without any parts they are returned as stored."""

    dtype: np.dtype[Any]
    """Of the decoded values."""
    missing: tuple[Any, ...] = ()
    """Stored values that mean "missing"."""
    scale: float = 1.0
    offset: float = 0.0
    epoch: Epoch | None = None
    takes_nan: bool = False
    """Whether NaN or NaT means "missing"."""

    def decode(self, stored: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """The values, and where they are missing; `None` if nowhere."""
        absent = self._absent(stored)
        if self.epoch is not None:
            return _times(stored, absent, self.epoch)
        if (self.scale, self.offset) == (1.0, 0.0):
            return stored, absent
        return stored.astype(self.dtype) * self.dtype.type(self.scale) + self.dtype.type(
            self.offset
        ), absent

    def _absent(self, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
        marks = [stored == stored.dtype.type(one) for one in self.missing]
        if self.takes_nan and stored.dtype.kind == "f":
            marks.append(np.isnan(stored))
        elif self.takes_nan and stored.dtype.kind in "Mm":
            marks.append(np.isnat(stored))
        if not marks:
            return None
        found: NDArray[np.bool_] = np.logical_or.reduce(marks)
        return found if found.any() else None


def decoding(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> Decoding:
    """How values of a type with these attributes are decoded.

    An attribute that makes no sense is ignored: it should not prevent reading the array.
    """
    if dtype.kind not in "iuf":
        return Decoding(dtype, takes_nan=True)
    missing = tuple(_missing(dtype, attributes))
    epoch = _epoch(attributes)
    if epoch is not None:
        return Decoding(TIME, missing, epoch=epoch, takes_nan=True)
    scale = _number(attributes.get("scale_factor"), 1.0)
    offset = _number(attributes.get("add_offset"), 0.0)
    if (scale, offset) == (1.0, 0.0):
        return Decoding(dtype, missing, takes_nan=True)
    is_small = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    made = np.dtype(np.float32 if is_small and not offset else np.float64)
    return Decoding(made, missing, scale, offset, takes_nan=True)


def _times(
    stored: NDArray[Any], absent: NDArray[np.bool_] | None, epoch: Epoch
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    numbers = stored if absent is None else np.where(absent, stored.dtype.type(0), stored)
    if numbers.dtype.kind == "f":
        exact = numbers.astype(np.float64)
        micros = exact / 1000 if not epoch.micros else exact * epoch.micros
        within = np.abs(micros) < _MOST
        whole = np.rint(np.where(within, micros, 0)).astype(np.int64)
    else:
        # Unsigned 64-bit numbers beyond the signed ones are beyond all times as well.
        limit = _MOST // max(1, epoch.micros)
        within = numbers < limit if numbers.dtype.kind == "u" else np.abs(numbers) < limit
        signed = np.where(within, numbers, 0).astype(np.int64)
        whole = signed * epoch.micros if epoch.micros else signed // 1000
    if not within.all():
        absent = ~within if absent is None else absent | ~within
    return epoch.start + whole.astype("timedelta64[us]"), absent


def _epoch(attributes: Mapping[str, Any]) -> Epoch | None:
    units, calendar = attributes.get("units"), attributes.get("calendar", "standard")
    match = SINCE.fullmatch(units) if isinstance(units, str) else None
    if match is None or str(calendar).lower() not in _CALENDARS:
        return None
    micros = unit_micros(match["unit"])
    start = None if micros is None else _moment(match["date"], match["time"])
    if micros is None or start is None:
        return None
    if start < _GREGORIAN and calendar != "proleptic_gregorian":
        return None
    return Epoch(start, micros)


def unit_micros(name: str) -> int | None:
    """Microseconds in a unit of time, 0 for nanoseconds; `None` if it is not one."""
    name = _SHORT.get(name.lower(), name.lower())
    if name in _NANOSECONDS:
        return 0
    plural = name if name.endswith("s") else f"{name}s"
    return _UNITS.get(plural)


def _moment(date: str, time: str | None) -> np.datetime64 | None:
    year, month, day = map(int, date.split("-"))
    hours, minutes, seconds = [*(time or "0").split(":"), "0", "0"][:3]
    try:
        start = np.datetime64(f"{year:04d}-{month:02d}-{day:02d}", "us")
    except ValueError:
        return None
    micros = round(float(seconds) * 1_000_000) + (int(hours) * 60 + int(minutes)) * 60_000_000
    return start + np.timedelta64(micros, "us")


def _missing(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> list[Any]:
    found = []
    for name in ("_FillValue", "missing_value"):
        value = attributes.get(name)
        for one in value if isinstance(value, list) else [value]:
            number = _unpacked(one) if isinstance(one, str) else one
            if isinstance(number, int | float) and not isinstance(number, bool):
                found += _as_stored(dtype, number)
    return found


def _as_stored(dtype: np.dtype[Any], number: float) -> list[Any]:
    """The number in the array's type, if it fits; NaN is detected separately."""
    if number != number:
        return []
    try:
        stored = dtype.type(number)
    except OverflowError:
        return []
    return [stored.item()] if dtype.kind == "f" or stored == number else []


def _unpacked(text: str) -> float | None:
    """Xarray writes fill values of floats as the base64 text of a double."""
    try:
        packed = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return float(struct.unpack("<d", packed)[0]) if len(packed) == 8 else None


def _number(value: Any, otherwise: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and np.isfinite(value) else otherwise
