"""The rows of the matrix, from `rows.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """Releases that are installed together, and what is checked there."""

    name: str
    title: str
    python: str
    """The minor release of Python, such as `3.12`."""
    checks: tuple[str, ...]
    extras: tuple[str, ...] = ()
    """Extras of this project that the row installs."""
    fixed: tuple[str, ...] = ()
    """Requirements that define the row; everything else follows from them."""
    tools: bool = True
    """Whether the tests' own packages are installed; a row without them shows what an install
    needs.
    """
    until: str | None = None
    """Take nothing that was released after this day: newer packages break old releases."""
    shows: tuple[str, ...] = ()
    """Packages whose versions the page shows."""

    @property
    def pins(self) -> Path:
        """The file with the exact versions."""
        return HERE / "pins" / f"{self.name}.txt"


@dataclass(frozen=True, slots=True)
class Matrix:
    """All rows, and what they have in common."""

    rows: Mapping[str, Row]
    tools: tuple[str, ...]
    """What the tests need besides the project."""
    undated: tuple[str, ...]
    """Packages that `until` does not hold back: this project needs a newer one."""


def load(path: Path = HERE / "rows.toml") -> Matrix:
    """Read the rows; an unknown field is a `TypeError`."""
    text = tomllib.loads(path.read_text())
    return Matrix(
        rows={name: _row(name, fields) for name, fields in text["rows"].items()},
        tools=tuple(text["tools"]),
        undated=tuple(text["undated"]),
    )


def _row(name: str, fields: Mapping[str, Any]) -> Row:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return Row(name=name, **values)
