"""Changes of a repository of generation `2` as values, and `apply`, which applies them.

`apply(change, info)` is pure: it returns the next state and the event to record, or the reason for
a refusal. `record` then adds the event to the operations log. After a lost race, a change is simply
applied again to the newer state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from airflow_provider_icechunk.engine.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.exceptions import FormatError

from .repo import (
    BranchCreated,
    BranchDeleted,
    BranchReset,
    CommitAmended,
    ConfigChanged,
    Event,
    ExpirationRan,
    FeatureFlagChanged,
    GCRan,
    Items,
    MetadataChanged,
    NewCommit,
    NewDetachedSnapshot,
    OperationsEntry,
    RepoInfo,
    RepoStatusChanged,
    SnapshotRecord,
    Status,
    TagCreated,
    TagDeleted,
)


@dataclass(frozen=True, slots=True)
class AddCommit:
    """Move a branch from `expected` to a new child of it."""

    branch: str
    expected: SnapshotId
    record: SnapshotRecord


@dataclass(frozen=True, slots=True)
class AmendCommit:
    """Replace the newest commit of a branch, `expected`, with a new child of its parent."""

    branch: str
    expected: SnapshotId
    record: SnapshotRecord


@dataclass(frozen=True, slots=True)
class AddDetached:
    """List a snapshot that no branch points at."""

    record: SnapshotRecord


@dataclass(frozen=True, slots=True)
class CreateBranch:
    """Create a branch at a listed snapshot."""

    name: str
    to: SnapshotId


@dataclass(frozen=True, slots=True)
class ResetBranch:
    """Move a branch from `expected` to any listed snapshot."""

    name: str
    to: SnapshotId
    expected: SnapshotId


@dataclass(frozen=True, slots=True)
class DeleteBranch:
    """Delete a branch other than `main`."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateTag:
    """Create a tag at a listed snapshot, unless its name has ever been used."""

    name: str
    to: SnapshotId


@dataclass(frozen=True, slots=True)
class DeleteTag:
    """Delete a tag and remember its name."""

    name: str


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Store another configuration, if the stored one is still `expected`."""

    config: bytes
    expected: bytes | None


@dataclass(frozen=True, slots=True)
class SetMetadata:
    """Store other metadata of the repository."""

    metadata: Callable[[Items], Items]


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Set the status of the repository."""

    status: Status


@dataclass(frozen=True, slots=True)
class SetFlag:
    """Turn a feature on or off, or reset it to its default."""

    flag: int
    value: bool | None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The only snapshots and refs that a confirmed expiration may remove."""

    snapshots: frozenset[SnapshotId]
    tags: Mapping[str, SnapshotId]
    """Each with its snapshot."""
    branches: Mapping[str, SnapshotId]


@dataclass(frozen=True, slots=True)
class Expire:
    """Remove snapshots older than a time from the history; tips of refs stay.

    Kept snapshots get the root of their line as parent, and remember the logs in between. Recorded
    even if nothing is old enough.
    """

    older_than: int
    """Microseconds since 1970 UTC."""
    delete_tags: bool = False
    delete_branches: bool = False
    keep_last: int = 1
    """How many snapshots of each remaining branch are kept regardless of age."""
    allowed: Allowed | None = None
    """The snapshots that may expire; `None` for all that are old enough."""


@dataclass(frozen=True, slots=True)
class Collect:
    """Unlist snapshots whose files are about to be deleted; recorded even if none is listed."""

    drop: frozenset[SnapshotId]


Change = (
    AddCommit
    | AmendCommit
    | AddDetached
    | CreateBranch
    | ResetBranch
    | DeleteBranch
    | CreateTag
    | DeleteTag
    | SetConfig
    | SetMetadata
    | SetStatus
    | SetFlag
    | Expire
    | Collect
)


class Reason(Enum):
    """Why a change cannot be applied to a state."""

    EXISTS = "exists"
    WAS_DELETED = "was deleted"
    NOT_FOUND = "not found"
    MOVED = "moved"
    UNLISTED = "unlisted"
    """It refers to a snapshot that the repository does not list."""
    IN_USE = "in use"
    """It would remove a snapshot that a ref points at."""
    PROTECTED = "protected"


@dataclass(frozen=True, slots=True)
class Applied:
    """The next state, without the new log entry, and the event to record."""

    info: RepoInfo
    event: Event


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing changed."""

    reason: Reason
    actual: SnapshotId | None = None
    """The actual snapshot of the branch."""


