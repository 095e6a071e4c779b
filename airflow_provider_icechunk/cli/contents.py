"""`init`, `tree`, `coverage` and `measure`: create a repository, show its contents and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from airflow_provider_icechunk.engine.pipelines.versions import find_version
from airflow_provider_icechunk.exceptions import AlreadyExistsError, Kind, NotFoundError

from . import render
from .render import number, plain, several, shape, size
from .screen import Report, Task, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from airflow_provider_icechunk.api import Repository
    from airflow_provider_icechunk.engine.maintenance.measure import Measurement, Size
    from airflow_provider_icechunk.engine.tree.entries import TreeEntry


_SHOWN = 20


def init(task: Task) -> Report:
    """Create an empty repository."""
    from airflow_provider_icechunk.api import Repository

    created = True
    try:
        repository = Repository.create(task.storage, spec_version=task.args.spec_version)
    except AlreadyExistsError:
        if not task.args.if_missing:
            raise
        created, repository = False, task.open()
    location, generation = repository.storage.location, str(repository.spec_version)
    text = f"{location}, generation {generation}"
    return Report(
        {"created": created, "location": location, "spec_version": generation},
        [render.line(f"created {text}" if created else f"already exists: {text}")],
    )


def tree(task: Task) -> Report:
    """Show the groups and arrays of one version."""
    from airflow_provider_icechunk.engine.tree.entries import read_entry

    repository = task.open()
    version, start = where_to_start(task.args.where, task.args.path)
    snapshot_id = find_version(repository, version)
    session = repository.readonly_session(snapshot_id=snapshot_id)
    path = "/" + start.strip("/")
    if session.tree.node(path) is None and path != "/":
        raise NotFoundError(
            f"no group or array at {path!r} in snapshot {snapshot_id}; run `tree` without a "
            "path to list them",
            kind=Kind.NODE_NOT_FOUND,
        )
    entries = [
        read_entry(session.tree, node, task.args.chunks) for node in session.tree.nodes(path)
    ]
    return Report(
        {"snapshot_id": snapshot_id, "nodes": [asdict(entry) for entry in entries]},
        [draw_tree(path, entries)],
    )


def where_to_start(words: Sequence[str], path: str | None) -> tuple[str, str]:
    """The version and the path among the words of `tree`: no version begins with a slash. Pure."""
    paths = [*(word for word in words if word.startswith("/")), *([] if path is None else [path])]
    versions = [word for word in words if not word.startswith("/")]
    if len(paths) > 1 or len(versions) > 1:
        raise UsageError("`tree` takes one version and one path, which begins with a slash")
    return (versions or ["main"])[0], (paths or ["/"])[0]


def draw_tree(top: str, entries: Sequence[TreeEntry]) -> Tree:
    """Draw entries, sorted by path, as a tree. Pure."""
    root = Tree(Text(plain(top), style="bold"), guide_style="dim")
    drawn: dict[str, Tree] = {top: root}
    for entry in entries:
        if entry.path == top:
            root.label = _label(entry, top)
            continue
        above, _, name = entry.path.rpartition("/")
        drawn[entry.path] = drawn.get(above or "/", root).add(_label(entry, name))
    return root


def coverage(task: Task) -> Report:
    """Show which labels of an array are present and which are missing."""
    from airflow_provider_icechunk.engine.datasets.coverage import coverage as measure_coverage

    repository = task.open()
    snapshot_id = find_version(repository, task.args.version)
    session = repository.readonly_session(snapshot_id=snapshot_id)
    found = measure_coverage(session, task.args.array, task.args.dim)
    here = found.wanted - len(found.missing)
    lines = [render.line(f"{here} of {found.wanted} labels of {found.dim} are there")]
    lines += [
        render.line(f"  {first}" if first == last else f"  {first} to {last}")
        for first, last in found.present
    ]
    if found.missing:
        shown = ", ".join(map(str, found.missing[:_SHOWN]))
        more = len(found.missing) - _SHOWN
        lines.append(render.line(f"missing: {shown}{f' and {more} more' if more > 0 else ''}"))
    if found.shared:
        lines.append(
            render.line("a chunk holds several labels: some may look written that are not")
        )
    return Report(found.as_dict(), lines)


def measure(task: Task) -> Report:
    """Show the sizes of versions and files, or the values of an array in numbers."""
    repository = task.open()
    if task.args.array is not None:
        return _measure_array(task, repository)
    with task.progress("measuring"):
        measurement = repository.measure()
        totals = repository.chunk_storage_stats()
    chunk_bytes = {
        "native_bytes": totals.native_bytes,
        "inlined_bytes": totals.inlined_bytes,
        "virtual_bytes": totals.virtual_bytes,
    }
    return Report(
        {**measurement.as_dict(), "chunk_bytes": chunk_bytes},
        draw_measurement(measurement, chunk_bytes, arrays=task.args.arrays),
    )


def _measure_array(task: Task, repository: Repository) -> Report:
    from airflow_provider_icechunk.engine.checks.run import ArrayPart
    from airflow_provider_icechunk.engine.tree.entries import read_entry

    snapshot_id = find_version(repository, task.args.version)
    session = repository.readonly_session(snapshot_id=snapshot_id)
    path = "/" + task.args.array.strip("/")
    entry = read_entry(session.tree, session.tree.array(path), True)
    with task.progress("reading"):
        found = ArrayPart.of(session, path, {}).statistics()
    deviation = found.deviation if found.valid else None
    values = {
        "cells": found.cells,
        "missing": round(found.share_missing * found.cells),
        "minimum": found.minimum,
        "maximum": found.maximum,
        "mean": found.mean if found.valid else None,
        "deviation": deviation,
    }
    shown = [(name, _number(value)) for name, value in values.items()]
    return Report(
        {"snapshot_id": snapshot_id, **asdict(entry), **values},
        [_label(entry, path), render.facts(shown)],
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return number(value) if isinstance(value, int) else f"{value:.6g}"


def draw_measurement(
    measurement: Measurement, chunk_bytes: Mapping[str, int], *, arrays: bool
) -> list[RenderableType]:
    """Tables of files, versions and, with `arrays`, arrays. Pure."""
    files = [
        (
            name,
            number(stored.count),
            size(stored.bytes),
            number(stored.unreachable_count),
            size(stored.unreachable_bytes),
        )
        for name, stored in measurement.files.items()
    ]
    heads = [(f"branch {plain(name)}", *_sizes(one)) for name, one in measurement.branches.items()]
    heads += [(f"tag {plain(name)}", *_sizes(one)) for name, one in measurement.tags.items()]
    parts: list[RenderableType] = [
        render.table(("files", "#count", "#bytes", "#unneeded", "#unneeded bytes"), files),
        render.titled(
            f"Versions ({several(len(measurement.snapshots), 'snapshot')})",
            render.table(("version", *_SIZES), sorted(heads)),
        ),
        render.titled(
            "Chunks of all versions, each stored byte counted once",
            render.facts(
                (name.removesuffix("_bytes"), size(count)) for name, count in chunk_bytes.items()
            ),
        ),
    ]
    for branch, sizes in sorted(measurement.arrays.items()) if arrays else ():
        rows = [(plain(path), *_sizes(one)) for path, one in sorted(sizes.items())]
        title = f"Arrays of branch {plain(branch)}"
        parts.append(render.titled(title, render.table(("array", *_SIZES), rows)))
    return parts


_SIZES = ("#chunks", "#native", "#inline", "#virtual")


def _sizes(one: Size) -> tuple[str, str, str, str]:
    chunks = one.native_chunks + one.inline_chunks + one.virtual_chunks
    return (number(chunks), size(one.native_bytes), size(one.inline_bytes), size(one.virtual_bytes))


def _label(entry: TreeEntry, name: str) -> Text:
    label = Text(plain(name), style="bold")
    if entry.shape is None:
        return label
    assert entry.chunk_shape is not None
    facts = f" {plain(entry.data_type or '?')} {_sides(entry)} chunks {shape(entry.chunk_shape)}"
    if entry.chunks is not None and entry.bytes is not None and entry.grid is not None:
        whole = 1
        for length in entry.grid:
            whole *= length
        facts += f"  {number(entry.chunks)} of {several(whole, 'chunk')}, {size(entry.bytes)}"
    return label.append(facts, style="not bold")


def _sides(entry: TreeEntry) -> str:
    """The shape, with dimension names where there are any: `(time: 10, x: 5)`."""
    assert entry.shape is not None
    if entry.dimension_names is None or not any(entry.dimension_names):
        return shape(entry.shape)
    named = zip(entry.dimension_names, entry.shape, strict=True)
    sides = (f"{plain(name)}: {length}" if name else str(length) for name, length in named)
    return "(" + ", ".join(sides) + ")"
