"""Expire old snapshots: edit the oldest one kept in each line, then delete expired references.

In generations `1`, `alpha` and `alpha1` the parent is in the snapshot file, so expiring rewrites
that file in place, under the same id, with the same content but for the parent. That write carries
no condition, and needs none: whoever races with it either reads the longer history or the shorter
one, a commit on top of the snapshot names it by the id it keeps, and two expirations write the same
parent. A process that dies in between leaves some lines shortened and others not.

In generations `2` and `draft` all of it is one conditional write of the list of snapshots, decided
anew, within the plan that was shown, if somebody else wrote meanwhile.

In the others, deleting an expired branch has a gap that cannot be closed: a commit that lands
between the last look at the branch and its deletion is deleted with it.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_icechunk.exceptions import IcechunkError, MaintenanceError
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.draft.state import State
from airflow_provider_icechunk.format.generations.v2.repo_info import RepoInfo
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.detection import check_newest
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.ledgers.draft import DraftLedger
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger
from airflow_provider_icechunk.repository.maintenance.expire_list import (
    expiration_of,
    plan_for_list,
)
from airflow_provider_icechunk.repository.maintenance.expire_state import expired_state
from airflow_provider_icechunk.repository.maintenance.idsets import whole
from airflow_provider_icechunk.repository.maintenance.listing import list_folder
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.repository.maintenance.retention import (
    Edit,
    ExpirationPlan,
    RefDecision,
    RetentionPolicy,
    as_carried_out,
    plan_expiration,
)
from airflow_provider_icechunk.repository.maintenance.walk import Roots, Walk, read_roots


def make_expiration_plan(engine: Engine, policy: RetentionPolicy) -> ExpirationPlan:
    """Read the history of all references and decide. Writes nothing."""
    engine.ledger.check_writable()
    return replace(_plan(engine, policy), policy=policy, show=engine.show)


def _plan(engine: Engine, policy: RetentionPolicy) -> ExpirationPlan:
    check_newest(engine.storage, engine.generation)
    if isinstance(engine.ledger, V2Ledger):
        return plan_for_list(engine.ledger.info(), policy)
    if isinstance(engine.ledger, DraftLedger):
        return expired_state(engine.ledger.state(), policy)[1]
    if engine.generation is Generation.ALPHA1:
        # Its tags are for ever.
        policy = replace(policy, delete_expired_tags=False)
    walk = Walk(Loader(engine.storage, engine.ledger))
    layout = engine.ledger.layout
    stored = list_folder(engine.storage, layout, layout.snapshots)
    walk.read_ahead([SnapshotId(identity) for identity in whole(stored.ids)])
    roots = read_roots(engine.ledger)
    walk.extend(roots.tips())
    try:
        return plan_expiration(policy, roots, walk.links, show=engine.show)
    except IcechunkError as error:
        raise MaintenanceError(f"the history cannot be judged: {error.message}") from error


def carry_out_expiration(engine: Engine, plan: ExpirationPlan) -> ExpirationPlan:
    """Edit and delete as planned, and nothing else; returns what of the plan was done.

    Less is done where references were moved or removed meanwhile. An edit for references that are
    all gone is left out: it would bring back a snapshot that the collector may have deleted. A
    reference that moved since is not deleted. Generation `2` records in its operations log also
    that nothing was to be done.
    """
    if plan.is_empty and not isinstance(engine.ledger, V2Ledger):
        return plan
    check_newest(engine.storage, engine.generation)
    if isinstance(engine.ledger, V2Ledger):
        done = _expire_list(engine.ledger, plan)
    elif isinstance(engine.ledger, DraftLedger):
        done = _expire_state(engine.ledger, plan)
        for edit in done.edits:
            engine.assets.forget_snapshot(edit.snapshot)
    else:
        done = _expire_files(engine, plan)
    return replace(done, policy=plan.policy, show=plan.show)


def _expire_list(ledger: V2Ledger, plan: ExpirationPlan) -> ExpirationPlan:
    assert plan.policy is not None
    states: list[RepoInfo] = []

    def remember(info: RepoInfo) -> bool:
        states.append(info)
        return True

    ledger.update(expiration_of(plan.policy, plan), accept=remember)
    return plan_for_list(states[-1], plan.policy, plan)


def _expire_state(ledger: DraftLedger, plan: ExpirationPlan) -> ExpirationPlan:
    policy, done = plan.policy, plan
    assert policy is not None

    def apply(state: State) -> State | None:
        nonlocal done
        after, done = expired_state(state, policy, plan)
        return after

    ledger.change(apply)
    return done


def _expire_files(engine: Engine, plan: ExpirationPlan) -> ExpirationPlan:
    for edit in plan.edits:
        if _still_needed(edit, read_roots(engine.ledger)):
            _apply(engine, edit)
    moved: list[RefDecision] = []
    gone: list[RefDecision] = []
    for ref in plan.refs:
        if ref.delete and (now := _delete(engine, ref)) != ref.tip:
            (gone if now is None else moved).append(ref)
    return as_carried_out(plan, moved=moved, gone=gone)


def _still_needed(edit: Edit, roots: Roots) -> bool:
    names = {"branch": roots.branches, "tag": roots.tags}
    return any(name in names[kind] for kind, name in edit.needed_by)


def _apply(engine: Engine, edit: Edit) -> None:
    snapshot = Loader(engine.storage, engine.ledger).snapshot(edit.snapshot)
    if snapshot.parent_id in (None, edit.parent):
        return
    engine.assets.rewrite_snapshot(replace(snapshot, parent_id=edit.parent))


def _delete(engine: Engine, ref: RefDecision) -> SnapshotId | None:
    """Delete a reference if it is where it was; returns where it is, `None` if it is gone."""
    ledger = engine.ledger
    is_tag = ref.type == "tag"
    now = ledger.tag(ref.name) if is_tag else ledger.branch(ref.name)
    if now == ref.tip:
        (ledger.delete_tag if is_tag else ledger.delete_branch)(ref.name)
    return now
