"""The faults of a simulation, and their probabilities. Each fault is one that a real store can
have.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from random import Random
from typing import Any


class Fault(StrEnum):
    """The faults of one call."""

    CRASH_BEFORE = "crash_before"
    """The process dies and the request is never sent."""
    CRASH_AFTER = "crash_after"
    """The process dies before it receives the answer."""
    CRASH_IN_FLIGHT = "crash_in_flight"
    """The process dies, and its write lands some time later."""
    LOST_ANSWER = "lost_answer"
    """The write is carried out and its answer lost; back ends read back to find out."""
    LATE = "late"
    """The write gets no answer, is sent again, and the first one lands later as well."""
    DUPLICATE = "duplicate"
    """The write is delivered a second time, some time later."""
    DELAY = "delay"
    """The process or the network is slow, for a second or for a day."""
    UNAVAILABLE = "unavailable"
    """The store answers 409, 429, 500 or 503 until the back end gives up."""
    TRUNCATED = "truncated"
    """A body ends early until the back end gives up."""
    DISK_FULL = "disk_full"
    """No write succeeds for a while."""
    POWER_LOSS = "power_loss"
    """Every process dies, and some unsettled writes are lost or torn. Folders only."""
    CLOCK_JUMP = "clock_jump"
    """The clock of the host is set."""


READS: tuple[Fault, ...] = (
    Fault.CRASH_BEFORE,
    Fault.DELAY,
    Fault.UNAVAILABLE,
    Fault.TRUNCATED,
    Fault.CLOCK_JUMP,
)
WRITES: tuple[Fault, ...] = (
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
    Fault.CRASH_IN_FLIGHT,
    Fault.LOST_ANSWER,
    Fault.LATE,
    Fault.DUPLICATE,
    Fault.DELAY,
    Fault.UNAVAILABLE,
    Fault.DISK_FULL,
    Fault.POWER_LOSS,
    Fault.CLOCK_JUMP,
)
CHANGES: tuple[Fault, ...] = (
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
    Fault.LOST_ANSWER,
    Fault.DELAY,
    Fault.UNAVAILABLE,
    Fault.POWER_LOSS,
)
"""Deletes and `settle`."""
_FOLDERS_ONLY = {Fault.POWER_LOSS, Fault.DISK_FULL}
_BUCKETS_ONLY = {Fault.CRASH_IN_FLIGHT, Fault.LATE, Fault.DUPLICATE, Fault.LOST_ANSWER}
_DELAYS = (1.0, 60.0, 1_200.0, 7_200.0, 46_800.0, 108_000.0)


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault happens, as a probability per call, and for how many calls."""

    crash_before: float = 0.0
    crash_after: float = 0.0
    crash_in_flight: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    unavailable: float = 0.0
    truncated: float = 0.0
    disk_full: float = 0.0
    power_loss: float = 0.0
    clock_jump: float = 0.0
    calls: int = 1_000_000
    """After this many calls there are no more faults, so everything must end."""
    longest_delay: float = _DELAYS[-1]

    @classmethod
    def drawn(cls, random: Random, *, is_folder: bool) -> Faults:
        """A few kinds of faults for one schedule: all of them at once would hide each other."""
        if random.random() < 0.15:
            return cls(calls=0)
        barred = _BUCKETS_ONLY if is_folder else _FOLDERS_ONLY
        kinds = [one for one in Fault if one not in barred]
        chosen = random.sample(kinds, random.randint(1, 4))
        rate = random.choice((0.01, 0.03, 0.1))
        rates = {one.value: rate * (0.2 if one is Fault.POWER_LOSS else 1.0) for one in chosen}
        return cls(
            **rates,
            calls=random.choice((50, 200, 600)),
            longest_delay=random.choice(_DELAYS),
        )

    def as_dict(self) -> dict[str, Any]:
        """The faults with a nonzero probability."""
        usual = Faults()
        return {key: value for key, value in asdict(self).items() if value != getattr(usual, key)}


class FaultSource:
    """Decides for each call what happens to it."""

    def __init__(self, faults: Faults, random: Random) -> None:
        self._faults = faults
        self._random = random
        self._tables = {kinds: _table(faults, kinds) for kinds in (READS, WRITES, CHANGES)}
        self.calls = 0
        self.happened: dict[str, int] = {}

    def draw(self, kinds: tuple[Fault, ...]) -> Fault | None:
        """The fault of a call, if any."""
        self.calls += 1
        if self.calls > self._faults.calls:
            return None
        table = self._tables[kinds]
        if not table:
            return None
        place = self._random.random()
        for limit, fault in table:
            if place < limit:
                self.happened[fault] = self.happened.get(fault, 0) + 1
                return fault
        return None

    def delay(self) -> float:
        """Seconds for which something is slow."""
        return self._random.choice([one for one in _DELAYS if one <= self._faults.longest_delay])


def _table(faults: Faults, kinds: tuple[Fault, ...]) -> list[tuple[float, Fault]]:
    known = {one.name for one in fields(faults)}
    table, limit = [], 0.0
    for kind in kinds:
        rate = float(getattr(faults, kind.value)) if kind.value in known else 0.0
        if rate:
            limit += rate
            table.append((limit, kind))
    return table
