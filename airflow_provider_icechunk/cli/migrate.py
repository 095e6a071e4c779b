"""`migrate`: shows what moving up means, asks, and then does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_provider_icechunk.cli import render
from airflow_provider_icechunk.cli.screen import Report, UsageError
from airflow_provider_icechunk.cli.task import Task
from airflow_provider_icechunk.cli.text import number, several, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from airflow_provider_icechunk.api import MigrationProgress, MigrationResult


def migrate(task: Task) -> Report:
    """The repository moves up to a newer generation of the format."""
    from airflow_provider_icechunk.api import migrate as move

    args = task.args
    if not (args.yes or args.dry_run or task.screen.can_ask):
        raise UsageError("nobody is there to be asked: give --yes, or --dry-run to see the plan")
    if args.remove_old and args.no_fence:
        raise UsageError("--remove-old and --no-fence exclude each other")
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
    return Report(result.as_dict(), [*draw(result), _closing(result)])


def draw(result: MigrationResult) -> list[RenderableType]:
    """What moves and what is left. Pure."""
    if not _changes(result):
        return [render.line(f"This is a repository of generation {result.target} already.")]
    rows = [
        ("snapshots", number(result.snapshots), _kept(result)),
        ("branches", number(result.branches), "the same names"),
        ("tags", number(result.tags), f"{number(result.deleted_tags)} deleted ones stay deleted"),
        ("manifests", number(result.manifests), "written anew" if result.manifests else "stay"),
        (
            "chunk files",
            number(result.chunk_files) if result.chunk_files else "",
            f"copied, {size(result.chunk_bytes)}" if result.chunk_files else "stay",
        ),
    ]
    return [
        render.line(f"From generation {result.source} to {result.target}:"),
        render.table(("what", "#number", "what becomes of it"), rows),
    ]


def progress_line(progress: MigrationProgress | None) -> RenderableType:
    """How far the present step is. Pure."""
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
    """Keep the last news on the terminal while the block runs."""
    news: list[MigrationProgress | None] = [None]

    def listen(progress: MigrationProgress) -> None:
        news[0] = progress

    with task.screen.progress(lambda: progress_line(news[0])):
        yield listen


def _changes(result: MigrationResult) -> bool:
    return result.source != result.target


def _kept(result: MigrationResult) -> str:
    return f"{several(len(result.ids), 'new id')}; --json lists them" if result.ids else "same ids"


def _closing(result: MigrationResult) -> Text:
    parts = []
    if result.dry_run:
        parts.append("This was a dry run: nothing was changed.")
        if result.removed:
            parts.append(f"{several(result.removed, 'old object')} would be removed.")
    elif result.migrated:
        parts.append("Done; open it anew.")
    if result.followed:
        parts.append(f"{several(result.followed, 'late change')} brought over.")
    if result.removed and not result.dry_run:
        parts.append(f"{several(result.removed, 'old object')} removed.")
    if result.leftovers and not result.dry_run:
        names = ", ".join(result.leftovers)
        state = (
            "fenced against programs that know nothing newer: --no-fence opens it again"
            if result.fenced
            else "and other programs can still write to it: run it again without --no-fence"
        )
        parts.append(
            f"The entry point of generation {names} is still there, {state}; --remove-old "
            "deletes it."
        )
    return render.line(" ".join(parts) or "There is nothing to do.")
