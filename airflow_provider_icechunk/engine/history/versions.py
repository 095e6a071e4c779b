"""The versions of a repository by name: branches, tags, snapshots, and their history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.ids import SnapshotId, parse_id
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN, check_new_ref_name
from airflow_provider_icechunk.engine.refs import v2_refs
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Register
from airflow_provider_icechunk.engine.world import to_micros
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
)

from .ancestry import SnapshotInfo, ancestors, describe
from .graph import AncestryGraph


def parse_snapshot_id(core: Core, text: str) -> SnapshotId:
    """The typed id; does not check that the snapshot exists."""
    try:
        return SnapshotId(parse_id(core.generation, text))
    except InvalidInputError as error:
        raise InvalidInputError(f"invalid snapshot id: {error}") from None


def listed(core: Core, snapshot_id: str) -> SnapshotId:
    """A snapshot that may be read: generation `2` lists them, and what expired is not listed.

    Elsewhere an expired snapshot can be read by its id until it is collected.
    """
    identity = parse_snapshot_id(core, snapshot_id)
    if core.generation.hides_expired:
        v2_refs(core.refs, "a list of snapshots").check_listed(identity)
    return identity


def resolve(core: Core, branch: str | None, tag: str | None, snapshot_id: str | None) -> SnapshotId:
    """The snapshot named by exactly one of the three arguments."""
    if sum(name is not None for name in (branch, tag, snapshot_id)) != 1:
        raise InvalidInputError("Must provide one of branch, tag, or snapshot_id")
    if branch is not None:
        return branch_head(core, branch)
    if tag is not None:
        return tagged(core, tag)
    assert snapshot_id is not None
    return listed(core, snapshot_id)


def resolve_at(
    core: Core,
    branch: str | None,
    tag: str | None,
    snapshot_id: str | None,
    as_of: datetime | None,
) -> SnapshotId:
    """`resolve`, or the last snapshot that a branch had at `as_of`."""
    if as_of is not None and branch is None:
        raise InvalidInputError("as_of needs a branch")
    start = resolve(core, branch, tag, snapshot_id)
    if as_of is None:
        return start
    limit = to_micros(as_of)
    for snapshot in ancestors(core.objects, start):
        if snapshot.flushed_at <= limit:
            return snapshot.id
    raise NotFoundError(
        f"branch {branch!r} has no snapshot as old as {as_of.isoformat()}",
        kind=Kind.SNAPSHOT_NOT_FOUND,
    )


def branch_head(core: Core, branch: str) -> SnapshotId:
    """The snapshot at the head of a branch."""
    head = core.refs.branch(branch)
    if head is None:
        raise _no_branch(core, branch)
    return head


def head_to_change(core: Core, branch: str) -> SnapshotId:
    """The head of a branch for a session that is going to change it; refused if no session may."""
    head = branch_head(core, branch)
    core.refs.check_writable()
    return head


def create_branch(core: Core, branch: str, snapshot_id: str) -> None:
    """Create a branch at a snapshot."""
    check_new_ref_name(branch)
    target = _stored(core, snapshot_id)
    if core.refs.create_branch(branch, target) is not Creation.CREATED:
        raise AlreadyExistsError(
            f"branch {branch!r} already exists; reset it to move it", kind=Kind.BRANCH_EXISTS
        )
    _keep_or(
        core,
        target,
        lambda: _delete_branch_at(core, branch, target),
        f"branch {branch!r} was created there; it was deleted again",
    )


def reset_branch(core: Core, branch: str, snapshot_id: str, from_snapshot_id: str | None) -> None:
    """Move a branch to any snapshot; with `from_snapshot_id` only if it is at that one."""
    target = _stored(core, snapshot_id)
    expected = branch_head(core, branch)
    if from_snapshot_id is not None:
        expected = parse_snapshot_id(core, from_snapshot_id)
    outcome = core.refs.reset_branch(branch, target, expected)
    if isinstance(outcome, Behind):
        text = core.format_id
        actual = None if outcome.actual is None else text(outcome.actual)
        raise ConflictError(
            f"branch update conflict: {branch!r} is at {actual}, not at {text(expected)}; it was "
            "not reset",
            expected_parent=text(expected),
            actual_parent=actual,
        )
    _keep_or(
        core,
        target,
        lambda: core.refs.reset_branch(branch, expected, target),
        f"branch {branch!r} was moved there; it was moved back",
    )


def delete_branch(core: Core, branch: str) -> None:
    """Delete a branch; its snapshots stay until they are collected."""
    if branch == MAIN:
        raise InvalidInputError("main branch cannot be deleted", kind=Kind.INVALID_NAME)
    if not core.refs.delete_branch(branch):
        raise _no_branch(core, branch)


def tagged(core: Core, tag: str) -> SnapshotId:
    """The snapshot that a tag names."""
    found = core.refs.tag(tag)
    if found is None:
        raise _no_tag(core, tag)
    return found


def create_tag(core: Core, tag: str, snapshot_id: str) -> None:
    """Create an immutable tag."""
    check_new_ref_name(tag, "tag")
    target = _stored(core, snapshot_id)
    match core.refs.create_tag(tag, target):
        case Creation.EXISTS:
            raise AlreadyExistsError(
                f"tag already exists, tags are immutable: {tag!r}", kind=Kind.TAG_EXISTS
            )
        case Creation.WAS_DELETED:
            raise AlreadyExistsError(
                f"tag {tag!r} existed and was deleted; its name cannot be used again",
                kind=Kind.TAG_WAS_DELETED,
            )
        case Creation.CREATED:
            _keep_or(
                core,
                target,
                lambda: core.refs.delete_tag(tag),
                f"tag {tag!r} was created there; it was deleted again",
            )


def delete_tag(core: Core, tag: str) -> None:
    """Delete a tag."""
    if not core.refs.delete_tag(tag):
        raise _no_tag(core, tag)


def lookup_snapshot(core: Core, snapshot_id: str) -> SnapshotInfo:
    """What is known about one snapshot."""
    known_as = listed(core, snapshot_id)
    return _describe(core, core.objects.snapshot_header(known_as), known_as)


def history(core: Core, start: SnapshotId) -> Iterator[SnapshotInfo]:
    """A snapshot and its ancestors, newest first."""
    known_as: SnapshotId | None = start
    for snapshot in ancestors(core.objects, start, ahead=True):
        yield _describe(core, snapshot, known_as)
        known_as = core.refs.parent(snapshot)


def history_graph(core: Core, start: SnapshotId | None, *, plain: bool) -> AncestryGraph:
    """The history of one version, or of all branches, as a picture."""
    branches, tags = core.refs.branches(), core.refs.tags()
    found: dict[str, SnapshotInfo] = {}
    for tip in branches.values() if start is None else [start]:
        for info in history(core, tip):
            if info.id in found:
                break
            found[info.id] = info
    text = core.format_id
    return AncestryGraph.of(
        found.values(),
        branches={name: text(tip) for name, tip in branches.items()},
        tags={name: text(tip) for name, tip in tags.items()},
        plain=plain,
    )


def _describe(core: Core, snapshot: Snapshot, known_as: SnapshotId | None) -> SnapshotInfo:
    """A history entry under the id that a reference or a child uses for the snapshot.

    Early writers stored first snapshots under a file name that differs from the id they gave them.
    """
    parent = core.refs.parent(snapshot)
    return describe(snapshot, parent, known_as or snapshot.id, core.generation)


def _stored(core: Core, snapshot_id: str) -> SnapshotId:
    """A snapshot that is stored right now."""
    return core.objects.stored_now(parse_snapshot_id(core, snapshot_id)).id


def _keep_or(core: Core, target: SnapshotId, take_back: Callable[[], object], what: str) -> None:
    """Check that a snapshot still exists after it was named, and remove the name if not.

    A collection reads refs after it has deleted snapshots, and restores those named by then. So a
    snapshot that exists now stays, and a missing one may have been named too late. Generation `2`
    names only listed snapshots, and unlists what it deletes.
    """
    if core.generation.hides_expired:
        return
    try:
        core.objects.stored_now(target)
    except NotFoundError as error:
        take_back()
        _unlist_missing(core)
        raise NotFoundError(
            f"snapshot {core.format_id(target)} of {core.storage.location} was collected while "
            f"{what}. Nothing reached this snapshot before",
            kind=Kind.SNAPSHOT_NOT_FOUND,
        ) from error


def _unlist_missing(core: Core) -> None:
    """Unlist snapshots that a name had put on the list and whose files are gone.

    Collections keep what is listed and not old, and stop at what they cannot read.
    """
    refs = core.refs
    if isinstance(refs, Register):
        listed, key = refs.register().snapshots, refs.layout.snapshot
        refs.unlist(frozenset(one for one in listed if core.storage.head(key(one)) is None))


def _delete_branch_at(core: Core, branch: str, target: SnapshotId) -> None:
    if core.refs.branch(branch) == target:
        core.refs.delete_branch(branch)


def _no_branch(core: Core, branch: str) -> NotFoundError:
    known = ", ".join(sorted(core.refs.branches())[:20])
    return NotFoundError(
        f"ref not found: there is no branch {branch!r} in {core.storage.location}; it has: {known}",
        kind=Kind.BRANCH_NOT_FOUND,
    )


def _no_tag(core: Core, tag: str) -> NotFoundError:
    known = ", ".join(sorted(core.refs.tags())[:20]) or "no tags"
    return NotFoundError(
        f"ref not found: there is no tag {tag!r} in {core.storage.location}; it has: {known}",
        kind=Kind.TAG_NOT_FOUND,
    )
