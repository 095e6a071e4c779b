"""Actors that share a storage and go on call by call, so that every interleaving can be tried."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.testing.storages import WrappedStorage

T = TypeVar("T")
_PATIENCE = 60.0


class Gate(WrappedStorage):
    """Lets calls through as long as there are some left; begins open."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._left = math.inf
        self._changed = threading.Condition()
        self.is_waiting = False

    def _call(self, name: str, act: Callable[[], T]) -> T:
        with self._changed:
            while self._left <= 0:
                self.is_waiting = True
                self._changed.notify_all()
                assert self._changed.wait(_PATIENCE), f"nobody lets {name} through"
            self._left -= 1
        return act()

    def let(self, calls: float) -> None:
        """Let so many calls through, from now on."""
        with self._changed:
            self._left, self.is_waiting = calls, False
            self._changed.notify_all()

    def settle_down(self, is_over: Callable[[], bool]) -> None:
        """Wait until somebody stands at the gate, or all is over."""
        with self._changed:
            while not (self.is_waiting or is_over()):
                self._changed.wait(_PATIENCE)

    def leave(self) -> None:
        """Tell who waits that all is over."""
        with self._changed:
            self._changed.notify_all()


class Actor:
    """Does something in a thread of its own, as far as its gate lets it."""

    def __init__(self, gate: Gate, act: Callable[[], object]) -> None:
        self._gate = gate
        self._act = act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_over = False
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.error = error
        self._is_over = True
        self._gate.leave()

    def advance(self, calls: int) -> bool:
        """Begin, and go on for so many calls of the storage. False: it ended before."""
        self._gate.let(calls)
        self._thread.start()
        self._gate.settle_down(lambda: self._is_over)
        return not self._is_over

    def finish(self) -> None:
        """Go on to the end; `error` is what it ended with."""
        self._gate.let(math.inf)
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()
