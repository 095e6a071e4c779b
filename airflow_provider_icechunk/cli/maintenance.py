"""`expire`, `collect`, `compact`, `verify` and `migrate`.

Commands that delete show a plan, ask, and carry out exactly that plan, except that the engine
skips objects that have come into use since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_provider_icechunk.engine.maintenance.ages import safe_cutoff
from airflow_provider_icechunk.engine.pipelines.versions import newest, read_heads

from . import render
from .render import number, plain, several, show_moment, size
from .screen import Report, Task, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from airflow_provider_icechunk.api import MigrationProgress, MigrationResult
    from airflow_provider_icechunk.engine.maintenance.collect_plan import CollectionPlan
    from airflow_provider_icechunk.engine.maintenance.findings import VerifyReport
    from airflow_provider_icechunk.engine.maintenance.retention import ExpirationPlan, Freed


_SEVERITY = {"error": "bold red", "warning": "yellow", "info": "dim"}


def expire(task: Task) -> Report:
    """Remove old snapshots from the history; `collect` deletes their objects later."""
    from airflow_provider_icechunk.engine.maintenance.retention import RetentionPolicy, freed_by

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
        [*body, _closing(plan.is_empty, args.dry_run, "Expired; `collect` frees the storage.")],
    )


def collect(task: Task) -> Report:
    """Delete unreferenced objects that are old enough."""
    from airflow_provider_icechunk.engine.maintenance.collect_plan import as_if_done

    args = task.args
    older_than = _begin(task)
    collection = task.open().collection()
    with task.progress("finding objects in use"):
        plan = collection.make_plan(older_than, minimum_age=args.minimum_age)
    body = draw_collection(plan)
    summary = as_if_done(plan)
    if not args.dry_run:
        if len(plan) and not args.yes:
            task.screen.confirm(body, f"Permanently delete {several(len(plan), 'object')}?")
        with task.progress("deleting", deletes=len(plan)):
            summary = collection.carry_out(plan)
    return Report(
        {"older_than": plan.cutoff.isoformat(), **summary.as_dict(), "plan": plan.as_dict()},
        [*body, _closing(not len(plan), args.dry_run, f"Freed {size(summary.bytes_deleted)}.")],
        summary.problem,
    )


def compact(task: Task) -> Report:
    """Pack small chunks into larger files. Deletes nothing, so it does not ask."""
    from airflow_provider_icechunk.engine.maintenance.compact import CompactionRules

    args = task.args
    rules = CompactionRules.of(
        {name: getattr(args, name) for name in ("small", "target", "enough", "inline_from")}
    )
    repository = task.open()
    with task.progress("compacting"):
        result = repository.compact(
            args.branch, rules=rules, message=args.message, dry_run=args.dry_run
        )
    moved = f"{several(result.chunks, 'small chunk')} ({size(result.bytes)})"
    body = render.line(f"Branch {plain(args.branch)}: {moved} in {several(result.files, 'file')}.")
    done = f"Committed {result.snapshot_id}; the old files remain until expired and collected."
    return Report(
        {"dry_run": args.dry_run, "branch": args.branch, **result.as_dict()},
        [body, _closing(not result.chunks, args.dry_run, done)],
    )


def verify(task: Task) -> Report:
    """Check that all objects branches and tags need exist."""
    repository = task.open()
    with task.progress("checking"):
        report = repository.verify()
    problem = None
    if not report.ok:
        problem = f"{several(len(report.errors), 'error')} in {repository.storage.location}"
    return Report(report.as_dict(), draw_findings(report), problem)


def draw_expiration(
    plan: ExpirationPlan, freed: Freed, older_than: datetime
) -> list[RenderableType]:
    """Show what an expiration does to each branch and tag. Pure."""
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
        render.table(("reference", "#snapshots kept", "outcome"), rows),
        render.line(
            f"{several(freed.snapshots, 'snapshot')} leave the history; "
            f"{several(freed.manifests, 'manifest')} ({size(freed.manifest_bytes)}, "
            f"{several(freed.references, 'reference')}) can be collected"
        ),
    ]


def draw_collection(plan: CollectionPlan) -> list[RenderableType]:
    """Show what a collection deletes, by kind. Pure."""
    layers = {
        name: objects for name, objects in plan.as_dict().items() if isinstance(objects, dict)
    }
    rows = [
        (name, number(objects["count"]), size(objects["bytes"])) for name, objects in layers.items()
    ]
    rows.append(("total", number(len(plan)), size(plan.total_bytes)))
    lines = [render.line(f"Unneeded objects stored before {show_moment(plan.cutoff)}:")]
    if plan.leases:
        lines.append(
            render.line(
                f"The cut-off was moved back: {several(plan.leases, 'session or job')} started "
                "before it and ended less than a day ago or not at all."
            )
        )
    return [*lines, render.table(("kind", "#objects", "#bytes"), rows)]


def draw_findings(report: VerifyReport) -> list[RenderableType]:
    """Show what was checked and found. Pure."""
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
    parts.append(render.line("No errors found." if report.ok else "Errors found."))
    return parts


def _begin(task: Task) -> datetime:
    """The cut-off; raises if it is unsafe or if confirmation is impossible."""
    _require_confirmation(task)
    args = task.args
    return safe_cutoff(args.older_than, args.minimum_age, now=task.now(), setting="--minimum-age")


def _require_confirmation(task: Task) -> None:
    if not (task.args.yes or task.args.dry_run or task.screen.can_ask):
        raise UsageError(
            "cannot ask for confirmation without a terminal: pass --yes, or --dry-run to see the "
            "plan"
        )


def _closing(empty: bool, dry_run: bool, done: str) -> Text:
    if empty:
        return render.line("Nothing to do.")
    return render.line("Dry run: nothing was changed." if dry_run else done)


def migrate(task: Task) -> Report:
    """Migrate the repository to a newer generation of the format."""
    from airflow_provider_icechunk.api import migrate as move

    args = task.args
    _require_confirmation(task)
    if args.remove_old and args.no_fence:
        raise UsageError("--remove-old and --no-fence cannot be combined")
    result = None
    if args.dry_run or not args.yes:
        with _shown(task) as listener:
            result = move(
                task.storage, args.to, dry_run=True, remove_old=args.remove_old, progress=listener
            )
    if not args.dry_run:
        if result is not None and (_changes(result) or result.removed):
            task.screen.confirm(draw(result), f"Migrate to generation {args.to}?")
        with _shown(task) as listener:
            result = move(
                task.storage,
                args.to,
                remove_old=args.remove_old,
                fence_old=not args.no_fence,
                progress=listener,
            )
    assert result is not None
    return Report(result.as_dict(), [*draw(result), _closing_migration(result)])


def draw(result: MigrationResult) -> list[RenderableType]:
    """Show what a migration changes and keeps. Pure."""
    if not _changes(result):
        return [render.line(f"The repository already has generation {result.target}.")]
    rows = [
        ("snapshots", number(result.snapshots), _kept(result)),
        ("branches", number(result.branches), "the same names"),
        ("tags", number(result.tags), f"{number(result.deleted_tags)} deleted ones stay deleted"),
        ("manifests", number(result.manifests), "rewritten" if result.manifests else "unchanged"),
        (
            "chunk files",
            number(result.chunk_files) if result.chunk_files else "",
            f"copied, {size(result.chunk_bytes)}" if result.chunk_files else "unchanged",
        ),
    ]
    return [
        render.line(f"From generation {result.source} to {result.target}:"),
        render.table(("what", "#number", "outcome"), rows),
    ]


def progress_line(progress: MigrationProgress | None) -> RenderableType:
    """Progress of the current step. Pure."""
    grid = Table.grid(padding=(0, 1))
    if progress is None:
        grid.add_row("reading the history", ProgressBar(total=None, pulse=True, width=30), "")
        return grid
    bar = ProgressBar(total=progress.total, completed=progress.done, width=30)
    done = number(progress.done)
    state = done if progress.total is None else f"{done} of {number(progress.total)}"
    if progress.bytes_done:
        state += f", {size(progress.bytes_done)}"
    grid.add_row(progress.step.value, bar, state)
    return grid


@contextmanager
def _shown(task: Task) -> Iterator[Callable[[MigrationProgress], None]]:
    """Show the latest progress on the terminal while the block runs."""
    latest: list[MigrationProgress | None] = [None]

    def listen(progress: MigrationProgress) -> None:
        latest[0] = progress

    with task.screen.progress(lambda: progress_line(latest[0])):
        yield listen


def _changes(result: MigrationResult) -> bool:
    return result.source != result.target


def _kept(result: MigrationResult) -> str:
    return f"{several(len(result.ids), 'new id')}; --json lists them" if result.ids else "same ids"


def _closing_migration(result: MigrationResult) -> Text:
    parts = []
    if result.dry_run:
        parts.append("Dry run: nothing was changed.")
        if result.removed:
            parts.append(f"{several(result.removed, 'old object')} would be removed.")
    elif result.migrated:
        parts.append("Migrated; reopen the repository.")
    if result.followed:
        parts.append(f"{several(result.followed, 'late change')} carried over.")
    if result.removed and not result.dry_run:
        parts.append(f"{several(result.removed, 'old object')} removed.")
    if result.leftovers and not result.dry_run:
        names = ", ".join(result.leftovers)
        state = (
            "fenced against programs that only know the old generation; --no-fence reopens it"
            if result.fenced
            else "and old programs can still write to it; run again without --no-fence to fence it"
        )
        parts.append(
            f"The entry point of generation {names} still exists, {state}; --remove-old deletes it."
        )
    return render.line(" ".join(parts) or "Nothing to do.")
