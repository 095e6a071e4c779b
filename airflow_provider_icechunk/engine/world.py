"""Clocks, entropy and sleep as one value that tests can replace."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _now() -> datetime:
    return datetime.now(UTC)


def _jitter() -> float:
    # Pickled by name, not with the state of a generator: otherwise processes would pause in step.
    return random.random()  # noqa: S311 - spreads pauses, hides nothing


@dataclass(frozen=True, slots=True)
class World:
    """Everything external that the engine uses, besides storage."""

    now: Callable[[], datetime] = _now
    entropy: Callable[[int], bytes] = secrets.token_bytes
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = _jitter
    """A number in [0, 1) by which pauses are multiplied."""


REAL_WORLD = World()


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 UTC, exact; a naive time is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_micros(micros: int) -> datetime:
    """The UTC time of microseconds since 1970; clipped to what a `datetime` can hold."""
    seconds, rest = divmod(micros, 1_000_000)
    seconds = min(max(seconds, -62_135_596_800), 253_402_300_799)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


def utc_text(moment: datetime) -> str:
    """A time in UTC with as many decimals of a second as it needs: none, three or six.

    The official library writes times like this.
    """
    fraction = moment.microsecond
    precision = "microseconds" if fraction % 1000 else "milliseconds" if fraction else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
