"""Operations log, metadata, status and features of generation `2`, by their official names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.detect import REPO_KEY
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import format_id
from airflow_provider_icechunk.engine.format.v2 import repo as ri
from airflow_provider_icechunk.engine.format.v2.repo import Feature, setting
from airflow_provider_icechunk.engine.format.v2.updates import SetFlag, SetMetadata, SetStatus
from airflow_provider_icechunk.engine.refs import v2_refs
from airflow_provider_icechunk.engine.world import from_micros, to_micros, utc_text
from airflow_provider_icechunk.exceptions import InvalidInputError

_WHAT = "an operations log, metadata, status or features"


class RepoAvailability(Enum):
    """Who may change a repository."""

    online = 0
    read_only = 1


@dataclass(frozen=True, slots=True, repr=False)
class RepoStatus(Shown):
    """Whether a repository may be changed, since when, and why not."""

    availability: RepoAvailability
    set_at: datetime | None = None
    limited_availability_reason: str | None = None

    def shown_facts(self) -> Mapping[str, object]:
        """All of it, with the availability as the official library spells it."""
        word = self.availability.name.title().replace("_", "")
        return {
            "availability": word,
            "set_at": self.set_at,
            "limited_availability_reason": self.limited_availability_reason,
        }

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
        """To be stored; without a time, it is set as of now."""
        when = to_micros(self.set_at or now)
        return ri.Status(
            ri.Availability(self.availability.value), when, self.limited_availability_reason
        )


@dataclass(frozen=True, slots=True, repr=False)
class FeatureFlag(Shown):
    """A feature that a repository can turn off."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None
    """Whether it was turned on or off; `None` means the default."""

    def shown_facts(self) -> Mapping[str, object]:
        """All of it, and whether it may be used."""
        return {
            "id": self.id,
            "name": self.name,
            "default_enabled": self.default_enabled,
            "setting": self.setting,
            "enabled": self.enabled,
        }

    @property
    def enabled(self) -> bool:
        """Whether it may be used."""
        return self.default_enabled if self.setting is None else self.setting


def feature_flags(core: Core) -> list[FeatureFlag]:
    """All features and how they are set."""
    info = v2_refs(core.refs, _WHAT).info()
    return [
        FeatureFlag(feature.value, feature.name.lower(), True, setting(info, feature))
        for feature in Feature
    ]


def set_feature_flag(core: Core, name: str, setting: bool | None) -> None:
    """Turn a feature on or off; `None` resets it to its default."""
    names = {feature.name.lower(): feature for feature in Feature}
    if name not in names:
        raise InvalidInputError(f"there is no feature {name!r}; choose from: {', '.join(names)}")
    v2_refs(core.refs, _WHAT).update(SetFlag(names[name].value, setting))


def get_status(core: Core) -> RepoStatus:
    """Whether the repository may be changed."""
    return RepoStatus.of(v2_refs(core.refs, _WHAT).info().status)


def set_status(core: Core, status: RepoStatus) -> None:
    """Set whether the repository may be changed; works even while it may not."""
    v2_refs(core.refs, _WHAT).update(SetStatus(status.stored(core.world.now())))


def get_metadata(core: Core) -> dict[str, Any]:
    """The metadata of the repository itself."""
    return dict(ri.decode_items(v2_refs(core.refs, _WHAT).info().metadata, where=REPO_KEY))


def set_metadata(core: Core, metadata: Mapping[str, Any]) -> None:
    """Replace the metadata of the repository."""
    items = ri.encode_items(metadata)
    v2_refs(core.refs, _WHAT).update(SetMetadata(lambda _: items))


def update_metadata(core: Core, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Set some entries of the metadata and leave the others; returns all of it."""
    items = dict(ri.encode_items(metadata))
    merged: dict[str, bytes] = {}

    def merge(stored: ri.Items) -> ri.Items:
        merged.clear()
        merged.update({**dict(stored), **items})
        return tuple(sorted(merged.items(), key=lambda item: item[0].encode()))

    v2_refs(core.refs, _WHAT).update(SetMetadata(merge))
    return dict(ri.decode_items(tuple(merged.items()), where=REPO_KEY))


def operations(core: Core) -> Iterator[Update]:
    """What happened to the repository, newest first."""
    return map(Update.of, v2_refs(core.refs, _WHAT).operations())


class UpdateType:
    """What happened; one class for each kind, with ids as text."""

    RepoInitialized = ri.RepoInitialized
    RepoMigrated = ri.RepoMigrated
    RepoStatusChanged = ri.RepoStatusChanged
    ConfigChanged = ri.ConfigChanged
    MetadataChanged = ri.MetadataChanged
    TagCreated = ri.TagCreated
    TagDeleted = ri.TagDeleted
    BranchCreated = ri.BranchCreated
    BranchDeleted = ri.BranchDeleted
    BranchReset = ri.BranchReset
    NewCommit = ri.NewCommit
    CommitAmended = ri.CommitAmended
    NewDetachedSnapshot = ri.NewDetachedSnapshot
    GCRan = ri.GCRan
    ExpirationRan = ri.ExpirationRan
    FeatureFlagChanged = ri.FeatureFlagChanged
    Unknown = ri.Unknown


@dataclass(frozen=True, slots=True, repr=False)
class Update(Shown):
    """One entry of the operations log."""

    kind: object
    """One of the classes in `UpdateType`."""
    updated_at: datetime
    backup_path: str | None
    """File below `overwritten/` in which this entry is the newest."""

    @classmethod
    def of(cls, update: ri.OperationsEntry) -> Update:
        """An entry as stored."""
        shown = type(update.event)(*(_shown(value) for _, value in _fields(update.event)))
        return cls(shown, from_micros(update.updated_at).astimezone(UTC), update.backup)


def event_facts(event: ri.Event) -> dict[str, Any]:
    """A stored event in JSON values, as the official library shows it."""
    name = type(event).__name__
    suffix = "" if isinstance(event, ri.FeatureFlagChanged | ri.Unknown) else "Update"
    facts = {field: _fact(field, value) for field, value in _fields(event)}
    return {"type": name + suffix, **facts}


def _fields(event: ri.Event) -> Iterator[tuple[str, object]]:
    return ((field.name, getattr(event, field.name)) for field in fields(event))


def _shown(value: object) -> Any:
    match value:
        case bytes():
            return format_id(Generation.V2, value)
        case ri.Status():
            return RepoStatus.of(value)
    return value


def _fact(name: str, value: object) -> object:
    shown = _shown(value)
    if isinstance(shown, RepoStatus):
        return {
            "availability": _AVAILABILITY[shown.availability],
            "limited_availability_reason": shown.limited_availability_reason,
            "set_at": shown.set_at and utc_text(shown.set_at),
        }
    return f"{shown}.0" if name.endswith("_version") else shown


_AVAILABILITY = {RepoAvailability.online: "Online", RepoAvailability.read_only: "ReadOnly"}
