"""Things that must not cross a fork: each process makes its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A lazily made value of which every process has its own.

    A lock, a thread pool or a socket copied by a fork is worse than useless: the lock may be held
    by a thread that does not exist in the child.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: tuple[int, T] | None = None

    def get(self) -> T:
        """The value of this process."""
        pid = os.getpid()
        held = self._held
        if held is not None and held[0] == pid:
            return held[1]
        with _Making.guard:
            held = self._held
            if held is None or held[0] != pid:
                held = (pid, self._make())
                self._held = held
            return held[1]


class _Making:
    guard = threading.RLock()


def _renew_guard() -> None:
    _Making.guard = threading.RLock()


os.register_at_fork(after_in_child=_renew_guard)
