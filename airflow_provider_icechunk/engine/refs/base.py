"""Branches, tags and stored configuration: the operations of every generation.

Everything else in a repository is immutable. Each generation stores its refs differently
(conditional ref files, numbered files, one `repo` object); this interface hides the
difference. Refs contain no policy: they validate names, move refs atomically, and return the
winner of a race as a value.

A ref that cannot be read is an error and never skipped: garbage collection would delete its
snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self, runtime_checkable

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.codec import Codec, Layout
from airflow_provider_icechunk.engine.format.config.codec import decode_config, encode_config
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.engine.format.fence import check_unfenced
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import check_ref_name
from airflow_provider_icechunk.engine.format.v1.codec import CONFIG_KEY
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    ByteRange,
    Exactly,
    Expectation,
    Fetched,
    Storage,
    Version,
    Written,
    check_prefix,
)
from airflow_provider_icechunk.exceptions import AccessDeniedError, FormatError, InvalidInputError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """The branch now points at the new snapshot."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The branch was not where the caller believed; nothing changed."""

    actual: SnapshotId | None
    """Where it is instead; `None` if the branch no longer exists."""


class Creation(Enum):
    """The outcome of creating a branch or tag."""

    CREATED = "created"
    EXISTS = "exists"
    WAS_DELETED = "was deleted"
    """A tag of this name was deleted; its name cannot be reused."""


class Trust(Enum):
    """The store's conditional writes that refs rely on. Only the configuration turns them off."""

    CONDITIONS = (True, True)
    NO_CREATE = (False, True)
    NO_UPDATE = (True, False)
    NOTHING = (False, False)

    @classmethod
    def of(cls, *, creates: bool, updates: bool) -> Trust:
        """From the two switches in the configuration."""
        return cls((creates, updates))

    @property
    def creates(self) -> bool:
        """Whether create-if-absent is relied on."""
        return self.value[0]

    @property
    def updates(self) -> bool:
        """Whether write-if-unchanged is relied on."""
        return self.value[1]

    def create(self) -> Expectation:
        """The condition for creating an object."""
        return Absent() if self.creates else Anything()

    def update(self, version: Version) -> Expectation:
        """The condition for replacing the object read as `version`."""
        return Exactly(version) if self.updates else Anything()


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The stored configuration and its version."""

    config: RepositoryConfig
    version: Version


@dataclass(frozen=True, slots=True)
class Registered:
    """The refs and snapshots that one document lists."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    snapshots: Collection[SnapshotId]


@runtime_checkable
class Register(Protocol):
    """Refs that list their snapshots; collected ones must be removed from the list."""

    def register(self) -> Registered:
        """The whole list, as of one moment."""
        ...

    def unlist(self, snapshots: frozenset[SnapshotId]) -> bool:
        """Remove snapshots from the list. False: one is now referenced, and nothing changed."""
        ...


def read_openings(
    storage: Storage, requests: Sequence[tuple[str, ByteRange | None]]
) -> list[Fetched | None]:
    """The possible entry points of a repository, never all of which exist.

    Without list permission, Amazon answers "denied" for objects that do not exist. That counts as
    absent only if the same credentials can read another of these objects: then a repository exists,
    and what was read is what counts.
    """
    try:
        return storage.get_many(requests)
    except AccessDeniedError as error:
        denied = error

    def read(request: tuple[str, ByteRange | None]) -> Fetched | None:
        try:
            return storage.get(*request)
        except AccessDeniedError:
            return None

    found = run_all(read, requests, at_once=len(requests))
    named = [(key, one) for (key, _), one in zip(requests, found, strict=True)]
    if not any(one for key, one in named if key != CONFIG_KEY):
        raise denied
    missing = [key for key, one in named if one is None]
    _log.info(
        "%s: access to %s is denied, which counts as absent because other objects can be read; "
        "with permission to list the bucket the store would say",
        storage.location,
        ", ".join(missing),
    )
    return found


