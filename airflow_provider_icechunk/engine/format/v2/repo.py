"""The mutable state of a repository of generation `2`, as one frozen value, with its events.

Branches, tags, the list of snapshots with their parents, status, configuration and the newest part
of the operations log are all in the `repo` object, so every change is one conditional write of it.
Metadata and configuration stay encoded: they are written back byte for byte.

The event classes are generic in the type of snapshot ids: stored entries have bytes, displayed ones
text. Names and fields are the official ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeAlias, TypeVar

from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Metadata, Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN

from .codec import decode_value, encode_value

Id = TypeVar("Id")
"""The type of snapshot ids."""
AnyStatus = TypeVar("AnyStatus")


class Availability(IntEnum):
    """Who may change the repository."""

    ONLINE = 0
    READ_ONLY = 1
    OFFLINE = 2
    """Defined but unused; official readers treat it as online."""


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the repository may be changed, since when, and why."""

    availability: Availability = Availability.ONLINE
    set_at: int = 0
    """Microseconds since 1970 UTC."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RepoInitialized:
    """The repository was created."""


@dataclass(frozen=True, slots=True)
class RepoMigrated:
    """The repository was migrated from one version of the format to another."""

    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The configuration changed."""


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
    """A snapshot was stored without a branch."""

    new_snap_id: Id


@dataclass(frozen=True, slots=True)
class GCRan:
    """Unreferenced snapshots were removed from the list."""


@dataclass(frozen=True, slots=True)
class ExpirationRan:
    """Old snapshots were removed from the history."""


@dataclass(frozen=True, slots=True)
class FeatureFlagChanged:
    """A feature was turned on or off, or reset to its default."""

    id: int
    new_value: bool | None


@dataclass(frozen=True, slots=True)
class RepoStatusChanged(Generic[AnyStatus]):
    """The status changed."""

    status: AnyStatus


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a newer version of the format."""

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
"""The number of each kind in files."""

SPEC_VERSION = 2

Items: TypeAlias = "tuple[tuple[str, bytes], ...]"
"""Metadata names with their encoded values, in order of the names' bytes."""


def encode_items(metadata: Metadata) -> Items:
    """Metadata as it is stored."""
    ordered = sorted(metadata.items(), key=lambda item: item[0].encode(errors="surrogatepass"))
    return tuple((name, encode_value(name, value)) for name, value in ordered)


def decode_items(items: Items, *, where: str) -> Metadata:
    """The JSON values of stored metadata."""
    return {name: decode_value(value, where) for name, value in items}


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """The data of a snapshot in the `repo` object."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: int
    message: str
    metadata: Items = ()
    pruned_logs: tuple[SnapshotId, ...] = ()
    """Snapshots that expired between the parent and this one, whose logs still count as history,
    oldest first."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotRecord:
        """The record of a snapshot whose parent is set."""
        return cls(
            snapshot.id,
            snapshot.parent_id,
            snapshot.flushed_at,
            snapshot.message,
            encode_items(snapshot.metadata),
        )


@dataclass(frozen=True, slots=True)
class OperationsEntry:
    """One entry of the operations log."""

    event: Event
    updated_at: int
    """Microseconds since 1970 UTC, strictly increasing from entry to entry."""
    backup: str | None = None
    """File below `overwritten/` whose newest entry is this one; the newest of all has none."""


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """Everything in a repository that can change."""

    branches: Mapping[str, SnapshotId]
    snapshots: Mapping[SnapshotId, SnapshotRecord]
    updates: tuple[OperationsEntry, ...]
    """Newest first, at least one."""
    status: Status
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()
    metadata: Items = ()
    before_updates: str | None = None
    """File below `overwritten/` in which the log continues."""
    config: bytes | None = None
    enabled_flags: tuple[int, ...] | None = None
    disabled_flags: tuple[int, ...] | None = None
    extra: bytes | None = None
    unknown: tuple[str, ...] = ()
    """Unknown fields of a newer writer. Such a state can be read, but not written: they would be
    lost."""


def initial(first: Snapshot, *, at: int, config: bytes | None = None) -> RepoInfo:
    """The state of a repository that has just been created."""
    return RepoInfo(
        branches={MAIN: first.id},
        snapshots={first.id: SnapshotRecord.of(first)},
        updates=(OperationsEntry(RepoInitialized(), at),),
        status=Status(Availability.ONLINE, at),
        config=config,
    )


def by_name(refs: Iterable[tuple[str, SnapshotId]]) -> dict[str, SnapshotId]:
    """Refs in the order official readers search by."""
    return dict(sorted(refs, key=lambda ref: ref[0].encode()))


class Feature(IntEnum):
    """Features by their stored number; all are on by default."""

    MOVE_NODE = 3
    CREATE_TAG = 4
    DELETE_TAG = 5


def setting(info: RepoInfo, feature: int) -> bool | None:
    """Whether a feature was turned on or off; `None` for its default."""
    if feature in (info.disabled_flags or ()):
        return False
    return True if feature in (info.enabled_flags or ()) else None


def is_enabled(info: RepoInfo, feature: Feature) -> bool:
    """Whether a feature may be used."""
    return setting(info, feature) is not False
