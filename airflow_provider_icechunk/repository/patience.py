"""Bounded trying again: so many tries, so much time, with full jitter between them."""

from __future__ import annotations

from airflow_provider_icechunk.repository.world import World

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 2.0


class Patience:
    """Counts tries of one operation. The first try is free; `another` asks for one more."""

    def __init__(self, world: World, tries: int, seconds: float) -> None:
        self._world = world
        self._limit = tries
        self._deadline = world.monotonic() + seconds
        self.tries = 1

    def another(self) -> bool:
        """Wait a little and allow one more try, or say that it is enough."""
        left = self._deadline - self._world.monotonic()
        if self.tries > self._limit or left <= 0:
            return False
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.tries - 1, 20))
        self._world.sleep(min(longest * self._world.jitter(), left))
        self.tries += 1
        return True