class JustRead:
    """Objects that were read a moment ago to open a repository, each good for one more use.

    They are used only while another read would hardly give a newer answer: within twice the time
    that the read took, and if this process has not moved a ref since.
    """

    least = 0.0
    """Seconds for which they are good in any case."""

    def __init__(
        self, storage: Storage, keys: Sequence[str], monotonic: Callable[[], float]
    ) -> None:
        begin = monotonic()
        self._moves = _moves[0]
        found = read_openings(storage, [(key, None) for key in keys])
        self._monotonic = monotonic
        end = monotonic()
        self._until = end + max(self.least, 2 * (end - begin))
        self.objects: dict[str, Fetched | None] = dict(zip(keys, found, strict=True))
        """The objects as they were read."""
        self._left = dict(self.objects)

    def take(self, key: str, *, again: bool = False) -> tuple[Fetched | None] | None:
        """An object, or its absence, if it was just read and has not been used since.

        :param again: whether it may be used once more.
        """
        stale = self._moves != _moves[0] or self._monotonic() > self._until
        if stale or key not in self._left:
            return None
        found = self._left[key]
        if not again:
            self._left.pop(key, None)
        return (found,)


class Known(JustRead):
    """Objects whose state is known without reading them, each good for one use."""

    def __init__(self, objects: Mapping[str, Fetched | None]) -> None:
        self.objects = dict(objects)
        self._left = dict(objects)

    def take(self, key: str, *, again: bool = False) -> tuple[Fetched | None] | None:
        """An object, or its absence, if it has not been used."""
        if key not in self._left:
            return None
        return (self._left[key] if again else self._left.pop(key),)


_moves = [0]
"""How often this process changed a ref, in any repository."""


def count_move() -> None:
    """Note that this process changes a ref."""
    _moves[0] += 1


def get_once(
    storage: Storage, key: str, found: JustRead | None, *, again: bool = False
) -> Fetched | None:
    """An object that may just have been read."""
    taken = None if found is None else found.take(key, again=again)
    return storage.get(key) if taken is None else taken[0]


