"""Expire old snapshots: edit the oldest kept one of each line, then delete expired references.

In generations `1`, `alpha` and `alpha1` the parent is in the snapshot file, so expiring rewrites
that file in place, under the same id and with the same content except for the parent. That write
needs no condition: concurrent readers see either the longer or the shorter history, a commit on top
of the snapshot refers to its unchanged id, and two expirations write the same parent. A process
that dies meanwhile leaves some lines shortened and others not.

In generations `2` and `draft` everything is one conditional write of the list of snapshots. If
somebody else wrote meanwhile, the decision is made again, within the plan that was shown.

In the others, deleting an expired branch has an unavoidable race: a commit that lands between the
last read of the branch and its deletion is deleted with it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from airflow_provider_icechunk.engine.concurrency import run_all, together
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.generation import History
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.legacy.draft.state import StateFile
from airflow_provider_icechunk.engine.format.v2.repo import RepoInfo
from airflow_provider_icechunk.engine.opening import check_newest
from airflow_provider_icechunk.engine.refs import v2_refs
from airflow_provider_icechunk.engine.refs.legacy.draft import draft_refs
from airflow_provider_icechunk.exceptions import IcechunkError, MaintenanceError

from .listing import list_folder, whole
from .reachable import Loader, Roots, Walk, read_roots
from .retention import (
    Edit,
    ExpirationPlan,
    RefDecision,
    RetentionPolicy,
    as_carried_out,
    expiration_of,
    expired_state,
    plan_expiration,
    plan_for_list,
)

_LISTED = "a list of snapshots"
_AT_ONCE = 16


def expire(core: Core, policy: RetentionPolicy, *, dry_run: bool) -> ExpirationPlan:
    """Expire by a policy; returns what was done, or would be done in a dry run."""
    plan = make_expiration_plan(core, policy)
    return plan if dry_run else carry_out_expiration(core, plan)


def make_expiration_plan(core: Core, policy: RetentionPolicy) -> ExpirationPlan:
    """Read the history of all references and decide. Writes nothing."""
    core.refs.check_writable()
    return replace(_plan(core, policy), policy=policy, generation=core.generation)


def _plan(core: Core, policy: RetentionPolicy) -> ExpirationPlan:
    if core.generation.history is History.FILES:
        return _plan_for_files(core, policy)
    check_newest(core.storage, core.generation)
    match core.generation.history:
        case History.REPO:
            return plan_for_list(v2_refs(core.refs, _LISTED).info(), policy)
        case History.STATE:
            state = draft_refs(core.refs).state()
            return expired_state(state, policy, generation=core.generation)[1]


def _plan_for_files(core: Core, policy: RetentionPolicy) -> ExpirationPlan:
    if not core.generation.tags_can_be_deleted:
        policy = replace(policy, delete_expired_tags=False)
    walk = Walk(Loader(core.storage, core.refs, glancing=True))
    layout = core.refs.layout

    def read_ahead() -> None:
        stored = list_folder(core.storage, layout, layout.snapshots)
        walk.read_ahead([SnapshotId(identity) for identity in whole(stored.ids)])

    _, _, roots = together(
        partial(check_newest, core.storage, core.generation),
        read_ahead,
        partial(read_roots, core.refs),
    )
    walk.extend(roots.tips())
    try:
        return plan_expiration(policy, roots, walk.links, generation=core.generation)
    except IcechunkError as error:
        raise MaintenanceError(f"cannot determine what has expired: {error.message}") from error


def carry_out_expiration(core: Core, plan: ExpirationPlan) -> ExpirationPlan:
    """Edit and delete only as planned; returns the part of the plan that was carried out.

    Less is done if refs have been moved or deleted. An edit whose references are all gone is
    skipped: it would restore a snapshot that the collector may have deleted. A reference that has
    moved is not deleted. Generation `2` logs the operation even if there is nothing to do.
    """
    if plan.is_empty and not core.generation.has_features:
        return plan
    return replace(_carry_out(core, plan), policy=plan.policy, generation=plan.generation)


def _carry_out(core: Core, plan: ExpirationPlan) -> ExpirationPlan:
    if core.generation.history is History.FILES:
        return _expire_files(core, plan)
    check_newest(core.storage, core.generation)
    match core.generation.history:
        case History.REPO:
            return _expire_list(core, plan)
        case History.STATE:
            return _expire_state(core, plan)


def _expire_list(core: Core, plan: ExpirationPlan) -> ExpirationPlan:
    assert plan.policy is not None
    states: list[RepoInfo] = []

    def remember(info: RepoInfo) -> bool:
        states.append(info)
        return True

    v2_refs(core.refs, _LISTED).update(expiration_of(plan.policy, plan), accept=remember)
    return plan_for_list(states[-1], plan.policy, plan)


def _expire_state(core: Core, plan: ExpirationPlan) -> ExpirationPlan:
    policy, done = plan.policy, plan
    assert policy is not None

    def apply(state: StateFile) -> StateFile | None:
        nonlocal done
        after, done = expired_state(state, policy, plan, generation=core.generation)
        return after

    draft_refs(core.refs).change(apply)
    for edit in done.edits:
        core.objects.forget_snapshot(edit.snapshot)
    return done


def _expire_files(core: Core, plan: ExpirationPlan) -> ExpirationPlan:
    _, roots = together(
        partial(check_newest, core.storage, core.generation), partial(read_roots, core.refs)
    )
    needed = [edit for edit in plan.edits if _still_needed(edit, roots)]
    run_all(partial(_apply, core), needed, at_once=_AT_ONCE)
    moved: list[RefDecision] = []
    gone: list[RefDecision] = []
    for ref in plan.refs:
        if ref.delete and (now := _delete(core, ref)) != ref.tip:
            (gone if now is None else moved).append(ref)
    return as_carried_out(plan, moved=moved, gone=gone)


def _still_needed(edit: Edit, roots: Roots) -> bool:
    names = {"branch": roots.branches, "tag": roots.tags}
    return any(name in names[kind] for kind, name in edit.needed_by)


def _apply(core: Core, edit: Edit) -> None:
    snapshot = Loader(core.storage, core.refs).snapshot(edit.snapshot)
    if snapshot.parent_id in (None, edit.parent):
        return
    core.objects.rewrite_snapshot(replace(snapshot, parent_id=edit.parent))


def _delete(core: Core, ref: RefDecision) -> SnapshotId | None:
    """Delete a reference if it has not moved; returns its snapshot, `None` if it is gone."""
    refs = core.refs
    is_tag = ref.type == "tag"
    now = refs.tag(ref.name) if is_tag else refs.branch(ref.name)
    if now == ref.tip:
        (refs.delete_tag if is_tag else refs.delete_branch)(ref.name)
    return now
