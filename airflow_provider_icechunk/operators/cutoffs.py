"""Before when things may go: ages and times as Dag authors write them, and which are safe. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_provider_icechunk.exceptions import InvalidInputError, MaintenanceError

SAFE_AGE = timedelta(hours=24)
"""Nothing younger than this goes unless a smaller `minimum_age` is asked for by name."""

OlderThan = datetime | timedelta | str
"""A time, an age, or either as text: `2026-01-31T12:00:00Z`, `30d`, `1d12h`."""

_PART = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def read_age(value: timedelta | str) -> timedelta:
    """An age, as itself or as a text such as `30d`, `12h` or `1d12h`."""
    if isinstance(value, timedelta):
        return value
    text = value.strip().lower()
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInputError(
            f"{value[:100]!r} is no age: write 30d, 12h or 1d12h (units s, m, h, d, w)"
        )
    try:
        return sum(
            (timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta()
        )
    except OverflowError:
        raise InvalidInputError(f"{value[:100]!r} is longer than time is counted") from None


def safe_cutoff(
    older_than: OlderThan, minimum_age: timedelta | str = SAFE_AGE, *, now: datetime
) -> datetime:
    """The time before which things may go; refuses one in the future and one that is too young.

    A time without a zone is in UTC.
    """
    chosen = _moment(older_than, now)
    least = read_age(minimum_age)
    if least < timedelta():
        raise InvalidInputError("minimum_age is negative")
    if chosen > now:
        raise MaintenanceError(
            f"older_than is {chosen.isoformat()}, which is in the future; nothing was changed"
        )
    if now - chosen < least:
        raise MaintenanceError(
            f"older_than is {chosen.isoformat()}, not {least} ago, so it could hit writers at "
            "work. Choose an older one or, if nobody writes, lower minimum_age. Nothing was changed"
        )
    return chosen


def _moment(value: OlderThan, now: datetime) -> datetime:
    if isinstance(value, str):
        if not _PART.match(value.strip().lower()):
            return _utc(_parse(value))
        value = read_age(value)
    if isinstance(value, timedelta):
        try:
            return now - value
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    return _utc(value)


def _parse(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            f"{text[:100]!r} is neither an age (30d, 12h) nor a time (2026-01-31T12:00:00Z)"
        ) from None


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
