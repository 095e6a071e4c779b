"""Objects in this process's memory: the reference that the other backends are compared with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, assert_never
from weakref import WeakValueDictionary

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.storage.base import (
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
)
from airflow_provider_icechunk.storage.keys import check_key, check_prefix
from airflow_provider_icechunk.storage.process import PerProcess
from airflow_provider_icechunk.storage.ranges import resolve


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in memory, with everything an object store would keep about it."""

    data: bytes
    version: Version
    created_at: datetime
    metadata: Mapping[str, str]
    content_type: str | None


def system_clock() -> datetime:
    """The time of this host, in UTC."""
    return datetime.now(UTC)


class MemoryStorage:
    """Objects in a dictionary; gone with the process, and not shared with its forks.

    :param clock: gives the time of writes; a test can bring its own.
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

    def __repr__(self) -> str:
        return f"MemoryStorage({self.location!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """The same object again, in the same process; there is nothing to take elsewhere."""
        return (_same, (os.getpid(), self._number))

    @property
    def location(self) -> str:
        """A URL-like name for messages."""
        return f"memory://{self._name}"

    @property
    def objects(self) -> Mapping[str, StoredObject]:
        """All objects as they are now, by key: for tests that want to see everything."""
        with self._lock.get():
            return dict(self._objects)

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if there is no such object."""
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
        for one in puts:
            self.put(
                one.key,
                one.data,
                expect=Anything(),
                metadata=one.metadata,
                content_type=one.content_type,
            )

    def settle(self) -> None:
        """Nothing to do: memory is as durable as it will ever be."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key starts with `prefix`, in ascending order of key."""
        check_prefix(prefix)
        with self._lock.get():
            found = [item for item in self._objects.items() if item[0].startswith(prefix)]
        return (_listed(key, stored) for key, stored in sorted(found, key=lambda item: item[0]))

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` under which there are objects."""
        tails = (listed.key[len(prefix) :] for listed in self.scan(prefix))
        return sorted({tail.split("/", 1)[0] for tail in tails if "/" in tail})

    def head(self, key: str) -> Listed | None:
        """Size and creation time without the bytes."""
        found = self._objects.get(check_key(key))
        return None if found is None else _listed(key, found)

    def delete(
        self,
        keys: Sequence[str],
        *,
        immutable: bool = False,  # noqa: ARG002 - one lock for all
    ) -> Deleted:
        """Delete; a key that is not there counts as deleted."""
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
        """Nothing to find out: the lock is in this class."""


_numbers = count(1)
_alive: WeakValueDictionary[int, MemoryStorage] = WeakValueDictionary()


def _same(process: int, number: int) -> MemoryStorage:
    found = _alive.get(number) if process == os.getpid() else None
    if found is None:
        raise InvalidInputError(
            "a storage in memory exists only in the process that made it, as long as it is used: "
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
