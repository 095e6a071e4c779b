"""`log`, `show` and `diff`: the history of a repository."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.console import Group

from airflow_provider_icechunk.engine.history.graph import arrange, draw
from airflow_provider_icechunk.engine.pipelines.versions import (
    describe,
    find_version,
    newest,
    read_heads,
)
from airflow_provider_icechunk.exceptions import Kind, StorageError

from . import render
from .render import plain
from .screen import Report, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from airflow_provider_icechunk.api import Repository
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.history.diff import Diff


def log(task: Task) -> Report:
    """Show the history of the given versions, or of all branches and tags."""
    repository = task.open()
    heads = read_heads(repository)
    wanted = {find_version(repository, text) for text in task.args.versions}
    limit = None if task.args.all else task.args.limit
    infos, more = newest(repository, wanted or heads.tips(), limit)
    commits = [heads.commit(info) for info in infos]
    by_id = {info.id: info for info in infos}
    return Report(
        {
            "snapshots": [describe(by_id[one.id], one) for one in arrange(commits)],
            "more": more,
        },
        render.log_lines(draw(commits), more=more),
        generation=repository.core.generation,
    )


def show(task: Task) -> Report:
    """Show one snapshot and what it changed."""
    repository = task.open()
    info = repository.lookup_snapshot(find_version(repository, task.args.version))
    commit = read_heads(repository).commit(info)
    changes, unknown = _changes(repository, info)
    manifests = [
        {"id": one.id, "size_bytes": one.size_bytes, "num_chunk_refs": one.num_chunk_refs}
        for one in info.manifests
    ]
    return Report(
        {
            **describe(info, commit),
            "manifests": manifests,
            "changes": None if changes is None else difference_json(changes, chunks=False),
        },
        render.snapshot(info, commit, changes, unknown=unknown),
        generation=repository.core.generation,
    )


def diff(task: Task) -> Report:
    """Show what changed between two versions.

    From an ancestor to a later version this is one diff. Otherwise each has changes that the other
    lacks, and both are compared with the snapshot at which they diverged.
    """
    repository = task.open()
    older = find_version(repository, task.args.older)
    newer = find_version(repository, task.args.newer)
    chunks: bool = task.args.chunks
    parted = parted_at(
        *((info.id for info in repository.ancestry(snapshot_id=one)) for one in (older, newer))
    )
    if parted in (None, older, newer):
        changes = repository.diff(from_snapshot_id=older, to_snapshot_id=newer)
        told = difference_json(changes, chunks=chunks)
        return Report({"from": older, "to": newer, **told}, _difference(changes, chunks=chunks))
    body: list[RenderableType] = [render.line(f"parted at {parted}")]
    sides: dict[str, object] = {}
    for key, name, tip in (
        ("only_from", task.args.older, older),
        ("only_to", task.args.newer, newer),
    ):
        changes = repository.diff(from_snapshot_id=parted, to_snapshot_id=tip)
        sides[key] = difference_json(changes, chunks=chunks)
        body += [render.titled(plain(name), Group(*_difference(changes, chunks=chunks)))]
    return Report({"from": older, "to": newer, "parted_at": parted, **sides}, body)


def _difference(changes: Diff, *, chunks: bool) -> list[RenderableType]:
    body = render.difference(changes)
    if chunks:
        body += [
            render.line(f"{path} {row}")
            for path, rows in sorted(changes.chunk_columns.items())
            for row in rows.tolist()
        ]
    return body


def parted_at(first: Iterable[str], second: Iterable[str]) -> str | None:
    """The newest snapshot that two histories share, read no further back than needed. Pure."""
    seen: tuple[set[str], set[str]] = (set(), set())
    for pair in zip_longest(first, second):
        for side, identity in enumerate(pair):
            if identity is None:
                continue
            if identity in seen[1 - side]:
                return str(identity)
            seen[side].add(identity)
    return None


def difference_json(changes: Diff, *, chunks: bool) -> dict[str, object]:
    """A diff as JSON values; `chunks` adds the coordinates, which may be many."""
    written: dict[str, object] = {}
    for path, rows in sorted(changes.chunk_columns.items()):
        facts = {"count": len(rows), "within": [list(side) for side in render.bounds(rows)]}
        written[path] = facts | ({"coordinates": rows.tolist()} if chunks else {})
    return {
        "new_groups": sorted(changes.new_groups),
        "new_arrays": sorted(changes.new_arrays),
        "updated_groups": sorted(changes.updated_groups),
        "updated_arrays": sorted(changes.updated_arrays),
        "deleted_groups": sorted(changes.deleted_groups),
        "deleted_arrays": sorted(changes.deleted_arrays),
        "updated_chunks": written,
    }


def _changes(repository: Repository, info: SnapshotInfo) -> tuple[Diff | None, str | None]:
    if info.parent_id is None:
        return None, None
    try:
        return (
            repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id),
            None,
        )
    except StorageError as error:
        if error.kind is not Kind.OBJECT_MISSING:
            raise
        return None, f"unknown: {error.message}"
