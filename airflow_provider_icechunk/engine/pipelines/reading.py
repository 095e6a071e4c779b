"""Which version a task reads: that of an event, a branch, a tag, an id or a time.

Pure, and imports only the standard library: operators name these values when a Dag is parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.sessions.session import Session

_KEYS = ("repository", "branch", "tag", "snapshot_id", "as_of", "event")


@dataclass(frozen=True, slots=True)
class VersionToRead:
    """One version of a repository by name."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    as_of: datetime | None = None
    event: bool = False
    """Whether it is the one that the triggering event names."""
    or_head: bool = False
    """Whether to use the head of the branch if there is no event."""
    repository: str | None = None
    """Another repository than the task's."""

    def session(self, repository: Repository) -> Session:
        """A read-only session on it."""
        return repository.readonly_session(
            self.branch, tag=self.tag, snapshot_id=self.snapshot_id, as_of=self.as_of
        )


@dataclass(frozen=True, slots=True)
class TriggeringEvent:
    """The commit in an event that started a run."""

    uri: str
    """The address of its asset."""
    extra: Mapping[str, Any]
    timestamp: datetime | None = None

    @property
    def commit(self) -> Mapping[str, Any]:
        """The commit: events of watchers keep it one level deeper than those of tasks."""
        payload = self.extra.get("payload")
        return payload if isinstance(payload, Mapping) else self.extra


def parse_version(value: object, *, branch: str) -> VersionToRead:
    """The version that `read=` names.

    :param branch: the branch of the task: its head is read unless another version is named.
    """
    if value is True:
        return VersionToRead(branch=branch, event=True, or_head=True)
    if isinstance(value, str):
        if value == "event":
            return VersionToRead(event=True)
        raise _unknown(value)
    if not isinstance(value, Mapping) or not value or set(value) - set(_KEYS):
        raise _unknown(value)
    given = {key: one for key, one in value.items() if one is not None}
    for key, one in given.items():
        if key not in ("as_of", "event") and (not isinstance(one, str) or not one):
            raise InvalidInputError(
                f"read[{key!r}] is {one!r}: it must be a string; a template may have rendered "
                "to nothing"
            )
    event = given.pop("event", False)
    if "as_of" in given:
        given["as_of"] = _time(given["as_of"])
    if event is not False and event is not True:
        raise InvalidInputError(f"read['event'] must be True or False, not {event!r}")
    named = [key for key in ("tag", "snapshot_id") if key in given] + ["event"] * event
    if len(named) > 1 or (named and ("branch" in given or "as_of" in given)):
        raise InvalidInputError(
            f"read names more than one version: {', '.join([*given, *['event'] * event])}. Give "
            "a tag, a snapshot_id, a branch (with as_of, if a time is meant), or the event"
        )
    if not named:
        given.setdefault("branch", branch)
    return VersionToRead(**given, event=event)


def snapshot_of_events(events: Iterable[TriggeringEvent], repository: str) -> str | None:
    """The snapshot that the newest event about a repository names; `None` without such an event.

    Events of several assets are distinguished by the repository that they name, or by the end of
    the asset's address. If that is ambiguous, it is an error: another repository's snapshot must
    not be read by accident.
    """
    telling = [
        event
        for event in events
        if isinstance(event.commit.get("snapshot_id"), str)
        and event.commit.get("repository", repository) == repository
    ]
    if len({event.uri for event in telling}) > 1:
        whole = f"/{repository.strip('/')}"
        matching = [one for one in telling if f"/{_path(one.uri)}".endswith(whole)]
        if len({_path(one.uri) for one in matching}) != 1:
            raise InvalidInputError(
                f"the run was started by events of {sorted({one.uri for one in telling})}, and "
                f"none or several of these addresses end in {repository!r}: choose the "
                "version to read "
                "with read={'snapshot_id': ...}, read={'branch': ...} or read={'tag': ...}"
            )
        telling = matching
    oldest = datetime.min.replace(tzinfo=UTC)
    newest = max(telling, key=lambda one: one.timestamp or oldest, default=None)
    return None if newest is None else str(newest.commit["snapshot_id"])


def pinned(
    version: VersionToRead, events: Iterable[TriggeringEvent], repository: str
) -> VersionToRead:
    """The version, with the event's snapshot filled in if that is the one to read."""
    if not version.event:
        return version
    found = snapshot_of_events(events, version.repository or repository)
    if found is not None:
        return VersionToRead(snapshot_id=found, repository=version.repository)
    if version.or_head:
        return VersionToRead(branch=version.branch, repository=version.repository)
    raise InvalidInputError(
        "read='event' needs a run that was started by an event that names a snapshot, and this one "
        "was not (a manual run, or a producer that reports no snapshot_id): use read=True to fall "
        "back to the head of the branch, or read={'branch': 'main'}"
    )


def _path(uri: str) -> str:
    return urlsplit(uri).path.strip("/")


def _time(value: object) -> datetime:
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise InvalidInputError(
            f"read['as_of'] is {value!r}: a time like 2026-01-31T12:00:00+00:00 is needed"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _unknown(value: object) -> InvalidInputError:
    return InvalidInputError(
        f"read must be True, 'event', or a mapping with some of {', '.join(_KEYS)}, not {value!r}"
    )
