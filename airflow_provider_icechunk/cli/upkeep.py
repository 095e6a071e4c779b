"""`expire`, `gc` and `verify`. What deletes plans first, shows the plan, asks, and then does that.

The plan that was confirmed is the one that is carried out. It can only become smaller in between:
the engine leaves out what is in use by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from airflow_provider_icechunk.cli import render
from airflow_provider_icechunk.cli.history import newest, read_heads
from airflow_provider_icechunk.cli.screen import Report, UsageError
from airflow_provider_icechunk.cli.task import Task
from airflow_provider_icechunk.cli.text import number, plain, several, size
from airflow_provider_icechunk.cli.times import show_moment
from airflow_provider_icechunk.hooks.cutoffs import safe_cutoff

if TYPE_CHECKING:
    from rich.console import RenderableType

    from airflow_provider_icechunk.repository.history import SnapshotInfo
    from airflow_provider_icechunk.repository.maintenance.collect_plan import CollectionPlan
    from airflow_provider_icechunk.repository.maintenance.findings import VerifyReport
    from airflow_provider_icechunk.repository.maintenance.retention import ExpirationPlan

_SEVERITY = {"error": "bold red", "warning": "yellow", "info": "dim"}


@dataclass(frozen=True, slots=True)
class Freed:
    """What leaves the history and can be collected later."""

    snapshots: int
    manifests: int
    """Manifest files that no snapshot that stays uses."""
    manifest_bytes: int
    references: int


def expire(task: Task) -> Report:
    """Old snapshots leave the history; their objects wait for `gc`."""
    from airflow_provider_icechunk.repository.maintenance.retention import RetentionPolicy

    args = task.args
    older_than = _begin(task)
    repository = task.open()
    policy = RetentionPolicy(
        older_than,
        args.keep_last,
        args.delete_expired_branches,
        args.delete_expired_tags,
    )
    with task.progress("reading the history"):
        plan = repository.plan_expiration(policy)
        infos, _ = newest(repository, read_heads(repository).tips(), None)
    body = draw_expiration(plan, freed_by(plan, infos), older_than)
    if not args.dry_run:
        if not (plan.is_empty or args.yes):
            task.screen.confirm(body, "Expire these snapshots?")
        plan = repository.carry_out_expiration(plan)
        body = draw_expiration(plan, freed_by(plan, infos), older_than)
    return Report(
        {
            "dry_run": args.dry_run,
            "older_than": older_than.isoformat(),
            **plan.as_dict(),
            "freed": asdict(freed_by(plan, infos)),
        },
        [*body, _closing(plan.is_empty, args.dry_run, "Expired; `gc` frees the storage.")],
    )


def gc(task: Task) -> Report:
    """Objects that nothing names are deleted, once they are old enough."""
    from airflow_provider_icechunk.repository.maintenance.collect_plan import as_if_done

    args = task.args
    older_than = _begin(task)
    collection = task.open().collection()
    with task.progress("looking for what is in use"):
        plan = collection.make_plan(older_than, minimum_age=args.minimum_age)
    body = draw_collection(plan)
    summary = as_if_done(plan)
    if not args.dry_run:
        if len(plan) and not args.yes:
            task.screen.confirm(body, f"Delete {several(len(plan), 'object')} for ever?")
        with task.progress("deleting", deletes=len(plan)):
            summary = collection.carry_out(plan)
    return Report(
        {"older_than": plan.cutoff.isoformat(), **summary.as_dict(), "plan": plan.as_dict()},
        [*body, _closing(not len(plan), args.dry_run, f"Freed {size(summary.bytes_deleted)}.")],
        summary.problem,
    )


def verify(task: Task) -> Report:
    """Whether everything that branches and tags need is there."""
    repository = task.open()
    with task.progress("checking"):
        report = repository.verify()
    problem = None
    if not report.ok:
        problem = f"{several(len(report.errors), 'error')} in {repository.storage.location}"
    return Report(report.as_dict(), draw_findings(report), problem)


def freed_by(plan: ExpirationPlan, infos: Iterable[SnapshotInfo]) -> Freed:
    """What an expiration leaves to the collection. Pure."""
    return not_reached(plan.staying(), infos, plan.new_parents())


def not_reached(
    tips: Iterable[str], infos: Iterable[SnapshotInfo], parents: Mapping[str, str]
) -> Freed:
    """What the remaining `tips` do not reach once snapshots got the given parents. Pure."""
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


def draw_expiration(
    plan: ExpirationPlan, freed: Freed, older_than: datetime
) -> list[RenderableType]:
    """What an expiration does, reference by reference. Pure."""
    rows = [
        (
            f"{ref.type} {plain(ref.name)}",
            number(ref.kept),
            "deleted" if ref.delete else "expired, stays" if ref.expired else "stays",
        )
        for ref in plan.refs
    ]
    return [
        render.line(f"Snapshots written before {show_moment(older_than)}:"),
        render.table(("reference", "#snapshots kept", "what becomes of it"), rows),
        render.line(
            f"{several(freed.snapshots, 'snapshot')} leave the history; "
            f"{several(freed.manifests, 'manifest')} ({size(freed.manifest_bytes)}, "
            f"{several(freed.references, 'reference')}) become free"
        ),
    ]


def draw_collection(plan: CollectionPlan) -> list[RenderableType]:
    """What a collection deletes, kind by kind. Pure."""
    layers = {
        name: objects for name, objects in plan.as_dict().items() if isinstance(objects, dict)
    }
    rows = [
        (name, number(objects["count"]), size(objects["bytes"])) for name, objects in layers.items()
    ]
    rows.append(("together", number(len(plan)), size(plan.total_bytes)))
    lines = [render.line(f"Unneeded objects stored before {show_moment(plan.cutoff)}:")]
    if plan.leases:
        lines.append(
            render.line(
                f"Younger ones stay: {several(plan.leases, 'session or job')} that began before "
                "the cut-off asked for did not end yet, or not a day ago."
            )
        )
    return [*lines, render.table(("kind", "#objects", "#bytes"), rows)]


def draw_findings(report: VerifyReport) -> list[RenderableType]:
    """What was checked and what was found. Pure."""
    checked = ", ".join(
        f"{number(count)} {name.replace('_', ' ')}" for name, count in report.checked.items()
    )
    parts: list[RenderableType] = [render.line(f"Checked {checked}.")]
    if report.findings:
        rows: list[Sequence[str | Text]] = [
            (
                Text(one.severity.value, style=_SEVERITY[one.severity.value]),
                one.code.value,
                plain(one.where),
                plain(one.what),
                plain(one.remedy),
            )
            for one in report.findings
        ]
        parts.append(render.table(("severity", "code", "where", "what", "remedy"), rows))
    parts.append(render.line("Everything is there." if report.ok else "Something is missing."))
    return parts


def _begin(task: Task) -> datetime:
    """The cut-off, after all that can be refused before any work was refused."""
    args = task.args
    if not (args.yes or args.dry_run or task.screen.can_ask):
        raise UsageError("nobody is there to be asked: give --yes, or --dry-run to see the plan")
    return safe_cutoff(args.older_than, args.minimum_age, now=task.now(), setting="--minimum-age")


def _closing(empty: bool, dry_run: bool, done: str) -> Text:
    if empty:
        return render.line("There is nothing to do.")
    return render.line("This was a dry run: nothing was changed." if dry_run else done)
