"""Which part of the history expires: a policy and a history give a plan. Pure.

Except in generation `2`, a line of history cannot have holes: the newest part of each line and its
first snapshot are kept. The oldest kept one gets the first one as its parent, and everything
between is released, that is, left to collection unless another reference reaches it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Literal

from airflow_provider_icechunk.engine.format.generation import DEFAULT_GENERATION, Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId, format_id
from airflow_provider_icechunk.engine.format.legacy.draft.state import StateEntry, StateFile
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.format.v2.repo import RepoInfo
from airflow_provider_icechunk.engine.format.v2.updates import (
    Allowed,
    Applied,
    Expire,
    apply,
    lineage,
)
from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
from airflow_provider_icechunk.engine.world import to_micros
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .reachable import Link, Roots

RefType = Literal["branch", "tag"]


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What to keep."""

    older_than: datetime
    """Snapshots written before this may expire."""
    keep_last: int | None = None
    """Keep at least this many snapshots of each remaining branch, however old. More may remain,
    because a snapshot kept for one branch stays in the history of all branches.
    """
    delete_expired_branches: bool = False
    """Whether to delete branches whose newest snapshot is older than the limit; never `main`."""
    delete_expired_tags: bool = False

    def __post_init__(self) -> None:
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidInputError(
                f"keep_last is {self.keep_last}; it must be at least 1, because the newest "
                "snapshot of a branch always stays"
            )


@dataclass(frozen=True, slots=True)
class RefDecision:
    """The decision about one branch or tag."""

    type: RefType
    name: str
    tip: SnapshotId
    expired: bool
    """Whether its snapshot is older than the limit."""
    delete: bool
    kept: int
    """Snapshots in its history afterwards."""
    line: frozenset[SnapshotId] = field(default=frozenset(), repr=False, compare=False)
    """Its history if it is not deleted after all; empty for one that stays."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A snapshot that gets another parent."""

    snapshot: SnapshotId
    parent: SnapshotId
    needed_by: tuple[tuple[RefType, str], ...] = ()
    """Remaining branches and tags with this snapshot in their history."""


@dataclass(frozen=True, slots=True)
class ExpirationPlan:
    """The effects of an expiration."""

    refs: tuple[RefDecision, ...]
    edits: tuple[Edit, ...]
    released: frozenset[SnapshotId]
    """Expired snapshots as the official library reports them: they include heads that
    stay because of a branch or tag, except in generation `2`."""
    dropped: frozenset[SnapshotId] = frozenset()
    """Snapshots that are unlisted, if the refs have a list."""
    policy: RetentionPolicy | None = None
    """Its policy, for refs that decide again while they write."""
    generation: Generation = field(default=DEFAULT_GENERATION, repr=False, compare=False)
    """Generation of the repository, for the text of ids."""

    def format_id(self, identity: bytes) -> str:
        """An id of this repository as text."""
        return format_id(self.generation, identity)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.edits or self.dropped or any(ref.delete for ref in self.refs))

    def deletes(self, kind: RefType, name: str, tip: SnapshotId) -> bool:
        """Whether the plan deletes this branch or tag if it is at this snapshot."""
        return any(
            ref.delete for ref in self.refs if (ref.type, ref.name, ref.tip) == (kind, name, tip)
        )

    @property
    def leaving(self) -> frozenset[SnapshotId]:
        """Snapshots that are in no history afterwards: without expired heads that stay."""
        return self.released - {ref.tip for ref in self.refs if not ref.delete}

    def staying(self) -> list[str]:
        """Ids of the snapshots of remaining branches and tags."""
        return [self.format_id(ref.tip) for ref in self.refs if not ref.delete]

    def new_parents(self) -> dict[str, str]:
        """Ids of edited snapshots and of their new parents."""
        return {self.format_id(edit.snapshot): self.format_id(edit.parent) for edit in self.edits}

    def as_dict(self) -> dict[str, object]:
        """The plan in JSON values."""
        return {
            "released": sorted(self.format_id(one) for one in self.released),
            "edited": [self.format_id(edit.snapshot) for edit in self.edits],
            "refs": [
                {
                    "type": ref.type,
                    "name": ref.name,
                    "tip": self.format_id(ref.tip),
                    "expired": ref.expired,
                    "delete": ref.delete,
                    "kept_snapshots": ref.kept,
                }
                for ref in self.refs
            ],
        }


@dataclass(frozen=True, slots=True)
class Freed:
    """What an expiration removes from the history, to be collected later."""

    snapshots: int
    manifests: int
    """Manifest files that no remaining snapshot uses."""
    manifest_bytes: int
    references: int


