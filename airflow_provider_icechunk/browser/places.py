"""Where the browser finds repositories, and the ones it keeps open.

A place is a root with repositories below it: an Airflow connection, or the folder named on the
command line. Repositories are kept open for a minute, so that a click asks the storage
only for what may have changed.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from airflow_provider_icechunk.api import CachingConfig, Repository, RepositoryConfig
from airflow_provider_icechunk.engine.pipelines.repositories import list_repositories
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError

from .bounds import BoundedStorage
from .models import MaintenanceRun, RefNames

ROOT = "."
"""The repository path that stands for the root of a place itself."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_OPEN_FOR = 60.0
_MOST_OPEN = 32
_LISTED_FOR = 60.0
_REFS_FOR = 2.0
_MOST_NAMES = 500

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Maker:
    """The Airflow task that made a commit, according to the commit itself."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


class Places(Protocol):
    """The roots that can be viewed. Access is checked before this is called."""

    def storage(self, place: str, repository: str) -> Storage:
        """The storage of a repository; refuses a path outside the root."""
        ...

    def page_of(self, maker: Maker) -> str | None:
        """The address of the page about a task, if there is such a page."""
        ...

    def maintenance(self, place: str, repository: str) -> tuple[list[MaintenanceRun], int | None]:
        """Known maintenance runs, and the number of recent failed writes, if known."""
        ...


@dataclass(frozen=True, slots=True)
class OneRoot:
    """A single root, for the command line."""

    locate: Callable[[str], Storage]
    """The storage at a path below the root; empty for the root itself."""
    name: str = "local"

    def storage(self, place: str, repository: str) -> Storage:
        """The storage of a repository below the root."""
        if place != self.name:
            raise NotFoundError(f"there is no place {place[:100]!r}; the only one is {self.name!r}")
        return self.locate(check_path(repository))

    def page_of(self, maker: Maker) -> str | None:
        """There is no Airflow to link to."""
        del maker
        return None

    def maintenance(self, place: str, repository: str) -> tuple[list[MaintenanceRun], int | None]:
        """There are no records."""
        del place, repository
        return [], None


def check_path(repository: str) -> str:
    """A path below a root; empty for the root itself."""
    if repository == ROOT:
        return ""
    whole = repository.removesuffix("/")
    segments = whole.split("/")
    if (
        "://" in whole
        or _FORBIDDEN.search(whole)
        or any(one in {"", ".", ".."} for one in segments)
    ):
        raise InvalidInputError(
            f"{repository[:200]!r} is not a path below the root: it must be relative, without "
            "'..', empty parts, a scheme or backslashes",
            kind=Kind.OUTSIDE_ROOT,
        )
    return whole


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Value]):
    value: Value
    until: float


class Memory(Generic[Value]):
    """A bounded number of values, each kept for a while. Safe to use from many threads."""

    def __init__(
        self, most: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Kept[Value]] = OrderedDict()

    def find(self, key: Hashable) -> Value | None:
        """The value of a key, if it is kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None or found.until <= self._clock():
                return None
            self._kept.move_to_end(key)
            return found.value

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key; two threads that miss it at once may both make it."""
        found = self.find(key)
        return self.put(key, make()) if found is None else found

    def forget(self, key: Hashable) -> None:
        """Forget it."""
        with self._lock:
            self._kept.pop(key, None)

    def put(self, key: Hashable, made: Value) -> Value:
        """Keep a value."""
        with self._lock:
            self._kept[key] = _Kept(made, self._clock() + self._seconds)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


def small_caches() -> RepositoryConfig:
    """Caches small enough for a web server that keeps dozens of repositories open."""
    caching = CachingConfig(
        num_snapshot_nodes=60_000, num_chunk_refs=500_000, num_transaction_changes=500_000
    )
    return RepositoryConfig(caching=caching)


@dataclass(frozen=True, slots=True)
class Standing:
    """The snapshots of branches and tags."""

    names: RefNames
    mark: bytes
    """Changes as soon as any branch or tag moves, appears or disappears."""


def read_standing(repository: Repository) -> Standing:
    """Branches and tags; if there are very many, only the first, always including `main`."""
    core = repository.core
    branches, tags = core.refs.branches(), core.refs.tags()
    names = sorted(branches, key=lambda name: (name != "main", name))
    every = repr((sorted(branches.items()), sorted(tags.items()))).encode()
    shown = RefNames(
        branches={name: core.format_id(branches[name]) for name in names[:_MOST_NAMES]},
        tags={name: core.format_id(tags[name]) for name in sorted(tags)[:_MOST_NAMES]},
        more_branches=max(0, len(branches) - _MOST_NAMES),
        more_tags=max(0, len(tags) - _MOST_NAMES),
    )
    return Standing(shown, blake2b(every, digest_size=16).digest())


@dataclass(frozen=True, slots=True)
class Shelf:
    """The repositories of all places, kept open for a while."""

    places: Places
    _open: Memory[Repository] = field(default_factory=lambda: Memory(_MOST_OPEN, _OPEN_FOR))
    _standing: Memory[Standing] = field(default_factory=lambda: Memory(_MOST_OPEN, _REFS_FOR))
    _listed: Memory[list[str]] = field(default_factory=lambda: Memory(64, _LISTED_FOR))

    def open(self, place: str, repository: str) -> Repository:
        """Open a repository for reading, or return the one that is open."""
        return self._open.get((place, repository), lambda: self._find(place, repository))

    def repositories(self, place: str) -> list[str]:
        """Paths of the repositories of a place, in order."""
        return self._listed.get(
            place,
            lambda: list_repositories(
                lambda path: BoundedStorage(self.places.storage(place, path)), ROOT
            ),
        )

    def standing(self, place: str, repository: str) -> Standing:
        """Branches and tags, as they were at most two seconds ago."""
        return self._standing.get(
            (place, repository), lambda: read_standing(self.open(place, repository))
        )

    def known_standing(self, place: str, repository: str) -> Standing | None:
        """The same, if that needs no read."""
        return self._standing.find((place, repository))

    def _find(self, place: str, repository: str) -> Repository:
        storage = BoundedStorage(self.places.storage(place, repository))
        found = Repository.find(storage, small_caches())
        if found is None:
            raise NotFoundError(
                f"there is no repository {repository[:200]!r} at {storage.location}: check the path"
            )
        return found
