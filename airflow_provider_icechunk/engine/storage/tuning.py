"""How a repository wants its storage to be used: retries, storage classes, requests at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.process import PerProcess


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen; `None` leaves what the storage was made with."""

    requests_at_once: int | None = None
    tries: int | None = None
    first_pause: float | None = None
    """Seconds."""
    longest_pause: float | None = None
    use_metadata: bool | None = None
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    multipart_threshold: int | None = None
    chunks_prefix: str | None = None
    """Where the chunks of the repository are, which have a storage class of their own."""
    only_defaults: bool = False
    """Whether what somebody chose when he made the storage stays as it is."""


@runtime_checkable
class Tunable(Protocol):
    """A storage that can be used in other ways than the one it was made for."""

    def tuned(self, tuning: Tuning) -> Storage:
        """The same place, used as was chosen; itself if that changes nothing."""
        ...


def tuned(storage: Storage, tuning: Tuning) -> Storage:
    """A storage that follows `tuning` as far as it can."""
    return storage.tuned(tuning) if isinstance(storage, Tunable) else storage


class Slots:
    """At most so many at a time, counted for each process; inside of one a thread needs no other.

    :param count: how many.
    """

    def __init__(self, count: int) -> None:
        self._free = PerProcess(lambda: threading.Semaphore(count))
        self._here = threading.local()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a slot and keep it while the block runs."""
        if getattr(self._here, "held", False):
            yield
            return
        with self._free.get():
            self._here.held = True
            try:
                yield
            finally:
                self._here.held = False
