"""Ages and moments as people type them, and which cut-offs are safe. Pure."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_icechunk.exceptions import MaintenanceError

SAFE_AGE = timedelta(hours=24)
"""Nothing younger than this is expired or collected unless another age is asked for by name."""

_PART = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_EXAMPLES = "use an age like 30d, 12h or 1d12h (units s, m, h, d, w)"


@dataclass(frozen=True, slots=True)
class Cutoff:
    """A point in time, given as an age or as itself."""

    text: str
    age: timedelta | None = None
    moment: datetime | None = None

    def at(self, now: datetime) -> datetime:
        """The point in time if it is `now`; one before the calendar begins is its beginning."""
        if self.moment is not None:
            return self.moment
        assert self.age is not None
        try:
            return now - self.age
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)


def parse_age(text: str) -> timedelta:
    """An age such as `30d`, `12h` or `1d12h`; for use as the type of an argument."""
    whole = text.strip().lower()
    parts = _PART.findall(whole)
    if not parts or "".join(number + unit for number, unit in parts) != whole:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: {_EXAMPLES}")
    try:
        return sum(
            (timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta()
        )
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than time is counted here") from None


def parse_cutoff(text: str) -> Cutoff:
    """An age, or an ISO 8601 time; a time without a zone is in UTC. The type of an argument."""
    try:
        return Cutoff(text, age=parse_age(text))
    except argparse.ArgumentTypeError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
        utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an age nor a time: {_EXAMPLES}, or a time like "
            "2026-01-31T12:00:00Z"
        ) from None
    return Cutoff(text, moment=utc)


def safe_cutoff(cutoff: Cutoff | None, minimum_age: timedelta, now: datetime) -> datetime:
    """The point in time before which things may go; refuses one that is too young.

    Without a cut-off it is the youngest one allowed. One in the future is refused whatever the
    minimum age, because it can only be a mistake.
    """
    youngest = Cutoff("", age=minimum_age).at(now)
    if cutoff is None:
        return youngest
    chosen = cutoff.at(now)
    if chosen > now:
        raise MaintenanceError(
            f"the cut-off {cutoff.text} is in the future (it is {show_moment(now)}); nothing was "
            "changed"
        )
    if chosen > youngest:
        raise MaintenanceError(
            f"the cut-off {cutoff.text} is younger than {show_age(minimum_age)}, so it could hit "
            "writers at work. Choose an older one, or, if nobody writes, allow it with "
            "--minimum-age 0s. Nothing was changed"
        )
    return chosen


def show_age(age: timedelta) -> str:
    """An age in the largest units that say it exactly to the second: `1d12h`."""
    seconds = int(age.total_seconds())
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def show_moment(moment: datetime) -> str:
    """A time in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
