"""The storage protocol: keys and bytes, byte ranges, conditional writes and their outcomes.

Conditions are values (`Absent`, `Exactly`, `Anything`), and so are outcomes (`Written`, `Lost`):
a lost race is a return value, not an exception. A write whose outcome cannot be determined raises
`OutcomeUnknownError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NewType, Protocol, assert_never, runtime_checkable

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

Version = NewType("Version", str)
"""An opaque tag of one state of an object: an entity tag, or the back end's equivalent."""

Data = bytes | bytearray | memoryview

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Bytes from `start` up to, but not including, `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class From:
    """All bytes from `start` on."""

    start: int


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` bytes, or all of a shorter object."""

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
    """Write unconditionally."""


Expectation = Absent | Exactly | Anything


@dataclass(frozen=True, slots=True)
class Written:
    """The write landed; this is the object's new state."""

    version: Version


@dataclass(frozen=True, slots=True)
class Lost:
    """The condition did not hold; nothing was written."""


PutOutcome = Written | Lost


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of an object, and its state when they were read."""

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
        """An object written at a time with a time zone."""
        return cls(key, size, (created_at - _EPOCH) // _MICRO)

    @property
    def created_at(self) -> datetime:
        """The same time as a `datetime` in UTC."""
        return _EPOCH + timedelta(microseconds=self.micros)


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a batched delete. A missing key counts as deleted."""

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
    """A storage that may have an address other than its vendor's usual one."""

    @property
    def endpoint_url(self) -> str | None:
        """The address, if it is not the usual one."""
        ...


@runtime_checkable
class ReadsInto(Protocol):
    """A storage that reads into the caller's memory."""

    def get_into(self, key: str, start: int, space: memoryview) -> int | None:
        """Fill writable, contiguous bytes with those of an object from `start` on.

        Returns their number, fewer only if the object ends before; `None` if the object does not
        exist. If it raises, the content of the space is undefined.
        """
        ...


@runtime_checkable
class KeepsUnfinished(Protocol):
    """A storage in which a killed writer leaves unfinished files, which listings omit.

    Their names are not keys. Only a collection lists and removes them.
    """

    def unfinished(self, before: int) -> list[Listed]:
        """Files last written before a store time in microseconds since 1970."""
        ...

    def remove_unfinished(self, names: Sequence[str]) -> Deleted:
        """Remove such files, and no others."""
        ...


class Readable(Protocol):
    """What callers that only read objects by key need of a storage."""

    @property
    def location(self) -> str:
        """Where the objects are."""
        ...

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """See `Storage.get`."""
        ...

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """See `Storage.get_many`."""
        ...


