"""`results.json` and the page that is made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checks import CHECKS
from .rows import HERE, ROOT, Matrix, Row

RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "compatibility.md"
_WORDS = HERE / "page.md"
"""The hand-written part of the page, with a placeholder for the table."""
_PLACE = "<!-- table -->"


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one check in one row."""

    passed: bool
    summary: str


Results = Mapping[str, Mapping[str, Seen]]


def read(path: Path = RESULTS) -> dict[str, dict[str, Seen]]:
    """The latest results, by row and check."""
    if not path.exists():
        return {}
    stored: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {
        row: {check: Seen(**seen) for check, seen in checks.items()}
        for row, checks in stored.items()
    }


def write(results: Results, path: Path = RESULTS) -> None:
    """Store the results."""
    stored = {
        row: {
            name: {"passed": seen.passed, "summary": seen.summary} for name, seen in checks.items()
        }
        for row, checks in results.items()
    }
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def page(matrix: Matrix, results: Results) -> str:
    """The page about compatibility."""
    return _WORDS.read_text().replace(_PLACE, "\n".join(_table(matrix, results)))


def _table(matrix: Matrix, results: Results) -> Iterator[str]:
    yield "| | with | Python | what was run | result |"
    yield "|---|---|---|---|---|"
    for row in matrix.rows.values():
        for number, check in enumerate(row.checks):
            seen = results.get(row.name, {}).get(check)
            first = (row.title, _versions(row), row.python) if number == 0 else ("", "", "")
            yield "| " + " | ".join([*first, CHECKS[check].title, _verdict(seen)]) + " |"


def _verdict(seen: Seen | None) -> str:
    if seen is None:
        return "not run"
    return seen.summary if seen.passed else f"**fails**: {seen.summary}"


def _versions(row: Row) -> str:
    pins = dict(
        line.split(" ")[0].split("==", 1)
        for line in row.pins.read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    return ", ".join(f"{name} {pins[name]}" for name in row.shows if name in pins)
