"""Entries of the operations log, status and features of generation `2`, by their official names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from airflow_provider_icechunk.format.generations.v2 import repo_info as ri
from airflow_provider_icechunk.format.generations.v2.flags import Feature, setting
from airflow_provider_icechunk.format.ids import encode_base32
from airflow_provider_icechunk.repository.world import from_micros, to_micros


class RepoAvailability(Enum):
    """Who may change a repository."""

    online = 0
    read_only = 1


@dataclass(frozen=True, slots=True)
class RepoStatus:
    """Whether a repository may be changed, since when, and why not."""

    availability: RepoAvailability
    set_at: datetime | None = None
    limited_availability_reason: str | None = None

    @classmethod
    def of(cls, status: ri.Status) -> RepoStatus:
        """As stored; availability that has no use yet counts as online, as officially."""
        read_only = status.availability is ri.Availability.READ_ONLY
        return cls(
            RepoAvailability.read_only if read_only else RepoAvailability.online,
            from_micros(status.set_at),
            status.reason,
        )

    def stored(self, now: datetime) -> ri.Status:
        """To be stored; set now if it does not say when."""
        when = to_micros(self.set_at or now)
        return ri.Status(
            ri.Availability(self.availability.value), when, self.limited_availability_reason
        )


@dataclass(frozen=True, slots=True)
class FeatureFlag:
    """A feature that a repository can turn off."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None
    """Whether it was turned on or off; `None` leaves it to the default."""

    @property
    def enabled(self) -> bool:
        """Whether it may be used."""
        return self.default_enabled if self.setting is None else self.setting


def feature_flags(info: ri.RepoInfo) -> list[FeatureFlag]:
    """All features and how they are set."""
    return [
        FeatureFlag(feature.value, feature.name.lower(), True, setting(info, feature))
        for feature in Feature
    ]


class UpdateType:
    """What happened; one class for each kind, with ids as text."""

    @dataclass(frozen=True, slots=True)
    class RepoInitialized:
        """The repository was created."""

    @dataclass(frozen=True, slots=True)
    class RepoMigrated:
        """The repository was brought to another version of the format."""

        from_version: int
        to_version: int

    @dataclass(frozen=True, slots=True)
    class RepoStatusChanged:
        """Who may change the repository was changed."""

        status: RepoStatus

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
    class TagDeleted:
        """A tag was deleted."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True)
    class BranchCreated:
        """A branch was created."""

        name: str

    @dataclass(frozen=True, slots=True)
    class BranchDeleted:
        """A branch was deleted."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True)
    class BranchReset:
        """A branch was moved without a commit."""

        name: str
        previous_snap_id: str

    @dataclass(frozen=True, slots=True)
    class NewCommit:
        """A commit moved a branch."""

        branch: str
        new_snap_id: str

    @dataclass(frozen=True, slots=True)
    class CommitAmended:
        """The newest commit of a branch was replaced."""

        branch: str
        previous_snap_id: str
        new_snap_id: str

    @dataclass(frozen=True, slots=True)
    class NewDetachedSnapshot:
        """A snapshot was stored that no branch names."""

        new_snap_id: str

    @dataclass(frozen=True, slots=True)
    class GCRan:
        """Garbage was collected."""

    @dataclass(frozen=True, slots=True)
    class ExpirationRan:
        """Old snapshots were taken out of the history."""

    @dataclass(frozen=True, slots=True)
    class FeatureFlagChanged:
        """A feature was turned on or off, or left to its default."""

        id: int
        new_value: bool | None

    @dataclass(frozen=True, slots=True)
    class Unknown:
        """Something that a newer version of the format records."""

        code: int


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of the operations log."""

    kind: object
    """One of the classes in `UpdateType`."""
    updated_at: datetime
    backup_path: str | None
    """File below `overwritten/` in which this entry is the newest."""

    @classmethod
    def of(cls, update: ri.Update) -> Update:
        """An entry as stored."""
        kind = _KINDS[type(update.event)]
        values = (getattr(update.event, name) for name in type(update.event).__slots__)
        shown = kind(*(_shown(value) for value in values))
        return cls(shown, from_micros(update.updated_at).astimezone(UTC), update.backup)


def _shown(value: object) -> Any:
    match value:
        case bytes():
            return encode_base32(value)
        case ri.Status():
            return RepoStatus.of(value)
    return value


_KINDS: dict[type[ri.Event], Callable[..., object]] = {
    ri.RepoInitialized: UpdateType.RepoInitialized,
    ri.RepoMigrated: UpdateType.RepoMigrated,
    ri.ConfigChanged: UpdateType.ConfigChanged,
    ri.MetadataChanged: UpdateType.MetadataChanged,
    ri.TagCreated: UpdateType.TagCreated,
    ri.TagDeleted: UpdateType.TagDeleted,
    ri.BranchCreated: UpdateType.BranchCreated,
    ri.BranchDeleted: UpdateType.BranchDeleted,
    ri.BranchReset: UpdateType.BranchReset,
    ri.NewCommit: UpdateType.NewCommit,
    ri.CommitAmended: UpdateType.CommitAmended,
    ri.NewDetachedSnapshot: UpdateType.NewDetachedSnapshot,
    ri.GarbageCollected: UpdateType.GCRan,
    ri.SnapshotsExpired: UpdateType.ExpirationRan,
    ri.FeatureFlagChanged: UpdateType.FeatureFlagChanged,
    ri.StatusChanged: UpdateType.RepoStatusChanged,
    ri.UnknownEvent: UpdateType.Unknown,
}
