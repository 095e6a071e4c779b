"""Cached responses, as the bytes that are sent.

A version never changes, so a response is valid as long as branches and tags have not moved since
it was made. They are read again every two seconds; changes that they do not show (an expiry that
rewrites history, a lost file) are seen after a minute. Many viewers of the same thing cost as
much as one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

_MOST_BYTES = 48 << 20
_LARGEST = 4 << 20
_KEPT_FOR = 60.0


@dataclass(slots=True)
class _Pending:
    """A response that is being made."""

    done: threading.Event = field(default_factory=threading.Event)
    data: bytes | None = None


class Answers:
    """A bounded number of bytes. Safe to use from many threads."""

    def __init__(
        self, most_bytes: int = _MOST_BYTES, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[bytes, float]] = OrderedDict()
        self._making: dict[Hashable, _Pending] = {}
        self.size = 0

    def find(self, key: Hashable) -> bytes | None:
        """A cached response."""
        with self._lock:
            found = self._kept.get(key)
            if found is None or found[1] <= self._clock():
                return None
            self._kept.move_to_end(key)
            return found[0]

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """A response; if several threads miss it at once, one makes it and the others wait."""
        while (found := self.find(key)) is None:
            mine = _Pending()
            with self._lock:
                other = self._making.setdefault(key, mine)
            if other is mine:
                return self._make(key, make, mine)
            other.done.wait()
            if other.data is not None:
                return other.data
            # It failed for the other thread, perhaps because it had reached its limits: try
            # here.
        return found

    def _make(self, key: Hashable, make: Callable[[], bytes], mine: _Pending) -> bytes:
        try:
            mine.data = make()
            self._keep(key, mine.data)
            return mine.data
        finally:
            with self._lock:
                del self._making[key]
            mine.done.set()

    def _keep(self, key: Hashable, data: bytes) -> None:
        if len(data) > _LARGEST:
            return
        with self._lock:
            old = self._kept.pop(key, None)
            self.size += len(data) - (0 if old is None else len(old[0]))
            self._kept[key] = (data, self._clock() + _KEPT_FOR)
            while self.size > self._most_bytes:
                _, (gone, _) = self._kept.popitem(last=False)
                self.size -= len(gone)
