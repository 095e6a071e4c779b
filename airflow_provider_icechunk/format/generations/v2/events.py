"""What can happen to a repository of generation `2`: the one table of all kinds of updates.

The classes are generic in how a snapshot is named: stored entries have ids, entries that are shown
have their texts. Names and fields are the official ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from airflow_provider_icechunk.format.ids import SnapshotId

Id = TypeVar("Id")
"""How a snapshot is named."""
AnyStatus = TypeVar("AnyStatus")


class Availability(IntEnum):
    """Who may change the repository."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2
    """Defined but unused; official readers take it as online."""


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the repository may be changed, since when, and why not."""

    availability: Availability = Availability.ONLINE
    set_at: int = 0
    """Microseconds since 1970 UTC."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RepoInitialized:
    """The repository was created."""


@dataclass(frozen=True, slots=True)
class RepoMigrated:
    """The repository was brought from one version of the format to another."""

    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """Another configuration was stored."""


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The metadata of the repository changed."""


@dataclass(frozen=True, slots=True)
class TagCreated:
    """A tag was created."""

    name: str


@dataclass(frozen=True, slots=True)
class TagDeleted(Generic[Id]):
    """A tag was deleted."""

    name: str
    previous_snap_id: Id


@dataclass(frozen=True, slots=True)
class BranchCreated:
    """A branch was created."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchDeleted(Generic[Id]):
    """A branch was deleted."""

    name: str
    previous_snap_id: Id


@dataclass(frozen=True, slots=True)
class BranchReset(Generic[Id]):
    """A branch was moved without a commit."""

    name: str
    previous_snap_id: Id


@dataclass(frozen=True, slots=True)
class NewCommit(Generic[Id]):
    """A commit moved a branch."""

    branch: str
    new_snap_id: Id


@dataclass(frozen=True, slots=True)
class CommitAmended(Generic[Id]):
    """The newest commit of a branch was replaced."""

    branch: str
    previous_snap_id: Id
    new_snap_id: Id


@dataclass(frozen=True, slots=True)
class NewDetachedSnapshot(Generic[Id]):
    """A snapshot was stored that no branch names."""

    new_snap_id: Id


@dataclass(frozen=True, slots=True)
class GCRan:
    """Snapshots that nothing names were removed from the list."""


@dataclass(frozen=True, slots=True)
class ExpirationRan:
    """Old snapshots were taken out of the history."""


@dataclass(frozen=True, slots=True)
class FeatureFlagChanged:
    """A feature was turned on or off, or left to its default again."""

    id: int
    new_value: bool | None


@dataclass(frozen=True, slots=True)
class RepoStatusChanged(Generic[AnyStatus]):
    """Who may change the repository was changed."""

    status: AnyStatus


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that a newer version of the format records."""

    code: int


Event = (
    RepoInitialized
    | RepoMigrated
    | ConfigChanged
    | MetadataChanged
    | TagCreated
    | TagDeleted[SnapshotId]
    | BranchCreated
    | BranchDeleted[SnapshotId]
    | BranchReset[SnapshotId]
    | NewCommit[SnapshotId]
    | CommitAmended[SnapshotId]
    | NewDetachedSnapshot[SnapshotId]
    | GCRan
    | ExpirationRan
    | FeatureFlagChanged
    | RepoStatusChanged[Status]
    | Unknown
)
"""An entry as it is stored."""

CODES: dict[type[Event], int] = {
    RepoInitialized: 1,
    RepoMigrated: 2,
    ConfigChanged: 3,
    MetadataChanged: 4,
    TagCreated: 5,
    TagDeleted: 6,
    BranchCreated: 7,
    BranchDeleted: 8,
    BranchReset: 9,
    NewCommit: 10,
    CommitAmended: 11,
    NewDetachedSnapshot: 12,
    GCRan: 13,
    ExpirationRan: 14,
    FeatureFlagChanged: 15,
    RepoStatusChanged: 16,
}
"""How each kind is numbered in files."""
