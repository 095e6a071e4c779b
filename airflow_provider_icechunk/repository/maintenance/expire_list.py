"""Expiration in generation `2`: a change to the list of snapshots, shown as a plan. Pure."""

from __future__ import annotations

from airflow_provider_icechunk.format.generations.v2.repo_info import RepoInfo
from airflow_provider_icechunk.format.generations.v2.repo_updates import (
    Allowed,
    Applied,
    Expire,
    apply,
    lineage,
)
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.names import MAIN
from airflow_provider_icechunk.repository.maintenance.retention import (
    Edit,
    ExpirationPlan,
    RefDecision,
    RefType,
    RetentionPolicy,
)
from airflow_provider_icechunk.repository.world import to_micros


def expiration_of(policy: RetentionPolicy, shown: ExpirationPlan | None = None) -> Expire:
    """The change that a policy asks for, within the plan that was `shown`, if one was."""
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
    """What the change would do to this state."""
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
