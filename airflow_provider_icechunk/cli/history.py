"""`log`, `show` and `diff`: the history of a repository."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_icechunk.engine.history.graph import Commit, arrange, draw
from airflow_provider_icechunk.engine.pipelines.versions import find_version
from airflow_provider_icechunk.exceptions import (
    Kind,
    NotFoundError,
    StorageError,
)

from . import render
from .screen import Report, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_icechunk.api import Repository
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.history.diff import Diff


@dataclass(frozen=True, slots=True)
class Heads:
    """The branches and tags, each with its snapshot id."""

    branches: Mapping[str, str]
    tags: Mapping[str, str]

    def tips(self) -> set[str]:
        """The snapshots that branches and tags point to."""
        return {*self.branches.values(), *self.tags.values()}

    def commit(self, info: SnapshotInfo) -> Commit:
        """A snapshot with its branches and tags."""
        return Commit(
            info.id,
            info.parent_id,
            info.written_at,
            info.message,
            tuple(sorted(name for name, tip in self.branches.items() if tip == info.id)),
            tuple(sorted(name for name, tip in self.tags.items() if tip == info.id)),
        )


def read_heads(repository: Repository) -> Heads:
    """The current branches and tags; one deleted during the read is left out."""
    return Heads(
        _look_up(repository.list_branches(), repository.lookup_branch),
        _look_up(repository.list_tags(), repository.lookup_tag),
    )


def newest(
    repository: Repository, tips: Iterable[str], limit: int | None
) -> tuple[list[SnapshotInfo], bool]:
    """The newest snapshots reachable from `tips`, and whether there are more."""
    ready = [(-info.written_at.timestamp(), info.id, info) for info in _load(repository, tips)]
    heapq.heapify(ready)
    seen = {identity for _, identity, _ in ready}
    found: list[SnapshotInfo] = []
    while ready:
        if limit is not None and len(found) >= limit:
            return found, True
        _, _, info = heapq.heappop(ready)
        found.append(info)
        if info.parent_id is not None and info.parent_id not in seen:
            seen.add(info.parent_id)
            parent = repository.lookup_snapshot(info.parent_id)
            heapq.heappush(ready, (-parent.written_at.timestamp(), parent.id, parent))
    return found, False


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
    """Show what changed between a version and one of its ancestors."""
    repository = task.open()
    older = find_version(repository, task.args.older)
    newer = find_version(repository, task.args.newer)
    changes = repository.diff(from_snapshot_id=older, to_snapshot_id=newer)
    body = render.difference(changes)
    if task.args.chunks:
        body += [
            render.line(f"{path} {row}")
            for path, rows in sorted(changes.chunk_columns.items())
            for row in rows.tolist()
        ]
    return Report(
        {
            "from": older,
            "to": newer,
            **difference_json(changes, chunks=task.args.chunks),
        },
        body,
    )


def describe(info: SnapshotInfo, commit: Commit) -> dict[str, object]:
    """A snapshot as JSON values."""
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at.isoformat(),
        "message": info.message,
        "metadata": info.metadata,
        "branches": list(commit.branches),
        "tags": list(commit.tags),
    }


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


def _look_up(names: Iterable[str], look_up: Callable[[str], str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = look_up(name)
        except NotFoundError:
            continue
    return found


def _load(repository: Repository, tips: Iterable[str]) -> list[SnapshotInfo]:
    return [repository.lookup_snapshot(tip) for tip in sorted(tips)]
