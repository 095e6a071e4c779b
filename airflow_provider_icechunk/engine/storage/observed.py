"""Counts the requests to a storage, their bytes and time, by verb, and their depth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_icechunk.engine.concurrency import WAITED, PerProcess

from .base import (
    ByteRange,
    Data,
    Deleted,
    Expectation,
    Fetched,
    KeepsUnfinished,
    Listed,
    Put,
    PutOutcome,
    Storage,
    read_into,
)
from .tuning import Tuning, followed, tuned

_FREE = {"settle"}
"""Verbs that send no request to an object store."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one verb."""

    requests: int = 0
    """Objects read, written or deleted; a listing counts as one."""
    bytes: int = 0
    seconds: float = 0.0

    def plus(self, requests: int, size: int, seconds: float) -> Usage:
        """The sum."""
        return Usage(self.requests + requests, self.bytes + size, self.seconds + seconds)


class ObservedStorage:
    """Forwards everything to `inner` and counts it.

    :param clock: monotonic seconds.
    """

    def __init__(self, inner: Storage, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._inner = inner
        self._clock = clock
        self._usage: dict[str, Usage] = {}
        self._depth = [0]
        self._lock = PerProcess(threading.Lock)

    @property
    def followed(self) -> frozenset[str]:
        """What the wrapped storage follows."""
        return followed(self._inner)

    def tuned(self, tuning: Tuning) -> ObservedStorage:
        """The same counters over a storage with other settings."""
        inner = tuned(self._inner, tuning)
        if inner is self._inner:
            return self
        twin = copy(self)
        twin._inner = inner
        return twin

    @property
    def inner(self) -> Storage:
        """The wrapped storage."""
        return self._inner

    @property
    def usage(self) -> Mapping[str, Usage]:
        """Usage so far, by verb."""
        with self._lock.get():
            return dict(self._usage)

    @property
    def depth(self) -> int:
        """How many requests had to wait for one another; those of one call or batch count once.

        Exact for work of the thread that called `reset` and what it ran in the pool.
        """
        return self._depth[0]

    def reset(self) -> None:
        """Reset the counters."""
        with self._lock.get():
            self._usage.clear()
            self._depth[0] = 0
            WAITED.set(0)

    @property
    def location(self) -> str:
        """The location of the wrapped storage."""
        return self._inner.location

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """Counted `get`."""
        with self._counting("get") as size:
            found = self._inner.get(key, byte_range)
            size.append(0 if found is None else len(found.data))
        return found

    def get_into(self, key: str, start: int, space: memoryview) -> int | None:
        """Counted as `get`."""
        with self._counting("get") as size:
            found = read_into(self._inner, key, start, space)
            size.append(found or 0)
        return found

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """Counted as one `get` per object."""
        with self._counting("get", requests=len(requests)) as size:
            found = self._inner.get_many(requests)
            size.extend(len(one.data) for one in found if one is not None)
        return found

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """Counted `put`."""
        with self._counting("put") as size:
            size.append(memoryview(data).nbytes)
            return self._inner.put(
                key, data, expect=expect, metadata=metadata, content_type=content_type
            )

    def put_many(self, puts: Sequence[Put]) -> None:
        """Counted as one `put` per object."""
        with self._counting("put", requests=len(puts)) as size:
            size.extend(memoryview(one.data).nbytes for one in puts)
            self._inner.put_many(puts)

    def settle(self) -> None:
        """Counted `settle`."""
        with self._counting("settle"):
            self._inner.settle()

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Counted `scan`; its time is not measured, since the consumer sets the pace."""
        self._count("scan", 1, 0, 0.0)
        return self._inner.scan(prefix)

    def list_folders(self, prefix: str) -> list[str]:
        """Counted `list_folders`."""
        with self._counting("list_folders"):
            return self._inner.list_folders(prefix)

    def head(self, key: str) -> Listed | None:
        """Counted `head`."""
        with self._counting("head"):
            return self._inner.head(key)

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """Counted `delete`, one request per key."""
        with self._counting("delete", requests=len(keys)):
            return self._inner.delete(keys, immutable=immutable)

    def unfinished(self, before: int) -> list[Listed]:
        """Counted `unfinished` of a storage that has such files."""
        if not isinstance(self._inner, KeepsUnfinished):
            return []
        with self._counting("unfinished"):
            return self._inner.unfinished(before)

    def remove_unfinished(self, names: Sequence[str]) -> Deleted:
        """Counted `remove_unfinished`."""
        if not isinstance(self._inner, KeepsUnfinished):
            return Deleted()
        with self._counting("remove_unfinished", requests=len(names)):
            return self._inner.remove_unfinished(names)

    def now(self) -> datetime:
        """Counted `now`."""
        with self._counting("now"):
            return self._inner.now()

    def check_conditional_writes(self) -> None:
        """Counted `check_conditional_writes`."""
        with self._counting("check_conditional_writes"):
            self._inner.check_conditional_writes()

    @contextmanager
    def _counting(self, verb: str, *, requests: int = 1) -> Iterator[list[int]]:
        sizes: list[int] = []
        start = self._clock()
        try:
            yield sizes
        finally:
            self._count(verb, requests, sum(sizes), self._clock() - start)

    def _count(self, verb: str, requests: int, size: int, seconds: float) -> None:
        waited = WAITED.get() + (requests > 0 and verb not in _FREE)
        WAITED.set(waited)
        with self._lock.get():
            self._depth[0] = max(self._depth[0], waited)
            self._usage[verb] = self._usage.get(verb, Usage()).plus(requests, size, seconds)
