"""Which part of the history goes: a policy and a history give a plan. Pure.

A line of history cannot have holes, except in generation `2`: what is kept is the newest part
of each line and its first snapshot. The oldest kept one is edited to have the first one as its
parent, and everything between is released, that is, left to collection unless another reference
reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError
from airflow_provider_icechunk.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.format.names import MAIN
from airflow_provider_icechunk.repository.maintenance.walk import Link, Roots
from airflow_provider_icechunk.repository.world import to_micros

RefType = Literal["branch", "tag"]


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What is to be kept."""

    older_than: datetime
    """Snapshots written before this may go."""
    keep_last: int | None = None
    """How many snapshots of each branch that stays are kept however old they are; at least so many,
    because what one branch keeps stays in the history of all that have it."""
    delete_expired_branches: bool = False
    """Whether branches go whose newest snapshot is older than the limit; `main` never does."""
    delete_expired_tags: bool = False

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidInputError(
                f"keep_last is {self.keep_last}; the newest snapshot of a branch always stays, so "
                "it must be 1 or more"
            )


@dataclass(frozen=True, slots=True)
class RefDecision:
    """What becomes of one branch or tag."""

    type: RefType
    name: str
    tip: SnapshotId
    expired: bool
    """Whether the snapshot it names is older than the limit."""
    delete: bool
    kept: int
    """Snapshots in its history afterwards."""
    line: frozenset[SnapshotId] = field(default=frozenset(), repr=False, compare=False)
    """What its history would be if it were not deleted after all; empty for one that stays."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One snapshot that gets another parent."""

    snapshot: SnapshotId
    parent: SnapshotId
    needed_by: tuple[tuple[RefType, str], ...] = ()
    """Branches and tags that stay and whose history it is in."""


