"""Versions as people type them.

A version is a branch, a tag or a snapshot id, of which the beginning is enough. `branch:x`, `tag:x`
and `snapshot:x` resolve ambiguous names; `main~2` is the second ancestor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.repository import Repository

_BACK = re.compile(r"(?P<name>.+?)~(?P<steps>[0-9]{0,9})")
_BEGINNING = re.compile(r"[0-9A-Za-z]{4,19}")
"""Shorter ones would be a guess, and a whole id has 20 characters."""
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
    raise NotFoundError(f"{text!r} goes back past the first snapshot", kind=Kind.SNAPSHOT_NOT_FOUND)


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
            f"{text!r} begins the ids of {len(found)} snapshots: {', '.join(found[:5])}; give more "
            "of it",
            kind=Kind.INVALID_NAME,
        )
    return found[0] if found else None
