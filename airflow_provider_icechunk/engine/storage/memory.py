"""Objects in this process's memory: the reference implementation for the other back ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, assert_never
from weakref import WeakValueDictionary

from airflow_provider_icechunk.engine.concurrency import PerProcess
from airflow_provider_icechunk.exceptions import InvalidInputError

from .base import (
    Absent,
    Anything,
    ByteRange,
    Data,
    Deleted,
    Exactly,
    Expectation,
    Fetched,
    Listed,
    Lost,
    Put,
    PutOutcome,
    Version,
    Written,
    check_key,
    check_prefix,
    put_one_by_one,
    resolve,
)
from .faces import OfficialStorage


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in memory, with everything an object store would record."""

    data: bytes
    version: Version
    created_at: datetime
    metadata: Mapping[str, str]
    content_type: str | None


def system_clock() -> datetime:
    """The time of this host, in UTC."""
    return datetime.now(UTC)


class MemoryStorage(OfficialStorage):
    """Objects in a dictionary; lost with the process, and not shared with its forks.

    :param clock: returns the time of writes; tests can pass their own.
    :param name: shown in messages.
    """

    def __init__(
        self, *, clock: Callable[[], datetime] = system_clock, name: str | None = None
    ) -> None:
        self._clock = clock
        self._number = next(_numbers)
        self._name = name or f"anonymous-{self._number}"
        _alive[self._number] = self
        self._objects: dict[str, StoredObject] = {}
        self._versions = count(1)
        self._lock = PerProcess(threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        """The same object, in the same process only."""
        return (_same, (os.getpid(), self._number))

    @property
    def location(self) -> str:
        """A URL-like name for messages."""
        return f"memory://{self._name}"

    @property
    def objects(self) -> Mapping[str, StoredObject]:
        """A copy of all objects by key, for tests."""
        with self._lock.get():
            return dict(self._objects)

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if it does not exist."""
        found = self._objects.get(check_key(key))
        if found is None:
            return None
        start, stop = resolve(byte_range, len(found.data))
        return Fetched(found.data[start:stop], found.version)

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """`get` for many; results in the order of requests."""
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
        """Write the whole object if `expect` holds."""
        check_key(key)
        content = bytes(data)
        with self._lock.get():
            if not _holds(expect, self._objects.get(key)):
                return Lost()
            version = Version(str(next(self._versions)))
            self._objects[key] = StoredObject(
                content, version, self._clock(), dict(metadata or {}), content_type
            )
            return Written(version)

    def put_many(self, puts: Sequence[Put]) -> None:
        """Unconditional writes."""
        put_one_by_one(self, puts)

    def settle(self) -> None:
        """Do nothing: memory is not durable."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key starts with `prefix`, in ascending order of key."""
        check_prefix(prefix)
        with self._lock.get():
            found = [item for item in self._objects.items() if item[0].startswith(prefix)]
        return (_listed(key, stored) for key, stored in sorted(found, key=lambda item: item[0]))

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that contain objects."""
        tails = (listed.key[len(prefix) :] for listed in self.scan(prefix))
        return sorted({tail.split("/", 1)[0] for tail in tails if "/" in tail})

    def head(self, key: str) -> Listed | None:
        """Size and time of the object; `None` if it does not exist."""
        found = self._objects.get(check_key(key))
        return None if found is None else _listed(key, found)

    def delete(
        self,
        keys: Sequence[str],
        *,
        immutable: bool = False,  # noqa: ARG002 - one lock for all
    ) -> Deleted:
        """Delete; a missing key counts as deleted."""
        for key in keys:
            check_key(key)
        with self._lock.get():
            for key in keys:
                self._objects.pop(key, None)
        return Deleted(tuple(keys))

    def now(self) -> datetime:
        """The time of the injected clock."""
        return self._clock()

    def check_conditional_writes(self) -> None:
        """Do nothing: this class has its own lock."""


_numbers = count(1)
_alive: WeakValueDictionary[int, MemoryStorage] = WeakValueDictionary()


def _same(process: int, number: int) -> MemoryStorage:
    found = _alive.get(number) if process == os.getpid() else None
    if found is None:
        raise InvalidInputError(
            "a storage in memory exists only in the process that created it, while it is in use: "
            "share a folder or a bucket between processes"
        )
    return found


def _holds(expect: Expectation, current: StoredObject | None) -> bool:
    match expect:
        case Anything():
            return True
        case Absent():
            return current is None
        case Exactly(version):
            return current is not None and current.version == version
        case _:
            assert_never(expect)


def _listed(key: str, stored: StoredObject) -> Listed:
    return Listed.at(key, len(stored.data), stored.created_at)
