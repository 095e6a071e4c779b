"""The store of a simulation: objects in memory, writes in flight, and power losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from random import Random

from airflow_provider_icechunk.engine.storage.base import Data, Expectation, PutOutcome, Written
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage, StoredObject

from .scheduler import VirtualClock

_MOVING = ("refs/", "r/", "repo", "state.json")
"""Where generations keep refs."""


class Disk(MemoryStorage):
    """The state that all processes of a simulation share.

    :param is_folder: whether unconditional writes are lost in a power loss unless settled, as in a
        folder of a local file system.
    """

    def __init__(self, clock: VirtualClock, random: Random, *, is_folder: bool = False) -> None:
        super().__init__(clock=clock, name="simulated")
        self._random = random
        self.is_folder = is_folder
        self.clock = clock
        self._unsettled: dict[str, tuple[StoredObject | None, object]] = {}
        self._under_way: list[Callable[[], object]] = []
        self.on_move: Callable[[], None] = lambda: None
        """Called after each write of a ref."""
        self.full_for = 0
        """Writes that fail from now on because the disk is full."""

    def load(self, objects: Mapping[str, StoredObject]) -> None:
        """Begin with these objects."""
        self._objects = dict(objects)
        self._versions = count(1 << 32)

    def write(
        self, owner: object, key: str, data: Data, expect: Expectation, *, is_durable: bool
    ) -> PutOutcome:
        """Write; what is not durable is at risk until its owner settles."""
        before = self._objects.get(key)
        outcome = self.put(key, data, expect=expect)
        if is_durable or not self.is_folder:
            self._unsettled.pop(key, None)
        elif key not in self._unsettled:
            self._unsettled[key] = (before, owner)
        else:
            self._unsettled[key] = (self._unsettled[key][0], owner)
        if isinstance(outcome, Written) and key.startswith(_MOVING):
            self.on_move()
        return outcome

    def settle_of(self, owner: object) -> None:
        """Make what this owner wrote durable."""
        self._unsettled = {
            key: held for key, held in self._unsettled.items() if held[1] is not owner
        }

    def lose_power(self) -> None:
        """Each unsettled object is present, as it was before, or torn if it is new."""
        for key, (before, _) in self._unsettled.items():
            now = self._objects.get(key)
            fate = self._random.random()
            if now is None or fate < 0.3:
                continue
            if before is not None:
                self._objects[key] = before
            elif fate < 0.7:
                del self._objects[key]
            else:
                torn = now.data[: self._random.randrange(len(now.data) + 1)]
                self._objects[key] = StoredObject(
                    torn, now.version, now.created_at, now.metadata, now.content_type
                )
        self._unsettled.clear()

    def send_later(self, write: Callable[[], object]) -> None:
        """A write in flight that lands some time later."""
        self._under_way.append(write)

    def land_some(self) -> None:
        """Some writes in flight may land now."""
        if self._under_way and self._random.random() < 0.1:
            self._under_way.pop(int(self._random.random() * len(self._under_way)))()

    def land_all(self) -> None:
        """All writes in flight land."""
        while self._under_way:
            self._under_way.pop(0)()
