"""Versions as people type them, the branches and tags, and the snapshots that they reach.

A version is a branch, a tag or a snapshot id, which may be shortened to its beginning. `branch:x`,
`tag:x` and `snapshot:x` resolve ambiguous names; `main~2` is the second ancestor.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_icechunk.engine.history.graph import Commit
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.repository import Repository

_BACK = re.compile(r"(?P<name>.+?)~(?P<steps>[0-9]{0,9})")
_BEGINNING = re.compile(r"[0-9A-Za-z]{4,19}")
"""Anything shorter would be a guess; a whole id has 20 characters."""
_READ_AS = str.maketrans("OIL", "011")
_KINDS = ("branch", "tag", "snapshot")


@dataclass(frozen=True, slots=True)
class Named:
    """A version as the user typed it."""

    kind: str | None
    """`branch`, `tag` or `snapshot`; `None` if it may be any of them."""
    name: str
    back: int = 0
    """How many ancestors to go back from there."""


def parse_version(text: str) -> Named:
    """Parse a version without checking that it exists."""
    back = 0
    if match := _BACK.fullmatch(text):
        text, back = match["name"], int(match["steps"] or 1)
    kind, colon, name = text.partition(":")
    if colon and kind in _KINDS:
        return Named(kind, name, back)
    return Named(None, text, back)


def find_version(repository: Repository, text: str) -> str:
    """The id of the snapshot that `text` names."""
    named = parse_version(text)
    start = _start(repository, named)
    if not named.back:
        return start
    for steps, info in enumerate(repository.ancestry(snapshot_id=start)):
        if steps == named.back:
            return info.id
    raise NotFoundError(f"{text!r} goes beyond the first snapshot", kind=Kind.SNAPSHOT_NOT_FOUND)


def _start(repository: Repository, named: Named) -> str:
    match named.kind:
        case "branch":
            return repository.lookup_branch(named.name)
        case "tag":
            return repository.lookup_tag(named.name)
        case "snapshot":
            return repository.lookup_snapshot(named.name).id
    found = _branches_and_tags(repository, named.name)
    if len(set(found.values())) > 1:
        raise InvalidInputError(
            f"{named.name!r} is both a branch and a tag, at different snapshots: use "
            f"branch:{named.name} or tag:{named.name}",
            kind=Kind.INVALID_NAME,
        )
    return next(iter(found.values()), None) or _snapshot(repository, named.name)


def _branches_and_tags(repository: Repository, name: str) -> dict[str, str]:
    found = {}
    for kind, look_up in (("branch", repository.lookup_branch), ("tag", repository.lookup_tag)):
        try:
            found[kind] = look_up(name)
        except NotFoundError:
            continue
    return found


def _snapshot(repository: Repository, name: str) -> str:
    """A snapshot by its id or the beginning of one; anything else was meant as a branch name."""
    try:
        return repository.lookup_snapshot(name).id
    except InvalidInputError:
        if _BEGINNING.fullmatch(name) and (found := _by_beginning(repository, name)):
            return found
        known = ", ".join(sorted(repository.list_branches())[:20])
    raise NotFoundError(
        f"there is no branch, tag or snapshot {name[:200]!r} in {repository.storage.location}; its "
        f"branches are: {known}",
        kind=Kind.BRANCH_NOT_FOUND,
    )


def _by_beginning(repository: Repository, text: str) -> str | None:
    """The only snapshot in the history of a branch or tag whose id begins like this."""
    start = text.upper().translate(_READ_AS)
    tips = {repository.lookup_branch(name) for name in repository.list_branches()}
    tips |= {repository.lookup_tag(name) for name in repository.list_tags()}
    seen: set[str] = set()
    for tip in sorted(tips):
        for info in repository.ancestry(snapshot_id=tip):
            if info.id in seen:
                break
            seen.add(info.id)
    found = sorted(known for known in seen if known.startswith(start))
    if len(found) > 1:
        raise InvalidInputError(
            f"{text!r} is a prefix of {len(found)} snapshot ids: {', '.join(found[:5])}; give more "
            "characters",
            kind=Kind.INVALID_NAME,
        )
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Heads:
    """The branches and tags, each with its snapshot id."""

    branches: Mapping[str, str]
    tags: Mapping[str, str]

    def tips(self) -> set[str]:
        """The snapshots that branches and tags point to."""
        return {*self.branches.values(), *self.tags.values()}

    def commit(self, info: SnapshotInfo) -> Commit:
        """A snapshot with its branches and tags."""
        return Commit(
            info.id,
            info.parent_id,
            info.written_at,
            info.message,
            tuple(sorted(name for name, tip in self.branches.items() if tip == info.id)),
            tuple(sorted(name for name, tip in self.tags.items() if tip == info.id)),
        )


def read_heads(repository: Repository) -> Heads:
    """The current branches and tags; one deleted during the read is left out."""
    return Heads(
        _look_up(repository.list_branches(), repository.lookup_branch),
        _look_up(repository.list_tags(), repository.lookup_tag),
    )


def newest(
    repository: Repository, tips: Iterable[str], limit: int | None
) -> tuple[list[SnapshotInfo], bool]:
    """The newest snapshots reachable from `tips`, and whether there are more."""
    ready = [(-info.written_at.timestamp(), info.id, info) for info in _load(repository, tips)]
    heapq.heapify(ready)
    seen = {identity for _, identity, _ in ready}
    found: list[SnapshotInfo] = []
    while ready:
        if limit is not None and len(found) >= limit:
            return found, True
        _, _, info = heapq.heappop(ready)
        found.append(info)
        if info.parent_id is not None and info.parent_id not in seen:
            seen.add(info.parent_id)
            parent = repository.lookup_snapshot(info.parent_id)
            heapq.heappush(ready, (-parent.written_at.timestamp(), parent.id, parent))
    return found, False


def describe(info: SnapshotInfo, commit: Commit) -> dict[str, object]:
    """A snapshot as JSON values."""
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at.isoformat(),
        "message": info.message,
        "metadata": info.metadata,
        "branches": list(commit.branches),
        "tags": list(commit.tags),
    }


def _look_up(names: Iterable[str], look_up: Callable[[str], str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = look_up(name)
        except NotFoundError:
            continue
    return found


def _load(repository: Repository, tips: Iterable[str]) -> list[SnapshotInfo]:
    return [repository.lookup_snapshot(tip) for tip in sorted(tips)]
