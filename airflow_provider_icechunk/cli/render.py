"""Render values for a terminal. Pure: no stream, no clock, no repository.

Stored text goes through `plain`: a commit message must not be able to control a terminal.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_provider_icechunk.engine.history.graph import Commit, Row
from airflow_provider_icechunk.engine.maintenance.ages import read_age, read_cutoff
from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.format.model import Coordinates
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.history.diff import Diff
    from airflow_provider_icechunk.engine.storage.observed import Usage


Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def plain(text: str) -> str:
    """`text` with everything unprintable escaped, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def first_line(text: str) -> str:
    """The first line of a message, escaped."""
    lines = text.strip().splitlines()
    return plain(lines[0].rstrip()) if lines else ""


def size(number: int) -> str:
    """A size in bytes for people: `512 B`, `1.2 MB`."""
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:,.1f} PB"


def number(value: int) -> str:
    """A number with thousands separators."""
    return f"{value:,}"


def several(count: int, what: str) -> str:
    """`1 chunk`, `2 chunks`."""
    return f"{number(count)} {what if count == 1 else what + 's'}"


def shape(lengths: Iterable[int]) -> str:
    """The shape of an array."""
    return "(" + ", ".join(map(str, lengths)) + ")"


def json_value(value: object) -> Json:
    """The value in JSON types; what JSON cannot express becomes text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): json_value(one) for key, one in value.items()}
        case set() | frozenset():
            return [json_value(one) for one in sorted(value)]
        case list() | tuple():
            return [json_value(one) for one in value]
    return str(value)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def parse_age(text: str) -> timedelta:
    """An argument type: an age such as `30d`, `12h` or `1d12h`."""
    try:
        return read_age(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def parse_cutoff(text: str) -> datetime | timedelta:
    """An argument type: an age, or an ISO 8601 time (UTC unless it names a zone)."""
    try:
        return read_cutoff(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def show_moment(moment: datetime) -> str:
    """A time in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_ID = "yellow"
_BRANCH = "bold green"
_TAG = "bold cyan"
_FAINT = "dim"


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table; columns whose title starts with `#` hold numbers and are right-aligned."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for title in columns:
        right = title.startswith("#")
        made.add_column(
            title.removeprefix("#"), justify="right" if right else "left", no_wrap=right
        )
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and values side by side."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in pairs:
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    return grid


def line(text: str) -> Text:
    """One line of text, escaped."""
    return Text(plain(text))


def titled(title: str, part: RenderableType) -> RenderableType:
    """A part under its own title, after an empty line."""
    return Group(Text(""), Text(title, style="bold"), part)


def labels(branches: Sequence[str], tags: Sequence[str]) -> Text:
    """The branches and tags of a snapshot: `(main, tag: v1)`; empty if there are none."""
    named = [Text(plain(name), style=_BRANCH) for name in branches]
    named += [Text(f"tag: {plain(name)}", style=_TAG) for name in tags]
    if not named:
        return Text()
    return Text.assemble("(", Text(", ").join(named), ")")


def log_line(row: Row) -> Text:
    """One line of the history."""
    if row.commit is None:
        return Text(row.lanes, no_wrap=True)
    parts = [
        Text(row.lanes),
        Text(row.commit.id, style=_ID),
        Text(show_moment(row.commit.written_at).removesuffix(" UTC"), style=_FAINT),
        labels(row.commit.branches, row.commit.tags),
        Text(first_line(row.commit.message)),
    ]
    whole = Text(" ").join(part for part in parts if part.plain)
    whole.no_wrap, whole.overflow = True, "ellipsis"
    return whole


def log_lines(rows: Iterable[Row], *, more: bool) -> list[RenderableType]:
    """The history as text."""
    lines: list[RenderableType] = [log_line(row) for row in rows]
    if more:
        lines.append(Text("More snapshots exist: use --limit or --all.", style=_FAINT))
    return lines


def snapshot(
    info: SnapshotInfo, commit: Commit, changes: Diff | None, *, unknown: str | None = None
) -> list[RenderableType]:
    """One snapshot and what it changed; `unknown` says why the changes are not known."""
    stored = sum(manifest.size_bytes for manifest in info.manifests)
    references = several(sum(one.num_chunk_refs for one in info.manifests), "reference")
    head: list[tuple[str, str | Text]] = [
        ("snapshot", Text.assemble((info.id, _ID), " ", labels(commit.branches, commit.tags))),
        ("parent", info.parent_id or "none: this is the first snapshot"),
        ("written", show_moment(info.written_at)),
        ("manifests", f"{several(len(info.manifests), 'file')}, {size(stored)}, {references}"),
    ]
    parts: list[RenderableType] = [facts(head), Text("")]
    parts += [line(f"    {one}") for one in info.message.splitlines() or [""]]
    if info.metadata:
        pairs = [(plain(key), _shown(value)) for key, value in info.metadata.items()]
        parts.append(titled("Metadata", facts(pairs)))
    if changes is not None:
        parts.append(titled("Changes", Group(*difference(changes))))
    elif unknown is not None:
        parts.append(titled("Changes", line(unknown)))
    return parts


def difference(changes: Diff) -> list[RenderableType]:
    """What changed: paths with a sign, and the number of chunks per array."""
    signs = (
        ("+", "green", changes.new_groups, "group"),
        ("+", "green", changes.new_arrays, "array"),
        ("~", "yellow", changes.updated_groups, "group"),
        ("~", "yellow", changes.updated_arrays, "array"),
        ("-", "red", changes.deleted_groups, "group"),
        ("-", "red", changes.deleted_arrays, "array"),
    )
    lines: list[RenderableType] = [
        Text(f"{sign} {kind} {plain(path)}", style=style)
        for sign, style, paths, kind in signs
        for path in sorted(paths)
    ]
    if changes.chunk_columns:
        rows = [
            (plain(path), number(len(places)), ranges(bounds(places)))
            for path, places in sorted(changes.chunk_columns.items())
        ]
        lines.append(table(("chunks written in", "#chunks", "within"), rows))
    return lines or [Text("nothing changed")]


def bounds(places: Coordinates) -> list[tuple[int, int]]:
    """The bounding box of chunk coordinates: first and last along each dimension."""
    if not len(places):
        return []
    return list(zip(places.min(0).tolist(), places.max(0).tolist(), strict=True))


def ranges(box_: Iterable[tuple[int, int]]) -> str:
    """A box of chunks: `[0-3, 7]`."""
    sides = (str(low) if low == high else f"{low}-{high}" for low, high in box_)
    return "[" + ", ".join(sides) + "]"


def progress_line(
    what: str, usage: Mapping[str, Usage], *, deletes: int | None, seconds: float
) -> RenderableType:
    """Progress on a repository, measured by its storage requests."""
    grid = Table.grid(padding=(0, 1))
    if deletes is not None:
        gone = usage["delete"].requests if "delete" in usage else 0
        state = f"{number(min(gone, deletes))} of {several(deletes, 'object')}, {seconds:.0f} s"
        bar = ProgressBar(total=max(deletes, 1), completed=min(gone, deletes), width=30)
        grid.add_row(what, bar, state)
        return grid
    read = usage.get("get")
    count, length = (read.requests, read.bytes) if read else (0, 0)
    bar = ProgressBar(total=None, pulse=True, width=30, animation_time=seconds)
    grid.add_row(what, bar, f"{several(count, 'object')} read, {size(length)}, {seconds:.0f} s")
    return grid


def _shown(value: object) -> str:
    if isinstance(value, str):
        return plain(value)
    return plain(json.dumps(json_value(value), ensure_ascii=False))
