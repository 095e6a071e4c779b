"""Changes to a repository since the last poll, as small JSON values.

Sensors that poke and triggers that wait use the same functions, so they get the same results. For
an Airflow that keeps no state of assets, the position of a watcher is stored next to the data:
readers of the format ignore that folder, and maintenance leaves it alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    ConflictError,
    IcechunkError,
    InvalidInputError,
    Kind,
    NotFoundError,
    StorageError,
    UnsafeStorageError,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.history.diff import Diff
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.storage.base import Storage

log = logging.getLogger(__name__)

_SHOWN_LABELS = 10
_REPORTED = ("snapshot_id", "dim", "wanted", "present")
_LONGEST_WALK = 10_000
_MOST_COMMITS = 100
"""At most this many are reported at a time."""
_LONGEST_TEXT = 2_000
_LARGEST_METADATA = 16_384
_LARGEST_DOCUMENT = 1 << 24
_POSITIONS = "watchers"
_POSITION_FIELD = "last_snapshot_id"
_LARGEST_POSITION = 1 << 10


class CommitEvent(TypedDict):
    """One commit that is new on a branch."""

    repository: str
    branch: str
    snapshot_id: str
    parent_id: str | None
    message: str
    written_at: str
    metadata: dict[str, Any]
    reset: bool
    """Whether the branch no longer contains what was seen before: the history was rewritten, and
    only the newest commit of the new one is reported."""


@dataclass(frozen=True, slots=True)
class CommitFilter:
    """Which commits matter; all given conditions must hold."""

    path: str | None = None
    """Something at or below this path was created, changed or deleted."""
    message_matches: str | None = None
    """A regular expression that is found in the message."""
    metadata_has: Mapping[str, Any] = field(default_factory=dict)
    """Entries that the metadata must have."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.message_matches or "")
        except re.error as error:
            raise InvalidInputError(
                f"message_matches is not a regular expression: {error}"
            ) from None


@dataclass(frozen=True, slots=True)
class NewCommits:
    """The result of polling a branch."""

    watermark: str
    """The snapshot from which the next poll continues."""
    events: list[CommitEvent]
    """Commits that matter, oldest first."""


def is_temporary(error: IcechunkError) -> bool:
    """Whether polling again later can help: the storage failed, or nothing is there yet."""
    if isinstance(error, (AccessDeniedError, UnsafeStorageError)):
        return False
    return isinstance(error, (StorageError, ConflictError, NotFoundError))


def poll_branch(
    repository: Repository,
    name: str,
    branch: str,
    *,
    since: str | None,
    conditions: CommitFilter,
) -> NewCommits:
    """New commits on a branch after `since`, oldest first and at most 100 of them.

    Without `since` the whole history is new, except for its first, empty snapshot. If `since` is no
    longer in the history, only the newest commit is reported, as a reset.
    """
    if since is not None:
        # A template that rendered `None` must not look like a rewritten history.
        since = repository.read_snapshot_id(since)
    head = repository.lookup_branch(branch)
    if head == since:
        return NewCommits(head, [])
    new: list[SnapshotInfo] = []
    found = since is None
    for info in repository.ancestry(snapshot_id=head):
        if info.id == since:
            found = True
            break
        if len(new) == _LONGEST_WALK:
            found = False
            break
        new.append(info)
    if not found:
        return NewCommits(head, _events(repository, name, branch, new[:1], conditions, reset=True))
    if since is None:
        new = [info for info in new if info.parent_id is not None]
    chosen = new[::-1][:_MOST_COMMITS]
    events = _events(repository, name, branch, chosen, conditions, reset=False)
    return NewCommits(chosen[-1].id if chosen else head, events)


def poll_tag(repository: Repository, tag: str) -> dict[str, Any] | None:
    """Which snapshot a tag names; `None` while there is no such tag."""
    try:
        return {"tag": tag, "snapshot_id": repository.lookup_tag(tag)}
    except NotFoundError as error:
        if error.kind is not Kind.TAG_NOT_FOUND:
            raise
        return None


def poll_node(
    repository: Repository,
    path: str,
    *,
    branch: str,
    kind: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    minimum_shape: Sequence[int] | None = None,
) -> dict[str, Any] | None:
    """A group or array at the head of a branch, once it is as requested; `None` until then."""
    from airflow_provider_icechunk.engine.format.wire.json import parse

    if kind not in (None, "array", "group"):
        raise InvalidInputError(f"kind must be 'array' or 'group', not {kind!r}")
    session = repository.readonly_session(branch)
    node = session.tree.node(_absolute(path))
    if node is None or kind not in (None, "group" if node.is_group else "array"):
        return None
    document = parse(node.user_data, where=node.path, limit=_LARGEST_DOCUMENT)
    present = document.get("attributes", {}) if isinstance(document, dict) else {}
    wanted = dict(attributes or {})
    if not _has(present, wanted):
        return None
    shape = None if node.array is None else list(document["shape"])
    if minimum_shape is not None and not _reached(shape, [int(one) for one in minimum_shape]):
        return None
    return {
        "path": node.path,
        "kind": "group" if node.is_group else "array",
        "shape": shape,
        "attributes": wanted,
        "branch": branch,
        "snapshot_id": session.snapshot_id,
    }