Outcome = Applied | Refused


def apply(change: Change, info: RepoInfo) -> Outcome:
    """The state after a change, or why it is refused."""
    match change:
        case AddCommit():
            return _commit(change, info)
        case AmendCommit():
            return _amend(change, info)
        case AddDetached(record):
            return _detached(record, info)
        case CreateBranch() | ResetBranch() | DeleteBranch():
            return _branch(change, info)
        case CreateTag() | DeleteTag():
            return _tag(change, info)
        case SetConfig() | SetMetadata() | SetStatus():
            return _setting(change, info)
        case SetFlag():
            return _flag(change, info)
        case Expire():
            return _expire(change, info)
        case Collect():
            return _collect(change, info)


def record(info: RepoInfo, event: Event, *, at: int, backup: str | None, most: int) -> RepoInfo:
    """The state with `event` as the newest entry of its log.

    The previous newest entry gets the name of the backup of its state. With more than `most`
    entries the log is cut at the first one with a backup; entries without one, such as those that a
    migration reconstructed, stay.
    """
    first, *older = info.updates
    at = max(at, first.updated_at + 1)
    entries = [OperationsEntry(event, at), replace(first, backup=backup), *older]
    for position in range(min(most, len(entries)), len(entries)):
        cut = entries[position].backup
        if cut is not None:
            return replace(info, updates=tuple(entries[:position]), before_updates=cut)
    return replace(info, updates=tuple(entries))


def lineage(info: RepoInfo, start: SnapshotId) -> list[SnapshotRecord]:
    """A listed snapshot and its ancestors, newest first; raises if there is a cycle."""
    line: dict[SnapshotId, SnapshotRecord] = {}
    current: SnapshotId | None = start
    while current is not None:
        if current in line:
            raise FormatError(f"the history has a cycle at {encode_base32(current)}")
        line[current] = info.snapshots[current]
        current = line[current].parent_id
    return list(line.values())


def _listed(info: RepoInfo, record: SnapshotRecord) -> dict[SnapshotId, SnapshotRecord]:
    return {**info.snapshots, record.id: record}


def _commit(change: AddCommit, info: RepoInfo) -> Outcome:
    actual = info.branches.get(change.branch)
    if actual != change.expected:
        return Refused(Reason.MOVED, actual)
    added = replace(change.record, parent_id=change.expected)
    branches = {**info.branches, change.branch: added.id}
    new = replace(info, branches=branches, snapshots=_listed(info, added))
    return Applied(new, NewCommit(change.branch, added.id))


def _amend(change: AmendCommit, info: RepoInfo) -> Outcome:
    actual = info.branches.get(change.branch)
    if actual != change.expected:
        return Refused(Reason.MOVED, actual)
    old = info.snapshots[change.expected]
    if old.parent_id is None:
        return Refused(Reason.PROTECTED, actual)
    added = replace(change.record, parent_id=old.parent_id, pruned_logs=old.pruned_logs)
    branches = {**info.branches, change.branch: added.id}
    new = replace(info, branches=branches, snapshots=_listed(info, added))
    return Applied(new, CommitAmended(change.branch, old.id, added.id))


def _detached(record: SnapshotRecord, info: RepoInfo) -> Outcome:
    if record.id in info.snapshots:
        return Refused(Reason.EXISTS)
    if record.parent_id is not None and record.parent_id not in info.snapshots:
        return Refused(Reason.UNLISTED)
    return Applied(replace(info, snapshots=_listed(info, record)), NewDetachedSnapshot(record.id))


def _branch(change: CreateBranch | ResetBranch | DeleteBranch, info: RepoInfo) -> Outcome:
    actual = info.branches.get(change.name)
    if isinstance(change, DeleteBranch):
        if change.name == MAIN:
            return Refused(Reason.PROTECTED, actual)
        if actual is None:
            return Refused(Reason.NOT_FOUND)
        left = {name: at for name, at in info.branches.items() if name != change.name}
        return Applied(replace(info, branches=left), BranchDeleted(change.name, actual))
    if change.to not in info.snapshots:
        return Refused(Reason.UNLISTED, actual)
    moved = replace(info, branches={**info.branches, change.name: change.to})
    if isinstance(change, CreateBranch):
        if actual is not None:
            return Refused(Reason.EXISTS, actual)
        return Applied(moved, BranchCreated(change.name))
    if actual is None or actual != change.expected:
        return Refused(Reason.MOVED, actual)
    return Applied(moved, BranchReset(change.name, actual))


