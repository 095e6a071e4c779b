"""Retries: the only place that computes a pause."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from airflow_provider_icechunk.exceptions import InvalidInputError

from .world import REAL_WORLD, World


@dataclass(frozen=True, slots=True)
class Backoff:
    """How many attempts to make, and how long to wait between them.

    Pauses have full jitter (anything from 0 to the current limit), so that clients that failed
    together do not retry together.
    """

    tries: int | None = 10
    """`None`: no limit but `seconds`."""
    first_pause: float = 0.1
    """Limit of the first pause in seconds, doubled for each later one. 0: no pauses."""
    longest_pause: float = 20.0
    at_once: int = 0
    """This many tries follow the first one without a pause."""
    seconds: float = math.inf
    """No try starts later than this after the first one."""
    by_effort: bool = False
    """Limit pauses by the duration of the failed try times the number of tries, without doubling.

    About as many writers compete as have beaten us, each for about that long. With doubling, the
    last of them would sleep for seconds while the store is idle.
    """
    world: World = REAL_WORLD

    def __post_init__(self) -> None:
        too_few = self.tries is not None and self.tries < 1
        if too_few or self.first_pause < 0 or self.longest_pause < 0:
            raise InvalidInputError("a Backoff needs at least one try and no negative pauses")

    def attempts(self) -> Iterator[bool]:
        """Yield once per try, after its pause: whether it is the last one."""
        clock = self.world.monotonic
        begun = clock()
        deadline = begun + self.seconds
        for number in count() if self.tries is None else range(self.tries):
            if number:
                now = clock()
                if now >= deadline:
                    return
                pause = min(self.pause(number, now - begun), deadline - now)
                if pause:
                    self.world.sleep(pause)
                begun = clock()
            yield number + 1 == self.tries

    def pause(self, number: int, took: float = 0.0) -> float:
        """Seconds to wait before try `number` (from 0) if the last one took `took` seconds."""
        later = number - self.at_once
        if later <= 0:
            return 0.0
        if self.by_effort:
            grown = max(self.first_pause, took) * later
        else:
            grown = self.first_pause * 2.0 ** min(later - 1, 30)
        return min(self.longest_pause, grown) * self.world.jitter()


def at_once(tries: int) -> Backoff:
    """Tries without pauses: for swaps that fail only because somebody else won."""
    return Backoff(tries, first_pause=0.0)
