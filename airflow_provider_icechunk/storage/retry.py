"""Trying again: bounded, with pauses that grow and are spread at random."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_provider_icechunk.exceptions import InvalidInputError


@dataclass(frozen=True, slots=True)
class Retry:
    """How often to try, and how long to wait in between.

    Pauses have full jitter: anything between nothing and the current limit, so that many clients
    that failed together do not come back together.
    """

    tries: int = 10
    first_pause: float = 0.1
    """Limit of the first pause in seconds; doubled for each further one."""
    longest_pause: float = 20.0
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def __post_init__(self) -> None:
        if self.tries < 1 or self.first_pause < 0 or self.longest_pause < 0:
            raise InvalidInputError("a retry needs at least one try, and pauses of no less than 0")

    def attempts(self) -> Iterator[bool]:
        """Yields `tries` times, after the pause that is due: whether this is the last try."""
        for number in range(self.tries):
            if number:
                self.sleep(self.uniform(0.0, self.limit(number)))
            yield number == self.tries - 1

    def limit(self, number: int) -> float:
        """The longest pause before attempt `number`, counted from 0."""
        return float(min(self.longest_pause, self.first_pause * 2 ** min(number - 1, 30)))
