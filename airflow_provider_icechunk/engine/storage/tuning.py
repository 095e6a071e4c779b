"""Settings of a repository for its storage: retries, storage classes, concurrency."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from airflow_provider_icechunk.engine import counters
from airflow_provider_icechunk.engine.concurrency import PerProcess

from .base import Storage


@dataclass(frozen=True, slots=True)
class Tuning:
    """Chosen settings; `None` keeps the storage's own."""

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
    connect_timeout: float | None = None
    """Seconds."""
    read_timeout: float | None = None
    user_agent: str | None = None
    chunks_prefix: str | None = None
    """Prefix of the repository's chunks, which have a separate storage class."""
    only_defaults: bool = False
    """Whether to keep settings that were chosen when the storage was created."""


EVERY_SETTING = frozenset(one.name for one in fields(Tuning))


@runtime_checkable
class Tunable(Protocol):
    """A storage whose settings can be changed."""

    @property
    def followed(self) -> frozenset[str]:
        """Names of the fields of a `Tuning` that have an effect here."""
        ...

    def tuned(self, tuning: Tuning) -> Storage:
        """The same location with these settings; itself if nothing changes."""
        ...


def tuned(storage: Storage, tuning: Tuning) -> Storage:
    """The storage with `tuning` as far as it supports it."""
    return storage.tuned(tuning) if isinstance(storage, Tunable) else storage


def followed(storage: Storage) -> frozenset[str]:
    """Names of the fields of a `Tuning` that have an effect on a storage."""
    return storage.followed if isinstance(storage, Tunable) else frozenset()


class Slots:
    """At most `count` at a time per process; a thread that holds a slot needs no other."""

    def __init__(self, count: int) -> None:
        self._free = PerProcess(lambda: threading.Semaphore(count))
        self._here = threading.local()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a slot while the block makes a request."""
        if getattr(self._here, "held", False):
            yield
            return
        with self._free.get():
            counters.add("requests")
            self._here.held = True
            try:
                yield
            finally:
                self._here.held = False