class Refs(Protocol):
    """Refs and configuration of one repository in one generation."""

    @property
    def generation(self) -> Generation:
        """Generation of the stored format."""
        ...

    @property
    def codec(self) -> Codec:
        """Encodes and decodes its files."""
        ...

    @property
    def layout(self) -> Layout:
        """Maps its files to keys."""
        ...

    @property
    def holds_config(self) -> bool:
        """Whether `initialize` stores the configuration too."""
        ...

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create branch `main` at `first`, whose file is already stored. False: it exists.

        `config` is for refs that hold it; otherwise it is already stored.
        """
        ...

    def roots(self) -> tuple[dict[str, SnapshotId], dict[str, SnapshotId]]:
        """All branches and all tags, as `branches` and `tags` return them."""
        ...

    def branches(self) -> dict[str, SnapshotId]:
        """All branches by name, sorted."""
        ...

    def branch(self, name: str) -> SnapshotId | None:
        """The snapshot of the branch; `None` if it does not exist."""
        ...

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create a branch unless it exists. The name is already validated."""
        ...

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Move the branch from `expected` to its child `snapshot`, whose files are all stored."""
        ...

    def announce(self, snapshot: Snapshot) -> None:
        """List a snapshot that no branch points at, if the refs list snapshots."""
        ...

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Move the branch to any snapshot if it is still at `expected`."""
        ...

    def delete_branch(self, name: str) -> bool:
        """Delete the branch. False: it does not exist."""
        ...

    def tags(self) -> dict[str, SnapshotId]:
        """All tags by name, sorted, without deleted ones."""
        ...

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot of the tag; `None` if it does not exist or was deleted."""
        ...

    def deleted_tags(self) -> list[str]:
        """Names of deleted tags, sorted."""
        ...

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create a tag unless it exists or was deleted. The name is already validated."""
        ...

    def delete_tag(self, name: str) -> bool:
        """Delete the tag; its name cannot be reused. False: it does not exist."""
        ...

    def config(self) -> StoredConfig | None:
        """The stored configuration, if there is one."""
        ...

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Store the configuration if it is still at `expected` (`None`: nothing is stored yet).

        Returns its new version, or `None` if somebody else changed it first.
        """
        ...

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """The parent of a snapshot; `None` if it has none."""
        ...

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """Snapshots that expired between this one and its parent, oldest first.

        Their logs are still part of what changed since the parent.
        """
        ...

    def trusting(self, trust: Trust) -> Refs:
        """The same refs, relying on these conditional writes."""
        ...

    def check_writable(self) -> None:
        """Raise if this repository is read-only."""
        ...

    def following(self, settings: ResolvedConfig) -> Refs:
        """The same refs, writing files as the effective configuration says."""
        ...

    def after(self, found: JustRead | None) -> Refs:
        """The same refs, which need not read again what was just read."""
        ...

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """The id under which a snapshot is stored if not under its own; `None` if unknown.

        Early alpha writers gave the first snapshot a wrong file name.
        """
        ...


class RefFiles:
    """Base of generations with refs in separate files and the configuration in `config.yaml`."""

    __slots__ = ()
    holds_config = False
    storage: Storage
    trust: Trust
    found: JustRead | None = None

    def roots(self: Refs) -> tuple[dict[str, SnapshotId], dict[str, SnapshotId]]:
        """All branches and all tags."""
        return self.branches(), self.tags()

    def announce(self, snapshot: Snapshot) -> None:
        """Do nothing: snapshots are found by listing their files."""

    def config(self) -> StoredConfig | None:
        """Read `config.yaml`."""
        return read_config(self.storage, self.found)

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Replace `config.yaml`."""
        self.check_writable()
        return swap_config(self.storage, config, expected, self.trust)

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """The parent in the snapshot file."""
        return snapshot.parent_id

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """None: expiration does not record what it removes."""
        del identity
        return ()

    def check_writable(self) -> None:
        """Always writable."""

    def following(self, settings: ResolvedConfig) -> Self:
        """The same refs: no setting applies."""
        del settings
        return self

    def after(self, found: JustRead | None) -> Self:
        """The same refs: only those that are read by their keys benefit."""
        del found
        return self

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """None: every snapshot is stored under its own id."""
        del missing
        return None


def read_config(storage: Storage, just_read: JustRead | None = None) -> StoredConfig | None:
    """The stored `config.yaml`, if there is one."""
    try:
        found = get_once(storage, CONFIG_KEY, just_read)
    except AccessDeniedError:
        # As in `read_openings`: the refs were read with the same credentials.
        return None
    if found is None:
        return None
    check_unfenced(found.data, where=CONFIG_KEY)
    return StoredConfig(decode_config(found.data, where=CONFIG_KEY), found.version)


def swap_config(
    storage: Storage,
    config: RepositoryConfig,
    expected: Version | None,
    trust: Trust = Trust.CONDITIONS,
) -> Version | None:
    """Replace `config.yaml` if it is at `expected` (`None`: absent); `None` if it is not."""
    outcome = storage.put(
        CONFIG_KEY,
        encode_config(config),
        expect=trust.create() if expected is None else trust.update(expected),
        content_type="application/yaml",
    )
    return outcome.version if isinstance(outcome, Written) else None


def listed_names(names: Iterable[str], prefix: str, what: str) -> list[str]:
    """The names, sorted; `FormatError` if one cannot be part of a key.

    :param prefix: start of the keys, before the name.
    """
    return sorted(_readable(name, prefix, what) for name in names)


def _readable(name: str, prefix: str, what: str) -> str:
    try:
        check_ref_name(name, what)
        check_prefix(f"{prefix}{name}/")
    except InvalidInputError as error:
        raise FormatError(
            f"{prefix + name[:300]!r} is listed as a {what} with an invalid name "
            f"({error.message}). Rename or delete it with the software that created it: while it "
            "exists, references cannot be listed and nothing is collected"
        ) from error
    return name
