"""Times counted from one epoch, recounted from another. Pure.

Files of an archive often count from their own first day. Once joined, they have to count alike, or
the numbers mean other times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cf import SINCE, unit_micros

_DAY = 86_400_000_000
_USUAL = ("standard", "gregorian", "proleptic_gregorian")
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CALENDARS = {"noleap": "noleap", "365_day": "noleap", "all_leap": "all_leap",
              "366_day": "all_leap", "360_day": "360_day"}  # fmt: skip
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Counting:
    """How times are counted."""

    calendar: str
    micros: int
    """Microseconds of a unit."""
    start: int
    """The epoch, in microseconds since the year 0 of the calendar."""

    def again(
        self, values: NDArray[Any], target: Counting, dtype: np.dtype[Any]
    ) -> NDArray[Any] | None:
        """The same times counted from another epoch; `None` if the type cannot express them.

        What is not a number stays that way.
        """
        if self.calendar != target.calendar:
            return None
        away = self.start - target.start
        if self.micros == target.micros and away % self.micros == 0:
            return _cast(values, away // self.micros, dtype)
        if values.dtype.kind == "f":
            exact = values.astype(np.float64)
            found = np.rint(exact * self.micros)
            if np.any(np.abs(found[np.isfinite(found)]) > _MOST):
                return None
            moved = (found + away) / target.micros
            return _cast(moved, 0, dtype)
        if (
            values.size
            and max(abs(int(values.min())), abs(int(values.max()))) > _MOST // self.micros
        ):
            return None
        micros = values.astype(np.int64) * self.micros
        if dtype.kind == "f":
            return ((micros + away) / target.micros).astype(dtype)
        if np.any((micros + away) % target.micros):
            return None
        return _cast((micros + away) // target.micros, 0, dtype)


def counting(units: object, calendar: object = None) -> Counting | None:
    """How times with these attributes are counted; `None` if they are not known as times."""
    match = SINCE.fullmatch(units) if isinstance(units, str) else None
    if match is None:
        return None
    micros = unit_micros(match["unit"])
    year, month, day = map(int, match["date"].split("-"))
    hours, minutes, seconds = [*(match["time"] or "0").split(":"), "0", "0"][:3]
    name = str(calendar or "standard").lower()
    days = _days(name, year, month, day)
    if days is None or not micros:
        return None
    inside = round(float(seconds) * 1_000_000) + (int(hours) * 60 + int(minutes)) * 60_000_000
    kind = "standard" if name in _USUAL else _CALENDARS[name]
    return Counting(kind, micros, days * _DAY + inside)


def finest(units: Iterable[str]) -> str:
    """Of several ways to count, the epoch of the first, combined with the shortest unit."""
    texts = list(units)
    shortest = min(texts, key=lambda text: _micros(text) or math.inf)
    if _micros(shortest) == _micros(texts[0]):
        return texts[0]
    return f"{shortest.split(' since ')[0].strip()} since {texts[0].split(' since ')[1].strip()}"


def _micros(text: str) -> int:
    found = counting(text, "360_day") or counting(text)
    return 0 if found is None else found.micros


def _days(calendar: str, year: int, month: int, day: int) -> int | None:
    """Days since the year 0."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    if calendar in _USUAL:
        try:
            moment = date(year, month, day)
        except ValueError:
            return None
        # Before this day the usual calendars disagree.
        is_safe = calendar == "proleptic_gregorian" or moment >= date(1582, 10, 15)
        return moment.toordinal() if is_safe else None
    match _CALENDARS.get(calendar):
        case "360_day":
            return 360 * year + 30 * (month - 1) + day if day <= 30 else None
        case "noleap":
            return 365 * year + sum(_LENGTHS[: month - 1]) + day
        case "all_leap":
            return 366 * year + sum(_LENGTHS[: month - 1]) + (month > 2) + day
    return None


def _cast(values: NDArray[Any], away: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The values moved and in a type, if it can hold them."""
    if dtype.kind == "f":
        return (values.astype(np.float64) + away).astype(dtype)
    if values.dtype.kind == "f":
        if not np.all(np.isfinite(values)) or np.any(values != np.rint(values)):
            return None
        if np.any(np.abs(values) > _MOST):
            return None
    moved = values.astype(np.int64) + away
    limits = np.iinfo(dtype)
    if moved.size and (int(moved.min()) < limits.min or int(moved.max()) > limits.max):
        return None
    return moved.astype(dtype)
