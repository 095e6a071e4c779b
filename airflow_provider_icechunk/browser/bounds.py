"""What one request of the browser may use: time, storage requests and bytes.

Anyone with access can request a page, about repositories whose files anyone may have written. The
bounds are therefore enforced below the engine, in the storage: whatever it does for a request ends
when the meter runs out. The same storage refuses to write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NoReturn

from airflow_provider_icechunk.engine.budget import allowing, for_web_pages
from airflow_provider_icechunk.engine.storage.base import (
    Data,
    Deleted,
    Expectation,
    Listed,
    Put,
    PutOutcome,
)
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.exceptions import Kind, ReadOnlyError, StorageError


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The most that one request may take."""

    seconds: float = 20.0
    requests: int = 20_000
    bytes: int = 256 << 20
    """Read from the storage."""


@dataclass(slots=True)
class RequestMeter:
    """What one request has used so far."""

    limits: RequestLimits
    until: float
    requests: int = 0
    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, requests: int, size: int) -> None:
        """Count; raises once a limit is passed."""
        with self._lock:
            self.requests += requests
            self.bytes += size
        if self.requests > self.limits.requests:
            raise _too_much(f"{self.limits.requests} storage requests")
        if self.bytes > self.limits.bytes:
            raise _too_much(f"{self.limits.bytes >> 20} MiB read")
        if time.monotonic() > self.until:
            raise _too_much(f"{self.limits.seconds:g} seconds")


_METER: ContextVar[RequestMeter | None] = ContextVar("_METER", default=None)


@contextmanager
def bounded(limits: RequestLimits) -> Iterator[RequestMeter]:
    """Everything that the block reads through a `BoundedStorage` counts, in its threads too."""
    meter = RequestMeter(limits, time.monotonic() + limits.seconds)
    token = _METER.set(meter)
    try:
        with allowing(for_web_pages()):
            yield meter
    finally:
        _METER.reset(token)


class BoundedStorage(ObservedStorage):
    """A read-only storage that enforces the limits of the current request."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Each listed object counts as a hundredth of a request: a listing is paged."""
        self._count("scan", 1, 0, 0.0)
        for number, item in enumerate(self.inner.scan(prefix)):
            if number % 100 == 99:
                self._count("scan", 1, 0, 0.0)
            yield item

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """Refused."""
        del data, expect, metadata, content_type
        _refuse(key)

    def put_many(self, puts: Sequence[Put]) -> None:
        """Refused."""
        _refuse(", ".join(one.key for one in puts[:3]))

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """Refused."""
        del immutable
        _refuse(", ".join(keys[:3]))

    def remove_unfinished(self, names: Sequence[str]) -> Deleted:
        """Refused."""
        _refuse(", ".join(names[:3]))

    @contextmanager
    def _counting(self, verb: str, *, requests: int = 1) -> Iterator[list[int]]:
        meter = _METER.get()
        if meter is not None:
            meter.take(requests, 0)
        with super()._counting(verb, requests=requests) as sizes:
            yield sizes
        if meter is not None:
            meter.take(0, sum(sizes))

    def _count(self, verb: str, requests: int, size: int, seconds: float) -> None:
        if verb == "scan" and (meter := _METER.get()) is not None:
            meter.take(requests, 0)
        super()._count(verb, requests, size, seconds)


def _too_much(what: str) -> StorageError:
    return StorageError(
        f"this page would take more than {what}, the limit for one request: request less at once, "
        "or use the command line",
        kind=Kind.LIMIT_EXCEEDED,
    )


def _refuse(what: str) -> NoReturn:
    raise ReadOnlyError(f"the repository browser only reads; it was about to write {what[:200]!r}")
