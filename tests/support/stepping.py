"""Actors that share a storage and advance call by call, to test every interleaving."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_icechunk.engine.storage.base import Deleted, Storage
from airflow_provider_icechunk.testing.storages import WrappedStorage

T = TypeVar("T")
_PATIENCE = 60.0


class Gate(WrappedStorage):
    """Lets calls through while its count lasts; starts open."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._left = math.inf
        self._changed = threading.Condition()
        self.is_waiting = False
        self.calls: list[str] = []
        """Those let through so far."""

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        name = "\n".join(["delete", *keys])
        return self._call(name, lambda: self.inner.delete(keys, immutable=immutable))

    def _call(self, name: str, act: Callable[[], T]) -> T:
        with self._changed:
            while self._left <= 0:
                self.is_waiting = True
                self._changed.notify_all()
                assert self._changed.wait(_PATIENCE), f"nobody lets {name} through"
            self._left -= 1
            self.calls.append(name)
        return act()

    def let(self, calls: float) -> None:
        """Let this many calls through from now on."""
        with self._changed:
            self._left, self.is_waiting = calls, False
            self._changed.notify_all()

    def settle_down(self, is_over: Callable[[], bool]) -> None:
        """Wait until a call waits at the gate, or everything is over."""
        with self._changed:
            while not (self.is_waiting or is_over()):
                self._changed.wait(_PATIENCE)

    def leave(self) -> None:
        """Tell the waiting thread that everything is over."""
        with self._changed:
            self._changed.notify_all()


class Actor:
    """Does something in a thread of its own, as far as its gate lets it."""

    def __init__(self, gate: Gate, act: Callable[[], object]) -> None:
        self._gate = gate
        self._act = act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_over = False
        self._before = self._paused = self._ended = 0
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error
        self._is_over = True
        self._gate.leave()

    def advance(self, calls: int) -> bool:
        """Start or continue for this many calls of the storage. False: it ended before."""
        self._before = len(self._gate.calls)
        self._gate.let(calls)
        self._thread.start()
        self._gate.settle_down(lambda: self._is_over)
        self._paused = len(self._gate.calls)
        return not self._is_over

    def finish(self) -> None:
        """Continue to the end; `error` is what it ended with."""
        self._gate.let(math.inf)
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()
        self._ended = len(self._gate.calls)

    def next_pause(self, other: Actor) -> int | None:
        """After how many calls to pause next for a schedule that is not equivalent to this one.

        This actor was paused, the other went on to its end, then this one did. A call that touches
        nothing that the other touched after its own pause may as well have come before.
        """
        theirs = other._gate.calls[other._paused : other._ended]
        ours = self._gate.calls[self._paused : self._ended]
        for number, call in enumerate(ours, self._paused):
            if any(_clash(call, one) for one in theirs):
                return number - self._before + 1
        return None


def _clash(call: str, other: str) -> bool:
    """Whether it can matter which of two calls comes first."""
    return any(_sees(other, key) for key in _written(call)) or any(
        _sees(call, key) for key in _written(other)
    )


def _written(call: str) -> list[str]:
    if call.startswith("delete\n"):
        return call.split("\n")[1:]
    return [call.removeprefix("put ")] if call.startswith("put ") else []


def _sees(call: str, key: str) -> bool:
    verb, _, place = call.partition(" ")
    if verb in ("scan", "list_folders"):
        return key.startswith(place)
    return key == place or key in _written(call)


@dataclass(frozen=True, slots=True)
class Played:
    """One schedule of two actors."""

    outcome: str
    first_ended: bool
    """Before its pause."""
    next_second: int | None
    """Where to pause the second one next; `None` if all the rest would be the same."""


def play_all(play: Callable[[int, int], Played], step: int, first_step: int = 1) -> Counter[str]:
    """Pause two actors everywhere, or with a step; returns how many schedules had each outcome."""
    outcomes = Counter[str]()
    first, is_over = 0, False
    while not is_over:
        second: int | None = first % step
        while second is not None:
            played = play(first, second)
            outcomes[played.outcome] += 1
            is_over = played.first_ended
            following = played.next_second
            second = None if following is None else max(following, second + step)
        first += first_step
    return outcomes
