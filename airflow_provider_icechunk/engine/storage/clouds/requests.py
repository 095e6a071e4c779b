"""Requests to the objects of one bucket: what every client of a store does in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from airflow_provider_icechunk.engine import counters
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    ByteRange,
    Data,
    Exactly,
    Listed,
    PutOutcome,
    Version,
)
from airflow_provider_icechunk.engine.storage.tuning import Slots
from airflow_provider_icechunk.exceptions import IcechunkError

from .troubles import PASSING, NativeError, Trouble, explained, trouble_of_native

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object's properties without its bytes."""

    size: int
    created_at: datetime
    version: Version
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes that a store sent, and whether they are the requested range or everything."""

    data: Data
    version: Version
    is_range: bool


@dataclass(frozen=True, slots=True)
class Upload:
    """An object to be written, with its metadata."""

    key: str
    data: bytes
    metadata: dict[str, str]
    content_type: str | None

    @classmethod
    def of(cls, key: str, data: Data, metadata: dict[str, str], content_type: str | None) -> Upload:
        """From the arguments of `put`; libraries take only bytes, so anything else is copied."""
        return cls(key, bytes(data), metadata, content_type)


class Requests(ABC):
    """Requests to the objects below one prefix of a bucket, retried while that may help."""

    def __init__(self, location: str, prefix: str, retry: Backoff, concurrency: int) -> None:
        self.location = location
        self.retry = retry
        self._root = f"{prefix}/" if prefix else ""
        self._slots = Slots(concurrency)

    @property
    def failures(self) -> tuple[type[BaseException], ...]:
        """Everything that the client raises when a request fails."""
        return (NativeError, OSError)

    def name(self, key: str) -> str:
        """The full name of an object in the bucket."""
        return self._root + key

    def classify(self, error: BaseException) -> Trouble:
        """What an error of the client means."""
        return trouble_of_native(error) if isinstance(error, NativeError) else Trouble.BROKEN

    def error(self, error: BaseException, doing: str, key: str) -> IcechunkError:
        """Convert an error, naming the object."""
        code = error.code if isinstance(error, NativeError) else type(error).__name__
        return explained(self.classify(error), code, doing=doing, where=self.where(key))

    def where(self, key: str) -> str:
        """The location of an object, for messages."""
        return f"{self.location}/{key}" if key else self.location

    def calling(self, doing: str, key: str, call: Callable[[], T]) -> T:
        """The result of `call`, retried after transient errors. Only for repeatable calls.

        Errors that the caller handles (a missing object, a range past the end) are raised as the
        library raised them; everything else as an error of this package.
        """
        for is_last in self.retry.attempts():
            try:
                with self._slots.one():
                    return call()
            except self.failures as error:
                trouble = self.classify(error)
                if trouble in {Trouble.MISSING, Trouble.BAD_RANGE, Trouble.NO_UPLOAD}:
                    raise
                if trouble not in PASSING or is_last:
                    raise self.error(error, doing, key) from error
                counters.add("retries")
        raise AssertionError("there is at least one try")

    def head(self, key: str) -> ObjectHead | None:
        """Size, time, version and metadata; `None` if the object does not exist."""
        try:
            found = self.calling("inspect", key, lambda: self._head(key))
        except self.failures as error:
            if self.classify(error) is Trouble.MISSING:
                return None
            raise self.error(error, "inspect", key) from error
        return found

    def get(self, key: str, asked: ByteRange | None) -> Body | None:
        """The object, or a range that a request can express; `None` if it does not exist.

        Raises the client's error if the range is outside the object.
        """
        try:
            return self.calling("read", key, lambda: self._get(key, asked))
        except self.failures as error:
            if self.classify(error) is Trouble.MISSING:
                return None
            raise

    @abstractmethod
    def expresses(self, asked: ByteRange) -> bool:
        """Whether one request can ask for a range."""

    @abstractmethod
    def put(self, upload: Upload) -> Version:
        """Write unconditionally."""

    @abstractmethod
    def put_if(self, upload: Upload, expect: Absent | Exactly) -> PutOutcome:
        """Write conditionally in one request, and determine the outcome."""

    @abstractmethod
    def scan(self, prefix: str) -> Iterator[Listed]:
        """All objects whose key starts with `prefix`; an incomplete listing is an error."""

    @abstractmethod
    def folders(self, prefix: str) -> set[str]:
        """The names of the folders directly below `prefix`, empty ones perhaps among them."""

    @abstractmethod
    def delete_batch(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete up to 1000 objects; key to reason for those that could not be deleted."""

    @abstractmethod
    def now(self) -> datetime:
        """The store's clock."""

    @abstractmethod
    def _head(self, key: str) -> ObjectHead: ...

    @abstractmethod
    def _get(self, key: str, asked: ByteRange | None) -> Body: ...