@dataclass(frozen=True, slots=True)
class ExpirationPlan:
    """What an expiration would do."""

    refs: tuple[RefDecision, ...]
    edits: tuple[Edit, ...]
    released: frozenset[SnapshotId]
    """Snapshots judged expired, as the official library reports them: among them are heads that
    stay because a branch or a tag names them, except in generation `2`."""
    dropped: frozenset[SnapshotId] = frozenset()
    """Snapshots that leave the list of a ledger that has one."""
    policy: RetentionPolicy | None = None
    """By what it was made, for a ledger that decides anew while it writes."""
    show: Callable[[bytes], str] = field(default=encode_base32, repr=False, compare=False)
    """How the repository writes ids."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.edits or self.dropped or any(ref.delete for ref in self.refs))

    def deletes(self, kind: RefType, name: str, tip: SnapshotId) -> bool:
        """Whether the plan deletes this branch or tag, as long as it names this snapshot."""
        return any(
            ref.delete for ref in self.refs if (ref.type, ref.name, ref.tip) == (kind, name, tip)
        )

    @property
    def leaving(self) -> frozenset[SnapshotId]:
        """Snapshots that no history has afterwards: without heads that are expired and stay."""
        return self.released - {ref.tip for ref in self.refs if not ref.delete}

    def staying(self) -> list[str]:
        """Ids of the snapshots that branches and tags still name afterwards."""
        return [self.show(ref.tip) for ref in self.refs if not ref.delete]

    def new_parents(self) -> dict[str, str]:
        """Ids of the snapshots that get another parent, and of that parent."""
        return {self.show(edit.snapshot): self.show(edit.parent) for edit in self.edits}

    def as_dict(self) -> dict[str, object]:
        """The plan in JSON values."""
        return {
            "released": sorted(self.show(one) for one in self.released),
            "edited": [self.show(edit.snapshot) for edit in self.edits],
            "refs": [
                {
                    "type": ref.type,
                    "name": ref.name,
                    "tip": self.show(ref.tip),
                    "expired": ref.expired,
                    "delete": ref.delete,
                    "kept_snapshots": ref.kept,
                }
                for ref in self.refs
            ],
        }


def plan_expiration(
    policy: RetentionPolicy,
    roots: Roots,
    links: Mapping[SnapshotId, Link],
    *,
    shown: ExpirationPlan | None = None,
    show: Callable[[bytes], str] = encode_base32,
) -> ExpirationPlan:
    """Decide for all references, tags first, both by name: the official order.

    An edit made for one reference is seen by those after it. Edits of snapshots that no remaining
    reference reaches are left out, because rewriting such a file would only make it look young to
    the collector.

    :param shown: an earlier plan that is being carried out: nothing goes that it does not name.
    :param show: how the repository writes ids.
    """
    limit = to_micros(policy.older_than)
    refs = _decide_refs(policy, roots, links, limit, shown)
    window = _kept_anyway(policy, refs, links)
    allowed = None if shown is None else shown.released
    parents: dict[SnapshotId, SnapshotId] = {}
    released: set[SnapshotId] = set()
    for ref in refs:
        line = list(_line(ref.tip, links, parents, show))
        cut = _cut(line, links, limit, window, allowed)
        if cut is not None:
            parents[cut.edit.snapshot] = cut.edit.parent
            released |= cut.released
    lines = {ref: list(_line(ref.tip, links, parents)) for ref in refs}
    needed_by: dict[SnapshotId, list[tuple[RefType, str]]] = {}
    for ref, line in lines.items():
        for name in line if not ref.delete else ():
            needed_by.setdefault(links[name].id, []).append((ref.type, ref.name))
    made = {one: root for one, root in parents.items() if one in needed_by}
    return ExpirationPlan(
        refs=tuple(
            replace(
                ref,
                kept=len(line),
                line=frozenset(_line(ref.tip, links, made) if ref.delete else ()),
            )
            for ref, line in lines.items()
        ),
        edits=tuple(Edit(one, root, tuple(needed_by[one])) for one, root in made.items()),
        released=frozenset(released),
        show=show,
    )


def as_carried_out(
    plan: ExpirationPlan, *, moved: Collection[RefDecision], gone: Collection[RefDecision]
) -> ExpirationPlan:
    """The plan without what was left out because somebody moved or deleted references meanwhile.

    A branch that moved keeps its whole history.
    """
    kept = frozenset[SnapshotId]().union(*(ref.line for ref in moved))
    return replace(
        plan,
        refs=tuple(
            replace(ref, delete=False, kept=len(ref.line)) if ref in moved else ref
            for ref in plan.refs
            if ref not in gone
        ),
        released=plan.released - kept,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    edit: Edit
    released: frozenset[SnapshotId]


def _decide_refs(
    policy: RetentionPolicy,
    roots: Roots,
    links: Mapping[SnapshotId, Link],
    limit: int,
    shown: ExpirationPlan | None,
) -> list[RefDecision]:
    decisions = []
    groups: list[tuple[RefType, Mapping[str, SnapshotId], bool]] = [
        ("tag", roots.tags, policy.delete_expired_tags),
        ("branch", roots.branches, policy.delete_expired_branches),
    ]
    for kind, names, may_go in groups:
        for name, tip in sorted(names.items()):
            expired = links[tip].flushed_at < limit
            delete = expired and may_go and not (kind == "branch" and name == MAIN)
            delete = delete and (shown is None or shown.deletes(kind, name, tip))
            decisions.append(RefDecision(kind, name, tip, expired, delete, 0))
    return decisions


def _kept_anyway(
    policy: RetentionPolicy, refs: list[RefDecision], links: Mapping[SnapshotId, Link]
) -> frozenset[SnapshotId]:
    """The newest snapshots of every branch that stays, whatever their age."""
    if policy.keep_last is None:
        return frozenset()
    return frozenset(
        links[name].id
        for ref in refs
        if ref.type == "branch" and not ref.delete
        for name, _ in zip(_line(ref.tip, links, {}), range(policy.keep_last), strict=False)
    )


def _cut(
    line: list[SnapshotId],
    links: Mapping[SnapshotId, Link],
    limit: int,
    window: frozenset[SnapshotId],
    allowed: frozenset[SnapshotId] | None,
) -> _Cut | None:
    """Where a line is cut, if it is: after its oldest kept snapshot, or after its tip.

    Given what is `allowed` to go, every other snapshot is kept.
    """
    steps = [links[name] for name in line]

    def stays(link: Link) -> bool:
        if link.flushed_at >= limit or link.id in window:
            return True
        # The first snapshot of a line never goes, and does not keep what stands on it.
        return allowed is not None and link.id not in allowed and link is not steps[-1]

    last_kept = max((place for place, link in enumerate(steps) if stays(link)), default=0)
    if last_kept >= len(line) - 2:
        return None
    released = frozenset(link.id for link in steps[last_kept:-1] if not stays(link))
    return _Cut(Edit(steps[last_kept].id, line[-1]), released)


def _line(
    tip: SnapshotId,
    links: Mapping[SnapshotId, Link],
    parents: Mapping[SnapshotId, SnapshotId],
    show: Callable[[bytes], str] = encode_base32,
) -> Iterator[SnapshotId]:
    """A snapshot and its ancestors as their children name them, newest first, after edits."""
    seen: set[SnapshotId] = set()
    current: SnapshotId | None = tip
    while current is not None:
        if current in seen:
            raise FormatError(
                f"the history goes in a circle at {show(current)}: a snapshot names a "
                "descendant as its parent"
            )
        seen.add(current)
        yield current
        link = links[current]
        current = parents.get(link.id, link.parent)
