"""The outside world as values: time, entropy and patience, injected so that tests can own them."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class World:
    """What the engine takes from outside besides storage."""

    now: Callable[[], datetime] = _now
    entropy: Callable[[int], bytes] = secrets.token_bytes
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    """A number in [0, 1): full jitter of a pause."""


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