@runtime_checkable
class Storage(Protocol):
    """Where a repository keeps its objects.

    Keys are relative, `/`-separated, without empty, `.` or `..` segments; a back end rejects others
    with `InvalidInputError` before it does anything. All methods are thread-safe and may be
    called after a fork.
    """

    @property
    def location(self) -> str:
        """A URL-like name for messages; never contains credentials."""
        ...

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if it does not exist.

        A range that exceeds the object is cut.
        """
        ...

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """`get` many with bounded concurrency; results in the order of requests."""
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
        """Unconditional writes with bounded concurrency. Durable after `settle`."""
        ...

    def settle(self) -> None:
        """Make every earlier unconditional write through this object durable.

        A commit calls it before it moves the ref. Object stores, whose writes are durable
        immediately, do nothing.
        """
        ...

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key starts with `prefix`, in ascending order of key, read in pages."""
        ...

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` (which ends with `/`) that contain objects."""
        ...

    def head(self, key: str) -> Listed | None:
        """Size and time of the object; `None` if it does not exist."""
        ...

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """Delete in batches; reports failures of single keys instead of raising.

        :param immutable: whether these objects are never replaced conditionally, which is true of
            all but refs and the like. Deleting them then needs no lock.
        """
        ...

    def now(self) -> datetime:
        """The store's own clock, in UTC."""
        ...

    def check_conditional_writes(self) -> None:
        """Test whether conditional writes are honoured.

        Raises `UnsafeStorageError` if not. Uses temporary keys.
        """
        ...


def read_into(storage: Readable, key: str, start: int, space: memoryview) -> int | None:
    """`get_into` for any storage."""
    if isinstance(storage, ReadsInto):
        return storage.get_into(key, start, space)
    found = storage.get(key, Bounded(start, start + len(space)))
    if found is None:
        return None
    space[: len(found.data)] = found.data
    return len(found.data)


def put_one_by_one(storage: Storage, puts: Sequence[Put]) -> None:
    """`put_many` for a storage without a better way."""
    for one in puts:
        storage.put(
            one.key,
            one.data,
            expect=Anything(),
            metadata=one.metadata,
            content_type=one.content_type,
        )


_REPORTED = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/(\*|[0-9]{1,19})")


class Unfinished(ConnectionError):  # noqa: N818 - as the other connection errors are called
    """A body ended early, or may have."""


def resolve(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """Start and stop of a range in an object of `size` bytes, cut at its end."""
    match byte_range:
        case None:
            return 0, size
        case Bounded(start, stop):
            _check(start, stop - start)
            return min(start, size), min(stop, size)
        case From(start):
            _check(start)
            return min(start, size), size
        case Last(count):
            _check(count)
            return max(0, size - count), size
        case Until(count):
            _check(count)
            return 0, max(0, size - count)
        case _:
            assert_never(byte_range)


def _check(*numbers: int) -> None:
    if any(number < 0 for number in numbers):
        raise InvalidInputError("a byte range cannot be negative or end before it starts")


def reported_length(headers: Mapping[str, str]) -> int | None:
    """The number of bytes that a partial response announces, if it does."""
    reported = _REPORTED.fullmatch(headers.get("content-range", ""))
    return None if reported is None else int(reported[2]) - int(reported[1]) + 1


def check_finished(headers: Mapping[str, str], received: int) -> None:
    """Raise `Unfinished` unless a body is known to be complete; header names are in lower case.

    A body without a length ends where the connection breaks.
    """
    reported = reported_length(headers)
    if reported is None and not {"content-length", "transfer-encoding"} & headers.keys():
        raise Unfinished("the server did not announce the length of a body")
    if reported is not None and reported != received:
        raise Unfinished(f"received {received} bytes where {reported} were announced")


def check_part(headers: Mapping[str, str], byte_range: ByteRange | None) -> None:
    """Raise `Unfinished` if a response has a part of an object other than the requested one.

    Header names are in lower case. Only for responses that say which part they have.
    """
    told = headers.get("content-range", "")
    reported = _REPORTED.fullmatch(told)
    if reported is None:
        raise Unfinished(f"the server sent a part without saying which one: {told[:80]!r}")
    start, stop = int(reported[1]), int(reported[2]) + 1
    size = stop if reported[3] == "*" else int(reported[3])
    if (start, stop) != resolve(byte_range, size):
        raise Unfinished(f"the server sent another part than the requested one: {told[:80]!r}")


LONGEST_KEY = 1024
"""In bytes of UTF-8: the limit of S3."""
LONGEST_SEGMENT = 255
"""In bytes of UTF-8: the limit of every common file system."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_STAGED = re.compile(r"#[0-9]+$")
_BUCKET = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,254}")
_PLAIN = r"[0-9A-Za-z_][0-9A-Za-z_.\-]{0,62}"
_PLAIN_KEY = re.compile(rf"(?:{_PLAIN}/){{0,8}}{_PLAIN}")
"""A fast path: nearly all keys match, and no match breaks a rule."""


def check_key(key: str) -> str:
    """The key itself, if it is valid: it can only name an object below the root.

    Raises `InvalidInputError` otherwise. The rule is the same for every back end, so a key that
    works in memory cannot escape from a directory. Names that end in `#` and digits are rejected
    too: local back ends (including the official one) stage unfinished files under such names.
    """
    if _PLAIN_KEY.fullmatch(key) is not None:
        return key
    problem = _problem(key)
    if problem is not None:
        raise InvalidInputError(
            f"{key!r} cannot be a storage key: {problem}", kind=Kind.INVALID_KEY
        )
    return key


def check_bucket_name(name: str) -> str:
    """The name itself, if some store could have a bucket with that name.

    Less strict than AWS's rule for new buckets: older ones and other stores allow more.
    """
    if _BUCKET.fullmatch(name) is None:
        raise InvalidInputError(
            f"{name[:255]!r} is not a valid bucket name: use letters, digits, '.', '-' and '_', a "
            "letter or a digit first, at most 255",
            kind=Kind.INVALID_CONFIG,
        )
    return name


def check_prefix(prefix: str) -> str:
    """The prefix itself, if it is empty or a valid key could start with it."""
    whole = prefix.removesuffix("/")
    if whole or prefix:
        problem = _problem(whole)
        if problem is not None:
            raise InvalidInputError(
                f"{prefix!r} cannot be a prefix of storage keys: {problem}", kind=Kind.INVALID_KEY
            )
    return prefix


def is_staged(name: str) -> bool:
    """Whether a file of this name is an unfinished write, which listings omit."""
    return "#" in name and _STAGED.search(name) is not None


def is_key(key: str) -> bool:
    """Whether the key is valid; listings may contain invalid ones too."""
    return _PLAIN_KEY.fullmatch(key) is not None or _problem(key) is None


def _problem(key: str) -> str | None:
    if _FORBIDDEN.search(key) is not None:
        return "it contains a control character, a backslash or a lone surrogate"
    if len(key.encode()) > LONGEST_KEY:
        return f"it is longer than {LONGEST_KEY} bytes"
    return next(filter(None, map(_segment_problem, key.split("/"))), None)


def _segment_problem(segment: str) -> str | None:
    if segment in {"", ".", ".."}:
        return "it has an empty, '.' or '..' segment"
    if (
        len(segment) * 4 > LONGEST_SEGMENT
        and len(segment.encode(errors="replace")) > LONGEST_SEGMENT
    ):
        return f"a segment is longer than {LONGEST_SEGMENT} bytes"
    if is_staged(segment):
        return "a segment ends in '#' and digits, as the names of unfinished files do"
    return None
