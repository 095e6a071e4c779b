"""The ledger: which snapshot each branch and tag names, and the stored configuration.

Everything else in a repository is immutable. Each generation keeps its ledger in another form
(conditional reference files, numbered files, one `repo` object), so this is the seam behind which
they differ. A ledger does no policy: it validates names, it moves references atomically, and it
says as a value who won.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.generations.base import Codec, Generation, Layout
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.storage.base import (
    Absent,
    Anything,
    Exactly,
    Expectation,
    Version,
)


@dataclass(frozen=True, slots=True)
class Moved:
    """The branch names the new snapshot now."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The branch was not where the caller believed; nothing changed."""

    actual: SnapshotId | None
    """Where it is instead; `None` if there is no such branch any more."""


class Creation(Enum):
    """What became of creating a name."""

    CREATED = "created"
    EXISTS = "exists"
    WAS_DELETED = "was deleted"
    """A tag of this name existed once; its name is never free again."""


class Trust(Enum):
    """Which conditional writes of the store a ledger relies on. Turned off only by name."""

    CONDITIONS = (True, True)
    NO_CREATE = (False, True)
    NO_UPDATE = (True, False)
    NOTHING = (False, False)

    @classmethod
    def of(cls, *, creates: bool, updates: bool) -> Trust:
        """By the two switches of the configuration."""
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
        """The condition for something new."""
        return Absent() if self.creates else Anything()

    def update(self, version: Version) -> Expectation:
        """The condition for changing what was read as `version`."""
        return Exactly(version) if self.updates else Anything()


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The configuration in the repository and the state it was read in."""

    config: RepositoryConfig
    version: Version


@dataclass(frozen=True, slots=True)
class Registered:
    """References and snapshots as one document lists them."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    snapshots: Collection[SnapshotId]


@runtime_checkable
class Register(Protocol):
    """A ledger that lists its snapshots; what is collected has to be taken off the list."""

    def register(self) -> Registered:
        """Everything that is listed, at one moment."""
        ...

    def strike_off(self, snapshots: frozenset[SnapshotId]) -> bool:
        """Take snapshots off the list. False: one of them is named by now, and nothing changed."""
        ...


class Ledger(Protocol):
    """References and configuration of one repository in one generation."""

    @property
    def generation(self) -> Generation:
        """Generation of the stored format."""
        ...

    @property
    def codec(self) -> Codec:
        """Reads and writes its files."""
        ...

    @property
    def layout(self) -> Layout:
        """Knows their keys."""
        ...

    @property
    def holds_config(self) -> bool:
        """Whether the configuration is in the object that `initialize` creates."""
        ...

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Make branch `main` name `first`, whose file is stored already. False: it exists.

        `config` is for ledgers that hold it; for others it was stored before.
        """
        ...

    def branches(self) -> dict[str, SnapshotId]:
        """All branches by name, sorted."""
        ...

    def branch(self, name: str) -> SnapshotId | None:
        """Where the branch is; `None` if there is none."""
        ...

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create a branch unless it exists. The name was checked."""
        ...

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Move the branch from `expected` to `snapshot`, a child whose files are all stored."""
        ...

    def announce(self, snapshot: Snapshot) -> None:
        """Make a snapshot known that no branch names, where the ledger lists snapshots."""
        ...

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Move the branch to any snapshot if it still is at `expected`."""
        ...

    def delete_branch(self, name: str) -> bool:
        """Delete the branch. False: there was none."""
        ...

    def tags(self) -> dict[str, SnapshotId]:
        """All tags that were not deleted, by name, sorted."""
        ...

    def tag(self, name: str) -> SnapshotId | None:
        """What the tag names; `None` if there is none or it was deleted."""
        ...

    def deleted_tags(self) -> list[str]:
        """Names of deleted tags, sorted."""
        ...

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create a tag unless it exists or existed. The name was checked."""
        ...

    def delete_tag(self, name: str) -> bool:
        """Bury the tag for ever. False: there was none."""
        ...

    def config(self) -> StoredConfig | None:
        """The stored configuration, if there is one."""
        ...

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Store the configuration if it still is at `expected` (`None`: there is none yet).

        Returns its new state, or `None` if somebody else was faster.
        """
        ...

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """The parent of a snapshot; `None` at the root of its line."""
        ...

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """Snapshots that expired between this one and its parent, oldest first.

        Their logs still belong to what happened since the parent.
        """
        ...

    def trusting(self, trust: Trust) -> Ledger:
        """The same ledger on a store whose conditional writes are used or not."""
        ...

    def check_writable(self) -> None:
        """Raise if this repository, or every one of its kind, can only be read."""
        ...

    def following(self, settings: ResolvedConfig) -> Ledger:
        """The same ledger doing what the configuration in force chooses about its own files."""
        ...

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """Under which id a snapshot is stored that is not under its own; `None` for unknown.

        Only for `alpha`, whose early writers gave the first snapshot a wrong file name.
        """
        ...
