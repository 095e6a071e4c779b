"""Bounded trying again: so many tries, so much time, with full jitter between them.

A pause is measured by how long the try took that failed, and grows with their number: as many
writers as lost before us may be trying, each for about that long. Doubling instead would have the
last of them asleep for seconds beside an idle store.
"""

from __future__ import annotations

from airflow_provider_icechunk.repository.world import World

_SHORTEST_TRY = 0.005
_LONGEST_PAUSE = 2.0


class Patience:
    """Counts tries of one operation. The first try is free; `another` asks for one more."""

    def __init__(self, world: World, tries: int, seconds: float) -> None:
        self._world = world
        self._limit = tries
        self._begun = world.monotonic()
        self._deadline = self._begun + seconds
        self.tries = 1

    def another(self) -> bool:
        """Wait a little and allow one more try, or say that it is enough."""
        now = self._world.monotonic()
        left = self._deadline - now
        if self.tries > self._limit or left <= 0:
            return False
        longest = min(_LONGEST_PAUSE, max(_SHORTEST_TRY, now - self._begun) * self.tries)
        self._world.sleep(min(longest * self._world.jitter(), left))
        self._begun = self._world.monotonic()
        self.tries += 1
        return True
