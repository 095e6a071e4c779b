"""A bounded, thread-safe cache that loads each missing value once, for any number of threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from airflow_provider_icechunk.engine.concurrency import PerProcess

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeightedCache(Generic[K, V]):
    """Least recently used values are dropped once their weights exceed `limit`.

    A single value heavier than `limit` is returned but not kept.
    """

    def __init__(self, limit: int, weigh: Callable[[V], int]) -> None:
        self._limit = limit
        self._weigh = weigh
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._loading = PerProcess[dict[K, Future[V]]](dict)
        """A forked child would wait forever for the threads of its parent."""
        self._total = 0
        self._lock = PerProcess(threading.Lock)

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The cached value, or the result of `load`; all waiting threads get its error."""
        with self._lock.get():
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
            mine: Future[V] = Future()
            loading = self._loading.get().setdefault(key, mine)
        if loading is not mine:
            return loading.result()
        try:
            value = load()
        except BaseException as error:
            with self._lock.get():
                del self._loading.get()[key]
            mine.set_exception(error)
            raise
        self.put(key, value)
        with self._lock.get():
            self._loading.get().pop(key, None)
        mine.set_result(value)
        return value

    def peek(self, key: K) -> V | None:
        """The value, if it is cached."""
        with self._lock.get():
            found = self._values.get(key)
            return None if found is None else found[0]

    def put(self, key: K, value: V) -> None:
        """Add a value."""
        weight = self._weigh(value)
        with self._lock.get():
            self._forget(key)
            if weight > self._limit:
                return
            self._values[key] = (value, weight)
            self._total += weight
            while self._total > self._limit and self._values:
                oldest = next(iter(self._values))
                self._forget(oldest)

    def drop(self, key: K) -> None:
        """Remove a value."""
        with self._lock.get():
            self._forget(key)

    @property
    def weight(self) -> int:
        """Total weight of the cached values."""
        return self._total

    def _forget(self, key: K) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self._total -= found[1]