def plan_expiration(
    policy: RetentionPolicy,
    roots: Roots,
    links: Mapping[SnapshotId, Link],
    *,
    shown: ExpirationPlan | None = None,
    generation: Generation = DEFAULT_GENERATION,
) -> ExpirationPlan:
    """Decide for all references in the official order: tags first, both by name.

    An edit for one reference is visible to those after it. Edits of snapshots that no remaining
    reference reaches are omitted, because rewriting such a file would only make it look young to
    the collector.

    :param shown: an earlier plan that is being carried out: nothing else expires.
    :param generation: of the repository.
    """
    limit = to_micros(policy.older_than)
    refs = _decide_refs(policy, roots, links, limit, shown)
    window = _kept_anyway(policy, refs, links, generation)
    allowed = None if shown is None else shown.released
    parents: dict[SnapshotId, SnapshotId] = {}
    released: set[SnapshotId] = set()
    for ref in refs:
        line = list(_line(ref.tip, links, parents, generation))
        cut = _cut(line, links, limit, window, allowed)
        if cut is not None:
            parents[cut.edit.snapshot] = cut.edit.parent
            released |= cut.released
    lines = {ref: list(_line(ref.tip, links, parents, generation)) for ref in refs}
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
                line=frozenset(_line(ref.tip, links, made, generation) if ref.delete else ()),
            )
            for ref, line in lines.items()
        ),
        edits=tuple(Edit(one, root, tuple(needed_by[one])) for one, root in made.items()),
        released=frozenset(released),
        generation=generation,
    )