def _tag(change: CreateTag | DeleteTag, info: RepoInfo) -> Outcome:
    actual = info.tags.get(change.name)
    if isinstance(change, DeleteTag):
        if actual is None:
            return Refused(Reason.NOT_FOUND)
        return Applied(_bury(info, {change.name}), TagDeleted(change.name, actual))
    if change.name in info.deleted_tags:
        return Refused(Reason.WAS_DELETED)
    if actual is not None:
        return Refused(Reason.EXISTS, actual)
    if change.to not in info.snapshots:
        return Refused(Reason.UNLISTED)
    return Applied(
        replace(info, tags={**info.tags, change.name: change.to}), TagCreated(change.name)
    )


def _bury(info: RepoInfo, names: Collection[str]) -> RepoInfo:
    left = {name: at for name, at in info.tags.items() if name not in names}
    return replace(info, tags=left, deleted_tags=info.deleted_tags | frozenset(names))


def _setting(change: SetConfig | SetMetadata | SetStatus, info: RepoInfo) -> Outcome:
    match change:
        case SetConfig(config, expected):
            if info.config != expected:
                return Refused(Reason.MOVED)
            return Applied(replace(info, config=config), ConfigChanged())
        case SetMetadata(metadata):
            return Applied(replace(info, metadata=metadata(info.metadata)), MetadataChanged())
        case SetStatus(status):
            return Applied(replace(info, status=status), RepoStatusChanged(status))


def _flag(change: SetFlag, info: RepoInfo) -> Outcome:
    enabled = set(info.enabled_flags or ()) - {change.flag}
    disabled = set(info.disabled_flags or ()) - {change.flag}
    if change.value is not None:
        (enabled if change.value else disabled).add(change.flag)
    new = replace(
        info, enabled_flags=tuple(sorted(enabled)), disabled_flags=tuple(sorted(disabled))
    )
    return Applied(new, FeatureFlagChanged(change.flag, change.value))


def _expire(change: Expire, info: RepoInfo) -> Outcome:
    def is_old(identity: SnapshotId) -> bool:
        found = info.snapshots[identity]
        return found.parent_id is not None and found.flushed_at < change.older_than

    may = change.allowed
    tags = {
        name
        for name, at in info.tags.items()
        if change.delete_tags and is_old(at) and (may is None or may.tags.get(name) == at)
    }
    branches = {
        name: at
        for name, at in info.branches.items()
        if name == MAIN
        or not (change.delete_branches and is_old(at))
        or not (may is None or may.branches.get(name) == at)
    }
    kept = _bury(replace(info, branches=branches), tags)
    protected = {*kept.branches.values(), *kept.tags.values()}
    for tip in kept.branches.values() if change.keep_last > 1 else ():
        protected.update(found.id for found in lineage(info, tip)[: change.keep_last])
    released = {key for key in info.snapshots if is_old(key) and key not in protected}
    if may is not None:
        released &= may.snapshots
    left = {
        key: _adopted(info, found, lambda ancestor: ancestor.parent_id is None)
        if found.parent_id in released
        else found
        for key, found in info.snapshots.items()
        if key not in released
    }
    return Applied(replace(kept, snapshots=left), ExpirationRan())


def _collect(change: Collect, info: RepoInfo) -> Outcome:
    drop = change.drop & info.snapshots.keys()
    if drop & {*info.branches.values(), *info.tags.values()}:
        return Refused(Reason.IN_USE)
    left: Mapping[SnapshotId, SnapshotRecord] = {
        key: _adopted(info, found, lambda ancestor: ancestor.id not in drop)
        if found.parent_id in drop
        else found
        for key, found in info.snapshots.items()
        if key not in drop
    }
    return Applied(replace(info, snapshots=left), GCRan())


def _adopted(
    info: RepoInfo, child: SnapshotRecord, stays: Callable[[SnapshotRecord], bool]
) -> SnapshotRecord:
    """The snapshot with its first remaining ancestor as parent, and the logs of those in between.

    Without such an ancestor it becomes a root.
    """
    skipped: list[SnapshotRecord] = []
    parent: SnapshotId | None = None
    for ancestor in lineage(info, child.id)[1:]:
        if stays(ancestor):
            parent = ancestor.id
            break
        skipped.append(ancestor)
    logs = [log for old in reversed(skipped) for log in (*old.pruned_logs, old.id)]
    return replace(child, parent_id=parent, pruned_logs=(*logs, *child.pruned_logs))
