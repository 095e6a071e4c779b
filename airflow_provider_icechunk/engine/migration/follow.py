"""Transfer changes to the old references made after the migration had read them.

A writer that opened the repository before the switch does not notice it, and commits to the old
references. While these exist, its work can be found and repeated in the new repository.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Refs
from airflow_provider_icechunk.exceptions import ConflictError, Kind

from .files import FileWriter
from .identities import fold
from .plan import MigrationPlan
from .ref_sets import Differences, differences
from .survey import SnapshotFacts, Survey

Lines = Mapping[str, list[SnapshotId] | None]
"""The commits that moved each branch, oldest first; `None` for a branch that was reset."""


def follow(before: Survey, plan: MigrationPlan, writer: FileWriter, target: Refs) -> int:
    """Apply the changes of the old references since `before` to the new ones.

    The files of the plan are stored. Returns how many references changed. If one was changed in the
    new repository as well, that is a conflict, and both states stay.
    """
    changes = differences(before.references, plan.survey.references)
    lines = {
        name: line_between(was, now, plan.survey.history)
        for name, (was, now) in changes.moved.items()
    }
    left = _advanced(changes, lines, plan, writer, target)
    for one in plan.survey.history:
        if one not in before.history:
            target.announce(writer.snapshot(plan, one))
    left += [
        *_reset(changes, lines, plan, target),
        *_created(changes, plan, target),
        *_tagged(changes, plan, target),
        *_gone(changes, target),
    ]
    if left:
        raise ConflictError(
            f"{', '.join(left)} changed in the old repository (generation `{plan.source}`) after "
            f"the switch to `{plan.target}`, and differently in the new one. The old files are "
            "untouched: transfer the changes manually, then remove the old entry point",
            kind=Kind.CONFLICT,
        )
    parts = (changes.moved, changes.created, changes.deleted, changes.tagged, changes.untagged)
    return sum(map(len, parts))


def line_between(
    older: SnapshotId, newer: SnapshotId, history: Mapping[SnapshotId, SnapshotFacts]
) -> list[SnapshotId] | None:
    """Snapshots after `older` up to `newer`, oldest first; `None` if not an ancestor. Pure."""
    line: list[SnapshotId] = []
    current: SnapshotId | None = newer
    while current is not None:
        if current == older:
            return line[::-1]
        line.append(current)
        current = history[current].parent
    return None


def _advanced(
    changes: Differences, lines: Lines, plan: MigrationPlan, writer: FileWriter, target: Refs
) -> list[str]:
    """Repeat the commits to branches that only moved forward."""
    left = []
    for name, line in lines.items():
        was, now = changes.moved[name]
        expected = SnapshotId(fold(was))
        for one in line or ():
            snapshot = writer.snapshot(plan, one)
            outcome = target.commit(name, expected, snapshot)
            if isinstance(outcome, Behind):
                left += [] if outcome.actual == plan.ids[now] else [f"branch {name!r}"]
                break
            expected = snapshot.id
    return left


def _reset(changes: Differences, lines: Lines, plan: MigrationPlan, target: Refs) -> list[str]:
    left = []
    for name in (name for name, line in lines.items() if line is None):
        was, now = changes.moved[name]
        outcome = target.reset_branch(name, plan.ids[now], SnapshotId(fold(was)))
        if isinstance(outcome, Behind) and outcome.actual != plan.ids[now]:
            left.append(f"branch {name!r}")
    return left


def _created(changes: Differences, plan: MigrationPlan, target: Refs) -> list[str]:
    return [
        f"branch {name!r}"
        for name, to in changes.created.items()
        if target.create_branch(name, plan.ids[to]) is not Creation.CREATED
        and target.branch(name) != plan.ids[to]
    ]


def _tagged(changes: Differences, plan: MigrationPlan, target: Refs) -> list[str]:
    return [
        f"tag {name!r}"
        for name, to in changes.tagged.items()
        if target.create_tag(name, plan.ids[to]) is not Creation.CREATED
        and target.tag(name) != plan.ids[to]
    ]


def _gone(changes: Differences, target: Refs) -> list[str]:
    left = []
    for name, was in changes.deleted.items():
        actual = target.branch(name)
        if name == MAIN or actual not in (None, SnapshotId(fold(was))):
            left.append(f"branch {name!r}")
        elif actual is not None:
            target.delete_branch(name)
    for name in sorted(changes.untagged):
        target.delete_tag(name)
    return left
