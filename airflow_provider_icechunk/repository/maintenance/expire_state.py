"""Expiration in generation `draft`: snapshots are dropped from the state file. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.draft.state import Entry, State
from airflow_provider_icechunk.format.generations.identities import show_id
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.maintenance.retention import (
    ExpirationPlan,
    RetentionPolicy,
    plan_expiration,
)
from airflow_provider_icechunk.repository.maintenance.walk import Link, Roots


def expired_state(
    state: State, policy: RetentionPolicy, shown: ExpirationPlan | None = None
) -> tuple[State | None, ExpirationPlan]:
    """The state without what is expired, `None` if that changes nothing, and what was decided.

    Snapshots that are old and that no reference reaches any more are dropped as well. The state
    knows milliseconds: what was written in the one of the limit stays. Given the plan that was
    `shown`, nothing goes that it does not name.
    """
    limit = policy.older_than.replace(microsecond=policy.older_than.microsecond // 1000 * 1000)
    links = {
        one: Link(one, _listed(entry.parent, state), entry.timestamp_ms * 1000)
        for one, entry in state.snapshots.items()
    }
    roots = Roots(state.named("branch"), state.named("tag"))
    plan = plan_expiration(replace(policy, older_than=limit), roots, links, shown=shown, show=_show)
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


def _applied(state: State, plan: ExpirationPlan) -> State:
    """The state with other parents and without the references that expired."""
    parents = {edit.snapshot: edit.parent for edit in plan.edits}
    for ref in plan.refs:
        if ref.delete:
            state = state.forgetting(ref.name)
    snapshots = {
        one: replace(entry, parent=parents.get(one, entry.parent))
        for one, entry in state.snapshots.items()
    }
    return replace(state, snapshots=snapshots)


def _reached(state: State) -> set[SnapshotId]:
    found: set[SnapshotId] = set()
    for tip in (*state.named("branch").values(), *state.named("tag").values()):
        current: SnapshotId | None = tip
        while current is not None and current not in found and current in state.snapshots:
            found.add(current)
            current = state.snapshots[current].parent
    return found


def _standing(entry: Entry, left: dict[SnapshotId, Entry], before: State) -> Entry:
    """An entry whose parent was dropped stands on the first snapshot of its line."""
    if entry.parent is None or entry.parent in left:
        return entry
    root, seen = entry.parent, {entry.id}
    while root in before.snapshots and root not in seen:
        seen.add(root)
        root = before.snapshots[root].parent or root
    return replace(entry, parent=root if root in left else None)


def _show(identity: bytes) -> str:
    return show_id(Generation.DRAFT, identity)


def _listed(identity: SnapshotId | None, state: State) -> SnapshotId | None:
    return identity if identity in state.snapshots else None
