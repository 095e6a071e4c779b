"""The history as a graph of lines, newest first, the way `git log --graph` draws it. Pure.

Every snapshot has at most one parent, so lines only ever join on their way down. A lane that became
free stays empty until another line takes it: nothing is shifted, and every line is straight.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    # Only its type: the command line draws graphs and must not pay for the engine when it starts.
    from .ancestry import SnapshotInfo

_ID_LETTERS = 8
_LINE_HEIGHT = 18
_LETTER_WIDTH = 8
_BOLD, _DIM, _CYAN, _GREEN, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[32m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Commit:
    """One snapshot of the history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    branches: tuple[str, ...] = ()
    """Branches whose head it is."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of text: lanes, and the snapshot at the star."""

    lanes: str
    commit: Commit | None = None


def arrange(commits: Sequence[Commit]) -> list[Commit]:
    """Newest first, but children always before their parent, whatever the clocks said.

    Members of a cycle, which only damage can cause, come last.
    """
    known = {commit.id: commit for commit in commits}
    waiting = Counter(one.parent_id for one in known.values() if one.parent_id in known)
    ready = [_rank(commit) for commit in known.values() if not waiting[commit.id]]
    heapq.heapify(ready)
    ordered: dict[str, Commit] = {}
    while ready:
        _, identity = heapq.heappop(ready)
        commit = ordered[identity] = known[identity]
        parent = known.get(commit.parent_id or "")
        if parent is not None:
            waiting[parent.id] -= 1
            if not waiting[parent.id]:
                heapq.heappush(ready, _rank(parent))
    left = sorted((one for one in known.values() if one.id not in ordered), key=_rank)
    return [*ordered.values(), *left]


def draw(commits: Sequence[Commit]) -> list[Row]:
    """Rows of the graph; lines that go on beyond the given snapshots end in a colon."""
    rows: list[Row] = []
    lanes: list[str | None] = []
    for commit in arrange(commits):
        awaited = [place for place, identity in enumerate(lanes) if identity == commit.id]
        place = awaited[0] if awaited else _free_lane(lanes)
        for target, source in reversed(list(pairwise(awaited))):
            lanes[source] = None
            rows += _join(lanes, target, source)
        lanes[place] = commit.id
        rows.append(Row(_line(lanes, star=place), commit))
        lanes[place] = commit.parent_id
        while lanes and lanes[-1] is None:
            lanes.pop()
    if lanes:
        rows.append(Row(_line(lanes).replace("|", ":")))
    return rows


def _rank(commit: Commit) -> tuple[float, str]:
    return (-commit.written_at.timestamp(), commit.id)


def _free_lane(lanes: list[str | None]) -> int:
    if None not in lanes:
        lanes.append(None)
    return lanes.index(None)


_DOT = "#2a9d8f"
"""Seen on light and on dark pages; everything else has the colour of the text."""


def _line(lanes: Sequence[str | None], *, star: int | None = None) -> str:
    marks = ["|" if identity is not None else " " for identity in lanes]
    if star is not None:
        marks[star] = "*"
    return " ".join(marks).rstrip()


def _join(lanes: Sequence[str | None], target: int, source: int) -> Iterator[Row]:
    """Lines that lead from lane `source`, now empty, to lane `target` on its left."""
    first = list(_line(lanes).ljust(2 * len(lanes)))
    if source == target + 1:
        first[2 * source - 1] = "/"
        yield Row("".join(first).rstrip())
        return
    second = list(first)
    for column in range(2 * target + 3, 2 * source - 1):
        if first[column] == " ":
            first[column] = "_"
    first[2 * source - 1] = "/"
    second[2 * target + 1] = "/"
    yield Row("".join(first).rstrip())
    yield Row("".join(second).rstrip())


@dataclass(frozen=True, slots=True)
class AncestryGraph:
    """A history for display: printed, or shown by a notebook."""

    rows: tuple[Row, ...]
    plain: bool = False
    """Whether it has no colours."""

    @classmethod
    def of(
        cls,
        history: Iterable[SnapshotInfo],
        *,
        branches: Mapping[str, str],
        tags: Mapping[str, str],
        plain: bool,
    ) -> Self:
        """The picture of some snapshots, with the names that lead to them."""
        commits = [
            Commit(
                info.id,
                info.parent_id,
                info.written_at,
                info.message,
                tuple(name for name, tip in branches.items() if tip == info.id),
                tuple(name for name, tip in tags.items() if tip == info.id),
            )
            for info in history
        ]
        return cls(tuple(draw(commits)), plain)

    def __str__(self) -> str:
        return "\n".join(self._text(row) for row in self.rows)

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        from xml.sax.saxutils import escape

        shapes: list[str] = []
        for number, row in enumerate(self.rows):
            middle = (number + 0.5) * _LINE_HEIGHT
            below = self.rows[number + 1].lanes if number + 1 < len(self.rows) else ""
            shapes += _shapes(row.lanes, below, middle, "currentColor" if self.plain else _DOT)
            left = _LETTER_WIDTH * (len(row.lanes) + 1) + 8
            words = _words(row)[len(row.lanes) :].strip()
            if words:
                shapes.append(f'<text x="{left}" y="{middle + 4:g}">{escape(words)}</text>')
        width = 24 + _LETTER_WIDTH * max((len(_words(row)) for row in self.rows), default=0)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{_LINE_HEIGHT * len(self.rows)}" font-family="monospace" font-size="13" '
            f'fill="currentColor">{"".join(shapes)}</svg>'
        )

    def _text(self, row: Row) -> str:
        commit = row.commit
        if self.plain or commit is None:
            return _words(row)
        names = [*(f"{_BOLD}{_GREEN}{name}{_RESET}" for name in commit.branches)]
        names += [f"{_CYAN}{name}{_RESET}" for name in commit.tags]
        identity = f"{_DIM}{commit.id[:_ID_LETTERS]}{_RESET}"
        return _joined(row.lanes, identity, names, commit.message)


def _shapes(lanes: str, below: str, middle: float, dot: str) -> Iterator[str]:
    """The lines and the dot of one row, down to the middle of the next one."""
    for column, mark in enumerate(lanes):
        x = 8 + _LETTER_WIDTH * column
        under = below[column] if column < len(below) else " "
        half = _LINE_HEIGHT / 2
        if mark in "*|" and under in "*|":
            yield _stroke(x, middle, x, middle + _LINE_HEIGHT)
        elif mark in "*|" and below[max(0, column - 1) : column] == "/":
            yield _stroke(x, middle, x, middle + half)
        elif mark == "/":
            yield _stroke(x + _LETTER_WIDTH, middle - half, x - _LETTER_WIDTH, middle + half)
        elif mark == "_":
            yield _stroke(x, middle + half, x + _LETTER_WIDTH, middle + half)
        if mark == "*":
            yield f'<circle cx="{x:g}" cy="{middle:g}" r="4" fill="{dot}"/>'


def _stroke(x1: float, y1: float, x2: float, y2: float) -> str:
    place = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {place} stroke="currentColor" stroke-opacity="0.5" stroke-width="1.5"/>'


def _words(row: Row) -> str:
    commit = row.commit
    if commit is None:
        return row.lanes
    names = [*commit.branches, *commit.tags]
    return _joined(row.lanes, commit.id[:_ID_LETTERS], names, commit.message)


def _joined(lanes: str, identity: str, names: Sequence[str], message: str) -> str:
    known_as = f" ({', '.join(names)})" if names else ""
    return f"{lanes} {identity}{known_as} {message.splitlines()[0] if message else ''}".rstrip()