def as_carried_out(
    plan: ExpirationPlan, *, moved: Collection[RefDecision], gone: Collection[RefDecision]
) -> ExpirationPlan:
    """The plan without what was skipped because refs were moved or deleted.

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


def freed_by(plan: ExpirationPlan, infos: Iterable[SnapshotInfo]) -> Freed:
    """What a collection can free after an expiration. Pure."""
    return not_reached(plan.staying(), infos, plan.new_parents())


def not_reached(
    tips: Iterable[str], infos: Iterable[SnapshotInfo], parents: Mapping[str, str]
) -> Freed:
    """What `tips` no longer reach once snapshots have the given parents. Pure."""
    known = {info.id: info for info in infos}
    kept: set[str] = set()
    for tip in tips:
        current: str | None = tip
        while current is not None and current in known and current not in kept:
            kept.add(current)
            current = parents.get(current, known[current].parent_id)
    used = {one.id for identity in kept for one in known[identity].manifests}
    loose = {
        one.id: one
        for identity, info in known.items()
        if identity not in kept
        for one in info.manifests
        if one.id not in used
    }
    return Freed(
        len(known) - len(kept),
        len(loose),
        sum(one.size_bytes for one in loose.values()),
        sum(one.num_chunk_refs for one in loose.values()),
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
    policy: RetentionPolicy,
    refs: list[RefDecision],
    links: Mapping[SnapshotId, Link],
    generation: Generation,
) -> frozenset[SnapshotId]:
    """The newest snapshots of every remaining branch, regardless of age."""
    if policy.keep_last is None:
        return frozenset()
    return frozenset(
        links[name].id
        for ref in refs
        if ref.type == "branch" and not ref.delete
        for name in islice(_line(ref.tip, links, {}, generation), policy.keep_last)
    )


def _cut(
    line: list[SnapshotId],
    links: Mapping[SnapshotId, Link],
    limit: int,
    window: frozenset[SnapshotId],
    allowed: frozenset[SnapshotId] | None,
) -> _Cut | None:
    """Cut a line after its oldest kept snapshot, or after its tip; `None` if it is not cut.

    If `allowed` is given, all other snapshots are kept.
    """
    steps = [links[name] for name in line]

    def stays(link: Link) -> bool:
        if link.flushed_at >= limit or link.id in window:
            return True
        # The first snapshot of a line never expires, and does not keep its descendants.
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
    generation: Generation,
) -> Iterator[SnapshotId]:
    """The ids of a snapshot and its ancestors, newest first, after edits."""
    seen: set[SnapshotId] = set()
    current: SnapshotId | None = tip
    while current is not None:
        if current in seen:
            raise FormatError(
                f"the history has a cycle at {format_id(generation, current)}: a snapshot "
                "has a descendant as its parent"
            )
        seen.add(current)
        yield current
        link = links[current]
        current = parents.get(link.id, link.parent)


def expiration_of(policy: RetentionPolicy, shown: ExpirationPlan | None = None) -> Expire:
    """The change for a policy, limited to the plan that was `shown`, if any."""
    return Expire(
        to_micros(policy.older_than),
        delete_tags=policy.delete_expired_tags,
        delete_branches=policy.delete_expired_branches,
        keep_last=policy.keep_last or 1,
        allowed=None if shown is None else _allowed(shown),
    )


def plan_for_list(
    info: RepoInfo, policy: RetentionPolicy, shown: ExpirationPlan | None = None
) -> ExpirationPlan:
    """The effects of the change on this state."""
    outcome = apply(expiration_of(policy, shown), info)
    after = outcome.info if isinstance(outcome, Applied) else info
    dropped = frozenset(info.snapshots.keys() - after.snapshots.keys())
    return ExpirationPlan(
        refs=(*_decisions("tag", info, after, policy), *_decisions("branch", info, after, policy)),
        edits=tuple(
            Edit(identity, record.parent_id)
            for identity, record in after.snapshots.items()
            if record.parent_id is not None
            and record.parent_id != info.snapshots[identity].parent_id
        ),
        released=dropped,
        dropped=dropped,
        policy=policy,
    )


def _allowed(shown: ExpirationPlan) -> Allowed:
    def tips(kind: RefType) -> dict[str, SnapshotId]:
        return {ref.name: ref.tip for ref in shown.refs if ref.delete and ref.type == kind}

    return Allowed(shown.dropped, tips("tag"), tips("branch"))


def _decisions(
    kind: RefType, info: RepoInfo, after: RepoInfo, policy: RetentionPolicy
) -> list[RefDecision]:
    before, left = (info.tags, after.tags) if kind == "tag" else (info.branches, after.branches)
    limit = to_micros(policy.older_than)
    return [
        RefDecision(
            kind,
            name,
            tip,
            expired=not (kind == "branch" and name == MAIN)
            and info.snapshots[tip].flushed_at < limit,
            delete=name not in left,
            kept=len(lineage(after, tip)) if tip in after.snapshots else 0,
        )
        for name, tip in sorted(before.items())
    ]


def expired_state(
    state: StateFile,
    policy: RetentionPolicy,
    shown: ExpirationPlan | None = None,
    *,
    generation: Generation,
) -> tuple[StateFile | None, ExpirationPlan]:
    """The state without expired snapshots, `None` if nothing changes, and the plan.

    Old snapshots that no reference reaches are dropped as well. The state has milliseconds:
    snapshots written in the same one as the limit stay. If a plan was `shown`, nothing else
    expires.
    """
    limit = policy.older_than.replace(microsecond=policy.older_than.microsecond // 1000 * 1000)
    links = {
        one: Link(one, _listed(entry.parent, state), entry.timestamp_ms * 1000)
        for one, entry in state.snapshots.items()
    }
    roots = Roots(state.named("branch"), state.named("tag"))
    plan = plan_expiration(
        replace(policy, older_than=limit), roots, links, shown=shown, generation=generation
    )
    after = _applied(state, plan)
    kept = _reached(after)
    top_ms = int(limit.timestamp() * 1000)
    left = {
        one: entry
        for one, entry in after.snapshots.items()
        if one in kept
        or entry.timestamp_ms >= top_ms
        or (shown is not None and one not in shown.dropped)
    }
    left = {one: _standing(entry, left, state) for one, entry in left.items()}
    gone = frozenset(state.snapshots.keys() - left.keys())
    plan = replace(plan, released=plan.released | gone, dropped=gone, policy=policy)
    after = replace(after, snapshots=left)
    return (None if after == state else after), plan


def _applied(state: StateFile, plan: ExpirationPlan) -> StateFile:
    """The state with the new parents and without expired references."""
    parents = {edit.snapshot: edit.parent for edit in plan.edits}
    for ref in plan.refs:
        if ref.delete:
            state = state.forgetting(ref.name)
    snapshots = {
        one: replace(entry, parent=parents.get(one, entry.parent))
        for one, entry in state.snapshots.items()
    }
    return replace(state, snapshots=snapshots)


def _reached(state: StateFile) -> set[SnapshotId]:
    found: set[SnapshotId] = set()
    for tip in (*state.named("branch").values(), *state.named("tag").values()):
        current: SnapshotId | None = tip
        while current is not None and current not in found and current in state.snapshots:
            found.add(current)
            current = state.snapshots[current].parent
    return found


def _standing(
    entry: StateEntry, left: dict[SnapshotId, StateEntry], before: StateFile
) -> StateEntry:
    """The entry; if its parent was dropped, with the first snapshot of its line as parent."""
    if entry.parent is None or entry.parent in left:
        return entry
    root, seen = entry.parent, {entry.id}
    while root in before.snapshots and root not in seen:
        seen.add(root)
        root = before.snapshots[root].parent or root
    return replace(entry, parent=root if root in left else None)


def _listed(identity: SnapshotId | None, state: StateFile) -> SnapshotId | None:
    return identity if identity in state.snapshots else None
