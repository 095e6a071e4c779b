"""Storages that misbehave on purpose: they crash, lose responses, or are slow."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from airflow_provider_icechunk.engine.storage.base import (
    Anything,
    ByteRange,
    Data,
    Deleted,
    Expectation,
    Fetched,
    Listed,
    Put,
    PutOutcome,
    Storage,
    put_one_by_one,
)
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.readback import resolve_lost_put
from airflow_provider_icechunk.exceptions import Kind, StorageError

T = TypeVar("T")


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that no handler catches it."""


class WrappedStorage:
    """Forwards everything to `inner`; every call that touches the store goes through `_call`."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    @property
    def location(self) -> str:
        """The location of the inner storage."""
        return self.inner.location

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """See `Storage.get`."""
        return self._call(f"get {key}", lambda: self.inner.get(key, byte_range))

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """See `Storage.get_many`; one call per object."""
        return [self.get(key, byte_range) for key, byte_range in requests]

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """See `Storage.put`."""
        return self._call(
            f"put {key}",
            lambda: self.inner.put(
                key, data, expect=expect, metadata=metadata, content_type=content_type
            ),
        )

    def put_many(self, puts: Sequence[Put]) -> None:
        """See `Storage.put_many`; one call per object."""
        put_one_by_one(self, puts)

    def settle(self) -> None:
        """See `Storage.settle`."""
        self._call("settle", self.inner.settle)

    def scan(self, prefix: str) -> Iterator[Listed]:
        """See `Storage.scan`."""
        return self._call(f"scan {prefix}", lambda: self.inner.scan(prefix))

    def list_folders(self, prefix: str) -> list[str]:
        """See `Storage.list_folders`."""
        return self._call(f"list_folders {prefix}", lambda: self.inner.list_folders(prefix))

    def head(self, key: str) -> Listed | None:
        """See `Storage.head`."""
        return self._call(f"head {key}", lambda: self.inner.head(key))

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """See `Storage.delete`."""
        return self._call(
            f"delete {len(keys)} keys", lambda: self.inner.delete(keys, immutable=immutable)
        )

    def now(self) -> datetime:
        """See `Storage.now`."""
        return self._call("now", self.inner.now)

    def check_conditional_writes(self) -> None:
        """See `Storage.check_conditional_writes`."""
        self._call("check_conditional_writes", self.inner.check_conditional_writes)

    def _call(self, name: str, act: Callable[[], T]) -> T:  # noqa: ARG002 - for those who override
        return act()


class CrashingStorage(WrappedStorage):
    """Dies at one call and refuses all later ones, like a dead process.

    :param at: which call, counted from 0; `None` only counts.
    :param after: whether the call still takes effect.
    """

    def __init__(self, inner: Storage, at: int | None = None, after: bool = False) -> None:
        super().__init__(inner)
        self._at = at
        self._after = after
        self._lock = threading.Lock()
        self._dead = False
        self.calls: list[str] = []

    def _call(self, name: str, act: Callable[[], T]) -> T:
        with self._lock:
            if self._dead:
                raise Crash(name)
            number = len(self.calls)
            self.calls.append(name)
            self._dead = number == self._at
            dies = self._dead
        if not dies:
            return act()
        if self._after:
            act()
        raise Crash(name)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One point at which a scenario crashed."""

    call: int
    after: bool
    name: str
    storage: Storage
    """What the dead process left; reopen it."""


def every_crash(
    scenario: Callable[[Storage], object],
    *,
    prepare: Callable[[Storage], object] = lambda _: None,
    make: Callable[[], Storage] = MemoryStorage,
    step: int = 1,
) -> Iterator[CrashPoint]:
    """Run `scenario` repeatedly, crashing before and after each call it makes.

    `scenario` gets the crashing storage and must make the same calls each time; `prepare` gets each
    fresh storage first, and does not crash. The first run only counts calls; a scenario without
    calls is an error. With a `step` of 3 every third of these crashes is tried, and the last; an
    even one would never crash before a call.
    """
    counted = CrashingStorage(_prepared(make, prepare))
    scenario(counted)
    if not counted.calls:
        raise AssertionError("the scenario never touched the storage")
    for number in reversed(range(2 * len(counted.calls) - 1, -1, -step)):
        call, after = number // 2, number % 2 == 1
        name = counted.calls[call]
        inner = _prepared(make, prepare)
        try:
            scenario(CrashingStorage(inner, call, after))
        except Crash:
            yield CrashPoint(call, after, name, inner)
        else:
            raise AssertionError(f"the scenario survived a crash at call {call}: {name}")


def _prepared(make: Callable[[], Storage], prepare: Callable[[Storage], object]) -> Storage:
    storage = make()
    prepare(storage)
    return storage


class FlakyStorage(WrappedStorage):
    """Loses the responses to some conditional writes, which still happen.

    :param probability: probability that a response is lost.
    :param resolve: whether to find out by reading back, as real back ends do. Otherwise the loss
        is raised as a `StorageError` of kind `STORAGE_UNREACHABLE`.
    """

    def __init__(
        self, inner: Storage, probability: float = 0.2, *, seed: int = 0, resolve: bool = True
    ) -> None:
        super().__init__(inner)
        self._probability = probability
        self._resolve = resolve
        self._random = random.Random(seed)  # noqa: S311 - repeatable, hides nothing
        self._lock = threading.Lock()
        self.lost_answers = 0

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """See `Storage.put`; the response may be lost."""
        outcome = self.inner.put(
            key, data, expect=expect, metadata=metadata, content_type=content_type
        )
        if isinstance(expect, Anything) or not self._loses():
            return outcome
        if self._resolve:
            return resolve_lost_put(self._unresolved(), key, data, expect)
        raise StorageError(
            f"the response to the write of {key} was lost", kind=Kind.STORAGE_UNREACHABLE
        )

    def _loses(self) -> bool:
        with self._lock:
            loses = self._random.random() < self._probability
            self.lost_answers += loses
            return loses

    def _unresolved(self) -> FlakyStorage:
        with self._lock:
            seed = self._random.getrandbits(32)
        return FlakyStorage(self.inner, self._probability, seed=seed, resolve=False)


class SlowStorage(WrappedStorage):
    """Waits before every call, like a distant store.

    :param latency: seconds per call.
    """

    def __init__(
        self, inner: Storage, latency: float, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner)
        self._latency = latency
        self._sleep = sleep

    def _call(self, name: str, act: Callable[[], T]) -> T:  # noqa: ARG002 - all calls alike
        self._sleep(self._latency)
        return act()
