"""Cut-offs for maintenance: ages and times as people write them, and which are safe. Pure.

Shared by operators and the command line. Imports no Airflow.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_provider_icechunk.exceptions import InvalidInputError, MaintenanceError

SAFE_AGE = timedelta(hours=24)
"""Nothing younger than this is deleted unless a smaller minimum age is requested explicitly."""

OlderThan = datetime | timedelta | str
"""A time, an age, or either as text: `2026-01-31T12:00:00Z`, `30d`, `1d12h`."""

_PART = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_EXAMPLES = "30d, 12h or 1d12h (units s, m, h, d, w)"


def read_age(value: timedelta | str) -> timedelta:
    """An age, as a value or as text such as `30d`, `12h` or `1d12h`."""
    if isinstance(value, timedelta):
        return value
    text = value.strip().lower()
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInputError(f"{value[:100]!r} is not a valid age: write {_EXAMPLES}")
    try:
        return sum(
            (timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta()
        )
    except OverflowError:
        raise InvalidInputError(f"{value[:100]!r} is too long for an age") from None


def read_cutoff(value: OlderThan) -> datetime | timedelta:
    """A time in UTC, or an age. A time without a zone is in UTC."""
    if isinstance(value, str):
        return read_age(value) if _PART.match(value.strip().lower()) else _parse_time(value)
    return _in_utc(value) if isinstance(value, datetime) else value


def safe_cutoff(
    older_than: OlderThan | None,
    minimum_age: timedelta | str = SAFE_AGE,
    *,
    now: datetime,
    setting: str = "minimum_age",
) -> datetime:
    """The time before which objects may be deleted; rejects future and too recent ones.

    Without `older_than` it is the latest one allowed. `setting` is the caller's name for the
    minimum age, for error messages.
    """
    least = read_age(minimum_age)
    if least < timedelta():
        raise InvalidInputError(f"{setting} is negative")
    chosen = _before(now, least if older_than is None else read_cutoff(older_than))
    if chosen > now:
        raise MaintenanceError(
            f"the cut-off {chosen.isoformat()} is in the future (now is {now.isoformat()}); "
            "nothing was changed"
        )
    if chosen > _before(now, least):
        raise MaintenanceError(
            f"the cut-off {chosen.isoformat()} is younger than {show_age(least)}, so it could "
            "affect running writers. Choose an older one or, if nothing is writing, lower "
            f"{setting}. Nothing was changed"
        )
    return chosen


def show_age(age: timedelta) -> str:
    """An age as text, exact to the second: `1d12h`."""
    seconds = int(age.total_seconds())
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _before(now: datetime, cutoff: datetime | timedelta) -> datetime:
    """A point in time, no earlier than the start of the calendar."""
    if isinstance(cutoff, datetime):
        return cutoff
    try:
        return now - cutoff
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _parse_time(text: str) -> datetime:
    try:
        return _in_utc(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        raise InvalidInputError(
            f"{text[:100]!r} is neither an age nor a time: write {_EXAMPLES}, or a time like "
            "2026-01-31T12:00:00Z"
        ) from None


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
