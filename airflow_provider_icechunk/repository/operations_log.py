"""Entries of the operations log, status and features of generation `2`, by their official names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from airflow_provider_icechunk.format.generations.v2 import events as ev
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
    def of(cls, status: ev.Status) -> RepoStatus:
        """As stored; availability that has no use yet counts as online, as officially."""
        read_only = status.availability is ev.Availability.READ_ONLY
        return cls(
            RepoAvailability.read_only if read_only else RepoAvailability.online,
            from_micros(status.set_at),
            status.reason,
        )

    def stored(self, now: datetime) -> ev.Status:
        """To be stored; set now if it does not say when."""
        when = to_micros(self.set_at or now)
        return ev.Status(
            ev.Availability(self.availability.value), when, self.limited_availability_reason
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

    RepoInitialized = ev.RepoInitialized
    RepoMigrated = ev.RepoMigrated
    RepoStatusChanged = ev.RepoStatusChanged
    ConfigChanged = ev.ConfigChanged
    MetadataChanged = ev.MetadataChanged
    TagCreated = ev.TagCreated
    TagDeleted = ev.TagDeleted
    BranchCreated = ev.BranchCreated
    BranchDeleted = ev.BranchDeleted
    BranchReset = ev.BranchReset
    NewCommit = ev.NewCommit
    CommitAmended = ev.CommitAmended
    NewDetachedSnapshot = ev.NewDetachedSnapshot
    GCRan = ev.GCRan
    ExpirationRan = ev.ExpirationRan
    FeatureFlagChanged = ev.FeatureFlagChanged
    Unknown = ev.Unknown


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
        shown = type(update.event)(*(_shown(value) for _, value in _fields(update.event)))
        return cls(shown, from_micros(update.updated_at).astimezone(UTC), update.backup)


def event_facts(event: ev.Event) -> dict[str, Any]:
    """A stored event in JSON values, as the official library shows it."""
    name = type(event).__name__
    suffix = "" if isinstance(event, ev.FeatureFlagChanged | ev.Unknown) else "Update"
    facts = {field: _fact(field, value) for field, value in _fields(event)}
    return {"type": name + suffix, **facts}


def _fields(event: ev.Event) -> Iterator[tuple[str, object]]:
    return ((field.name, getattr(event, field.name)) for field in fields(event))


def _shown(value: object) -> Any:
    match value:
        case bytes():
            return encode_base32(value)
        case ev.Status():
            return RepoStatus.of(value)
    return value


def _fact(name: str, value: object) -> object:
    shown = _shown(value)
    if isinstance(shown, RepoStatus):
        return {
            "availability": _AVAILABILITY[shown.availability],
            "limited_availability_reason": shown.limited_availability_reason,
            "set_at": shown.set_at and shown.set_at.isoformat().replace("+00:00", "Z"),
        }
    return f"{shown}.0" if name.endswith("_version") else shown


_AVAILABILITY = {RepoAvailability.online: "Online", RepoAvailability.read_only: "ReadOnly"}
