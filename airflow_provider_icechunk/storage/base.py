"""The storage seam: what a repository asks of the place where its objects are.

Conditions are values (`Absent`, `Exactly`, `Anything`), and so are outcomes (`Written`, `Lost`):
losing a race is an answer, not an exception. A write whose outcome cannot be found out raises
`OutcomeUnknownError`, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NewType, Protocol, runtime_checkable

Version = NewType("Version", str)
"""An opaque tag of one state of an object: an entity tag, or what a backend has instead."""

Data = bytes | bytearray | memoryview

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Bytes from `start` up to, not including, `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class From:
    """All bytes from `start` on."""

    start: int


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` bytes; all of a shorter object."""

    count: int


@dataclass(frozen=True, slots=True)
class Until:
    """All but the last `count` bytes."""

    count: int


ByteRange = Bounded | From | Last | Until


@dataclass(frozen=True, slots=True)
class Absent:
    """Write only if there is no object under the key."""


@dataclass(frozen=True, slots=True)
class Exactly:
    """Write only if the object is still in this state."""

    version: Version


@dataclass(frozen=True, slots=True)
class Anything:
    """Write in any case."""


Expectation = Absent | Exactly | Anything


@dataclass(frozen=True, slots=True)
class Written:
    """The write landed, and this is the object's state now."""

    version: Version


@dataclass(frozen=True, slots=True)
class Lost:
    """The condition did not hold; nothing was written."""


PutOutcome = Written | Lost


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of an object, and the state they were read in."""

    data: bytes
    version: Version


class Listed(NamedTuple):
    """An object in a listing; a tuple, because listings are long."""

    key: str
    size: int
    micros: int
    """Time of the last write by the store's own clock, in microseconds since 1970 UTC."""

    @classmethod
    def at(cls, key: str, size: int, created_at: datetime) -> Listed:
        """An object that was written at a time that has a zone."""
        return cls(key, size, (created_at - _EPOCH) // _MICRO)

    @property
    def created_at(self) -> datetime:
        """The same time as a `datetime` in UTC."""
        return _EPOCH + timedelta(microseconds=self.micros)


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a batched delete did. A key that was not there counts as deleted."""

    keys: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """Key to reason."""


@dataclass(frozen=True, slots=True)
class Put:
    """One unconditional write of a batch."""

    key: str
    data: Data
    metadata: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None


@runtime_checkable
class HasEndpoint(Protocol):
    """A storage that is reached at an address of its own, not at its vendor's usual one."""

    @property
    def endpoint_url(self) -> str | None:
        """The address, if it is not the usual one."""
        ...


@runtime_checkable
class ReadsInto(Protocol):
    """A storage that puts bytes where they stay, instead of into memory of their own."""

    def get_into(self, key: str, start: int, space: memoryview) -> int | None:
        """Fill writable, contiguous bytes with those of an object from `start` on.

        Returns how many there were, fewer only if the object ends before; `None` if there is no
        such object. If it raises, the space may hold anything.
        """
        ...


@runtime_checkable
class KeepsUnfinished(Protocol):
    """A storage in which a writer that is killed leaves unfinished files, which no listing shows.

    Their names are no keys. Only a collection asks for them, and only it removes them.
    """

    def unfinished(self, before: int) -> list[Listed]:
        """Files that were last written to before a store time in microseconds since 1970."""
        ...

    def remove_unfinished(self, names: Sequence[str]) -> Deleted:
        """Remove such files, and no other ones."""
        ...


@runtime_checkable
class Storage(Protocol):
    """Where a repository keeps its objects.

    Keys are relative, `/`-separated, without empty, `.` or `..` segments; a backend refuses others
    with `InvalidInputError` before it touches anything. All methods are safe to call from many
    threads, and after a fork.
    """

    @property
    def location(self) -> str:
        """A URL-like name for messages; never holds credentials."""
        ...

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if there is no such object.

        A range that reaches over the end gives what is there.
        """
        ...

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """`get` for many at once with bounded concurrency; results in the order of requests."""
        ...

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """Write the whole object if `expect` holds.

        With `Absent` or `Exactly` the object is durable when this returns `Written`. With
        `Anything` it may become durable only at the next `settle`.
        """
        ...

    def put_many(self, puts: Sequence[Put]) -> None:
        """Unconditional writes, at once with bounded concurrency. Durable after `settle`."""
        ...

    def settle(self) -> None:
        """Make every earlier unconditional write through this object durable.

        A commit calls it before the reference moves. Where a write is durable when it is answered
        (object stores), this does nothing.
        """
        ...

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key starts with `prefix`, in ascending order of key, paged inside."""
        ...

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` (which ends with `/`) under which there are objects."""
        ...

    def head(self, key: str) -> Listed | None:
        """Size and creation time without the bytes."""
        ...

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """Delete in batches; reports what failed instead of raising for single keys.

        :param immutable: whether these objects are never replaced under a condition, which is so
            for all but references and the like. They need not be guarded against it then.
        """
        ...

    def now(self) -> datetime:
        """The store's own clock, in UTC."""
        ...

    def check_conditional_writes(self) -> None:
        """Find out by trying whether conditional writes are honoured.

        Raises `UnsafeStorageError` when they are not. Uses and removes keys of its own.
        """
        ...


def read_into(storage: Storage, key: str, start: int, space: memoryview) -> int | None:
    """`get_into` of any storage."""
    if isinstance(storage, ReadsInto):
        return storage.get_into(key, start, space)
    found = storage.get(key, Bounded(start, start + len(space)))
    if found is None:
        return None
    space[: len(found.data)] = found.data
    return len(found.data)