def _events(
    repository: Repository,
    name: str,
    branch: str,
    infos: Iterable[SnapshotInfo],
    conditions: CommitFilter,
    *,
    reset: bool,
) -> list[CommitEvent]:
    return [
        CommitEvent(
            repository=name,
            branch=branch,
            snapshot_id=info.id,
            parent_id=info.parent_id,
            message=info.message[:_LONGEST_TEXT],
            written_at=info.written_at.isoformat(),
            metadata=_small(info.metadata),
            reset=reset,
        )
        for info in infos
        if _matter(repository, info, conditions, reset=reset)
    ]


def _matter(
    repository: Repository, info: SnapshotInfo, conditions: CommitFilter, *, reset: bool
) -> bool:
    pattern = conditions.message_matches
    if pattern is not None and re.search(pattern, info.message) is None:
        return False
    if not _has(info.metadata, conditions.metadata_has):
        return False
    # After a reset everything may be different, whatever the newest commit itself changed.
    if conditions.path is None or reset:
        return True
    if info.parent_id is None:
        return False
    diff = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
    return _touches(diff, _absolute(conditions.path))


def _touches(diff: Diff, path: str) -> bool:
    below = path.rstrip("/") + "/"
    return any(one == path or one.startswith(below) for one in _changed_paths(diff))


def _changed_paths(diff: Diff) -> Iterable[str]:
    yield from diff.new_groups | diff.new_arrays
    yield from diff.updated_groups | diff.updated_arrays
    yield from diff.deleted_groups | diff.deleted_arrays
    yield from diff.chunk_columns
    for move in diff.moved_nodes:
        yield from move


def _has(present: object, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    return isinstance(present, Mapping) and all(
        key in present and present[key] == value for key, value in wanted.items()
    )


def _reached(shape: list[int] | None, least: list[int]) -> bool:
    if shape is None or len(shape) != len(least):
        return False
    return all(length >= wanted for length, wanted in zip(shape, least, strict=True))


def _small(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata, unless it is too large to travel with an event or is not JSON."""
    try:
        text = json.dumps(dict(metadata))
    except (TypeError, ValueError, RecursionError):
        return {}
    return dict(json.loads(text)) if len(text) <= _LARGEST_METADATA else {}


def _absolute(path: str) -> str:
    return "/" + path.strip("/")


def poll_labels(
    repository: Repository,
    dataset: IcechunkDataset,
    at: Mapping[str, Any] | str,
    *,
    variables: Sequence[str] | None = None,
    branch: str,
) -> dict[str, Any] | None:
    """The coverage of a dataset, if all requested labels are present."""
    from airflow_provider_icechunk.engine.datasets.coverage import coverage

    given = dataset.place(at)
    answer: dict[str, Any] = {"branch": branch}
    for dim in given.labels:
        found = coverage(repository, dataset, dim, at=at, variables=variables, branch=branch)
        if not found.is_complete:
            log.info(
                "%d of %d labels of %s are there; missing: %s",
                found.wanted - len(found.missing),
                found.wanted,
                dim,
                ", ".join(map(str, found.missing[:_SHOWN_LABELS])),
            )
            return None
        answer |= {key: value for key, value in found.as_dict().items() if key in _REPORTED}
    return answer


def position_key(watcher: Mapping[str, Any]) -> str:
    """The key of a watcher's position: watchers with equal settings share one."""
    text = json.dumps(watcher, sort_keys=True, default=str)
    return f"{_POSITIONS}/{hashlib.sha256(text.encode()).hexdigest()[:40]}.json"


def read_position(storage: Storage, key: str) -> str | None:
    """The last snapshot that a watcher has reported; `None` if nothing readable is kept."""
    stored = storage.get(key)
    if stored is None or len(stored.data) > _LARGEST_POSITION:
        return None
    try:
        value = json.loads(stored.data)
    except (ValueError, RecursionError):
        return None
    found = value.get(_POSITION_FIELD) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def keep_position(storage: Storage, key: str, snapshot_id: str) -> None:
    """Store the last snapshot that a watcher has reported. Needs the right to write."""
    storage.put(key, json.dumps({_POSITION_FIELD: snapshot_id}).encode(), expect=Anything())
    storage.settle()
