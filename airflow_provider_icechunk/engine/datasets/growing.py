"""A growing dimension: computes the position of a label, such as a day, by arithmetic.

Pure. Standard library only, because DAG files import declarations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

Label = str | int | float
"""A label as it is stored and travels: times are ISO texts in UTC, without an offset."""
FIRST_STEP = "airflow_provider_icechunk.first_step"
"""Attribute of a stored coordinate: how many steps were dropped from the front of its dimension."""
MOST_STEPS = 100_000_000
"""A label further away than this is a typo: its coordinate would fill the memory."""

_UNITS = {
    "us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000,
    "D": 86_400_000_000, "W": 7 * 86_400_000_000,
}  # fmt: skip
_MONTHS = {"M": 1, "Y": 12}
_CF_UNITS = {
    "D": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds",
    "us": "microseconds",
}  # fmt: skip
_STEP = re.compile(r"([1-9][0-9]{0,8}) ?(us|ms|s|min|h|D|W|M|Y)", re.ASCII)
_MONTH = re.compile(r"(\d{4})(?:-(\d\d))?", re.ASCII)
_DAY = timedelta(days=1)
_LAST_SAFE_DAY = 28
_LABEL_TYPES = ("datetime64[s]", "int64", "float64", "str")
_NO_LABEL = (
    "{name!r} got no label: a run without a logical date (started by hand, or by an asset) leaves "
    "`{{{{ ds }}}}` empty. Give the label another way: "
    "`{{{{ dag_run.conf['day'] }}}}` or `{{{{ partition_key }}}}`"
)


@dataclass(frozen=True, slots=True)
class Growing:
    """A dimension that grows over time, and the position of each of its labels.

    With `start` and `every`, the position of a label is computed, in UTC, so each run knows its
    own whatever else exists. With `by="labels"`, it is looked up in the stored coordinate, and a
    new label goes to the end.
    """

    start: str | date | None = None
    """The first label: an ISO text, a date or a datetime."""
    every: str | timedelta | None = None
    """`30s`, `15min`, `6h`, `1D`, `1W`, calendar steps `1M`, `3M`, `1Y`, or a timedelta."""
    by: Literal["steps", "labels"] = "steps"
    dtype: str | None = None
    """Of the labels, for `by="labels"`: `datetime64[s]` (the default), `int64`, `float64`, `str`"""
    attrs: Mapping[str, Any] | None = None
    """More attributes of the coordinate."""
    steps_per_run: int = 1
    """How many steps one run writes, so that chunks that hold just these are not shared."""
    coordinate_chunk: int = 1024
    """Labels per chunk of the coordinate."""
    first_step: int = 0
    """Steps dropped from the front, from which positions count. Read from storage, not declared;
    `start` does not change.
    """

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "attrs", checked_attrs("Growing", self.attrs))
        if type(self.first_step) is not int or not 0 <= self.first_step < MOST_STEPS:
            raise _wrong(f"Growing: first_step must be a number of steps, not {self.first_step!r}")
        for name in ("steps_per_run", "coordinate_chunk"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise _wrong(f"Growing: {name} must be a whole number, at least 1")
        if self.by == "labels":
            if self.start is not None or self.every is not None:
                raise _wrong('Growing(by="labels") takes neither start nor every')
            put(self, "dtype", self.dtype or _LABEL_TYPES[0])
            if self.dtype not in _LABEL_TYPES:
                raise _wrong(
                    f"Growing: labels cannot have the type {self.dtype!r}; choose from: "
                    f"{', '.join(_LABEL_TYPES)}"
                )
            return
        if self.by != "steps":
            raise _wrong(f'Growing: by must be "steps" or "labels", not {self.by!r}')
        if self.start is None or self.every is None:
            raise _wrong(
                'Growing needs start and every, as in Growing(start="2026-01-01", every="1D"), or '
                'by="labels" for an axis without fixed steps'
            )
        if self.dtype is not None:
            raise _wrong('Growing: dtype applies to by="labels" only; steps are times')
        put(self, "every", _canonical_step(self.every))
        put(self, "start", _full_text(moment_of(self.start, "start")))
        if self._months and _moment(str(self.start)).day > _LAST_SAFE_DAY:
            raise _wrong(
                f"Growing: not every month has a day {_moment(str(self.start)).day}: with months "
                f"and years start on day 1 to {_LAST_SAFE_DAY}"
            )
        put(self, "start", self.text(_moment(str(self.start))))

    # -- the steps

    @property
    def is_regular(self) -> bool:
        """Whether positions are computed by arithmetic."""
        return self.by == "steps"

    @property
    def _months(self) -> int:
        """Months of a calendar step, or 0."""
        return _parsed_step(str(self.every))[1]

    @property
    def _micros(self) -> int:
        """Microseconds of a fixed step, or 0."""
        return _parsed_step(str(self.every))[0]

    @property
    def first(self) -> datetime:
        """The first label as a time."""
        return _moment(str(self.start))

    def parse(self, label: object, name: str = "the growing dimension") -> datetime:
        """The time that a label means; one without an offset is in UTC.

        An empty one is what `{{ ds }}` renders to in a run without a logical date.
        """
        return moment_of(label, name)

    def position(self, label: object, name: str = "the growing dimension") -> int:
        """The position of a label; one before the start or between two steps is refused."""
        moment = self.parse(label, name)
        number = self._at_or_before(moment)
        if number < 0:
            raise _wrong(
                f"{name!r} begins at {self.start}, every {self.every}: {label} lies before it; the "
                f"first labels are {self.start} and {self._neighbour(1)}"
            )
        if number >= MOST_STEPS:
            raise _wrong(
                f"{label} would be step {number} of {name!r}, which begins at {self.start}, every "
                f"{self.every}: more than {MOST_STEPS} steps are refused"
            )
        if self._step(number) != moment:
            raise _wrong(
                f"{label} lies between two steps of {name!r}: its neighbours are "
                f"{self.text(self._step(number))} and {self._neighbour(number + 1)} (from "
                f"{self.start}, every {self.every}, in UTC)"
            )
        if number < self.first_step:
            raise _wrong(
                f"the labels of {name!r} before {self._neighbour(self.first_step)} were dropped: "
                f"there is no place for {label} any more. To bring them back, revert the commit "
                "that dropped them"
            )
        return number - self.first_step

    def places_before(self, label: object, name: str = "the growing dimension") -> int:
        """The number of positions before a time, which need not be a label."""
        moment = self.parse(label, name)
        number = self._at_or_before(moment)
        if number >= 0 and self._step(number) != moment:
            number += 1
        return max(0, number - self.first_step)

    def label(self, position: int) -> datetime:
        """The label at a position, in UTC."""
        if position < 0:
            raise _wrong(f"there is no label at position {position}")
        return self._step(position + self.first_step)

    def _step(self, number: int) -> datetime:
        """The label this many steps after the start."""
        try:
            if self._months:
                return _plus_months(self.first, number * self._months)
            return self.first + timedelta(microseconds=number * self._micros)
        except (OverflowError, ValueError):
            raise _wrong(f"place {number} lies after the year 9999") from None

    def text(self, moment: datetime) -> str:
        """A label as it is stored and shown: a bare date where all labels are at midnight."""
        first = _moment(str(self.start))
        if first.time() == datetime.min.time() and (
            self._months or self._micros % _UNITS["D"] == 0
        ):
            return moment.date().isoformat()
        return _full_text(moment)

    def texts(self, start: int, stop: int) -> list[str]:
        """The labels at some positions as texts."""
        return [self.text(self.label(position)) for position in range(start, stop)]

    def length(self, labels: Iterable[object]) -> int:
        """The minimum length of an axis that holds all of these labels."""
        return max((self.position(label) + 1 for label in labels), default=0)

    def offset(self, position: int) -> int:
        """The stored value of the coordinate at a position: units of `cf_attrs` since the start."""
        if self._months:
            return (self.label(position) - self.first) // _DAY
        return (position + self.first_step) * self._micros // _UNITS[self._cf_unit()]

    def fixed_offset(self) -> int | None:
        """What the coordinate advances with each step, or None where months differ."""
        return None if self._months else self._micros // _UNITS[self._cf_unit()]

    def cf_attrs(self) -> dict[str, Any]:
        """Attributes by which Xarray and every other reader of CF decode the coordinate."""
        if not self.is_regular:
            if self.dtype != "datetime64[s]":
                return dict(self.attrs or {})
            units = "seconds since 1970-01-01"
        else:
            since = str(self.start).replace("T", " ")
            units = f"{_CF_UNITS['D' if self._months else self._cf_unit()]} since {since}"
        time = {"units": units, "calendar": "proleptic_gregorian", "standard_name": "time"}
        return {**(self.attrs or {}), **time}

    # -- labels without steps

    def key(self, label: object, name: str = "the growing dimension") -> Label:
        """A label of an axis without steps, in its canonical spelling."""
        if is_blank(label):
            raise no_label(name)
        if self.dtype == "datetime64[s]":
            moment = moment_of(label, name)
            if moment.microsecond:
                raise _wrong(f"the labels of {name!r} are whole seconds: {label} is not")
            return _full_text(moment)
        plain: Any = label.item() if hasattr(label, "item") else label
        try:
            if self.dtype == "str":
                return str(plain)
            if isinstance(plain, bool):
                raise ValueError
            if self.dtype == "int64":
                number = int(plain)
                if (isinstance(plain, float) and number != plain) or not -(2**63) <= number < 2**63:
                    raise ValueError
                return number
            value = float(plain)
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise _wrong(f"{label!r} is not a label of {name!r}, which are {self.dtype}") from None
        return value

    # -- as JSON

    def to_json(self) -> dict[str, Any]:
        """The value as plain JSON."""
        if self.is_regular:
            value: dict[str, Any] = {"start": self.start, "every": self.every}
        else:
            value = {"by": "labels", "dtype": self.dtype}
        if self.attrs:
            value["attrs"] = dict(self.attrs)
        if self.steps_per_run != 1:
            value["steps_per_run"] = self.steps_per_run
        if self.coordinate_chunk != 1024:
            value["coordinate_chunk"] = self.coordinate_chunk
        if self.first_step:
            value["first_step"] = self.first_step
        return value

    def _at_or_before(self, moment: datetime) -> int:
        if not self._months:
            return (moment - self.first) // timedelta(microseconds=self._micros)
        first = self.first
        months = (moment.year - first.year) * 12 + moment.month - first.month
        number = months // self._months
        # The month is reached, but perhaps not the day and the hour in it.
        if number * self._months == months and _plus_months(first, months) > moment:
            number -= 1
        return number

    def _neighbour(self, number: int) -> str:
        """A label for a message about another one; a failure here must not hide that message."""
        try:
            return self.text(self._step(number))
        except InvalidInputError:
            return "none before the year 10000"

    def _cf_unit(self) -> str:
        """The largest unit of which a step is a whole number."""
        return next(unit for unit in _CF_UNITS if self._micros % _UNITS[unit] == 0)


def is_blank(label: object) -> bool:
    """Whether a label is what templates render without a logical date."""
    return label is None or (isinstance(label, str) and label.strip() in ("", "None"))


def no_label(name: str) -> InvalidInputError:
    """Why a blank label is refused, and what to pass instead."""
    return _wrong(_NO_LABEL.format(name=name))


def moment_of(label: object, name: str) -> datetime:
    """The time that a text, a date or a datetime means; without an offset it is UTC."""
    if is_blank(label):
        raise no_label(name)
    if isinstance(label, datetime):
        return label.replace(tzinfo=UTC) if label.tzinfo is None else _plain(label)
    if isinstance(label, date):
        return datetime(label.year, label.month, label.day, tzinfo=UTC)
    if isinstance(label, str):
        text = label.strip()
        if short := _MONTH.fullmatch(text):
            text = f"{short[1]}-{short[2] or '01'}-01"
        try:
            return moment_of(datetime.fromisoformat(text), name)
        except (ValueError, OverflowError):
            pass
    raise _wrong(
        f"{label!r} is not a label of {name!r}: pass a time: an ISO string like 2026-01-31 or "
        "2026-01-31T06:00, a date or a datetime"
    )


def checked_attrs(owner: str, attrs: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of attributes that is plain JSON."""
    try:
        copied = json.loads(json.dumps(dict(attrs or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _wrong(f"{owner}: the attributes are not plain JSON: {error}") from None
    assert isinstance(copied, dict)
    return copied


def _canonical_step(every: str | timedelta) -> str:
    """One spelling for each step, so that equal declarations are equal values."""
    if isinstance(every, timedelta):
        micros = every // timedelta(microseconds=1)
        if micros < 1:
            raise _wrong(f"Growing: every {every} is not a positive step")
    else:
        micros, months = _parsed_step(every)
        if months:
            return f"{months // 12}Y" if months % 12 == 0 else f"{months}M"
    unit = next(unit for unit in _CF_UNITS if micros % _UNITS[unit] == 0)
    return f"{micros // _UNITS[unit]}{unit}"


@lru_cache(maxsize=256)
def _parsed_step(every: str) -> tuple[int, int]:
    """Microseconds and months; one of them is zero."""
    found = _STEP.fullmatch(every)
    if found is None:
        raise _wrong(
            f"Growing: every={every!r} is not a step: a number and s, min, h, D, W, M (months) or "
            "Y, such as 15min, 6h, 1D, 1M"
        )
    count = int(found[1])
    if found[2] in _MONTHS:
        return 0, count * _MONTHS[found[2]]
    return count * _UNITS[found[2]], 0


@lru_cache(maxsize=256)
def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _plain(moment: datetime) -> datetime:
    """In UTC, and a datetime of the standard library whatever subclass it was."""
    there = moment.astimezone(UTC)
    return datetime(
        there.year, there.month, there.day, there.hour, there.minute, there.second,
        there.microsecond, tzinfo=UTC,
    )  # fmt: skip


def _plus_months(first: datetime, months: int) -> datetime:
    years, month = divmod(first.month - 1 + months, 12)
    return first.replace(year=first.year + years, month=month + 1)


def _full_text(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat()


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=Kind.INVALID_ARGUMENT)
