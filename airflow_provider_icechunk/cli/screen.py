"""What a command sends out: results, questions and progress, each to its own stream.

Results go to standard output and nothing else does, so that `--json` can be piped. Colour, cursor
movements and questions only reach terminals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from airflow_provider_icechunk.cli.text import Json, json_value, plain
from airflow_provider_icechunk.exceptions import MaintenanceError

if TYPE_CHECKING:
    from airflow_provider_icechunk.format.generations.base import Generation

_UNLIMITED = 10_000
"""Columns where nobody looks: a file or a pipe gets whole lines."""


class UsageError(Exception):
    """The command line cannot mean anything; the text says what to give."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a command has to say, to programs and to people."""

    json: Mapping[str, object]
    body: Sequence[RenderableType] = ()
    problem: str | None = None
    """Set if the command ran but what it found or left undone is an error: exit code 1."""
    generation: Generation | None = None
    """Of the repository whose snapshots the body names, for whoever makes links of their ids."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The three standard streams."""

    out: TextIO
    err: TextIO
    inp: TextIO

    def show(self, report: Report, *, as_json: bool) -> None:
        """Print a result, all of it: a reader that went away is noticed here."""
        if as_json:
            self.out.write(to_json(report.json) + "\n")
        else:
            _print(self.out, report.body)
        self.out.flush()

    def complain(self, kind: str, message: str) -> None:
        """One line on standard error."""
        self.err.write(f"error [{kind}]: {plain(message)}\n")

    @property
    def can_ask(self) -> bool:
        """Whether somebody could answer."""
        return self.inp.isatty() and self.err.isatty()

    def confirm(self, plan: Sequence[RenderableType], question: str) -> None:
        """Show a plan and go on only if the answer is yes."""
        _print(self.err, plan)
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        if self.inp.readline().strip().lower() not in {"y", "yes"}:
            raise MaintenanceError("it was not confirmed; nothing was changed")

    @contextmanager
    def progress(self, state: Callable[[], RenderableType]) -> Iterator[None]:
        """Keep a line of progress on the terminal while the block runs; it goes away after."""
        if not self.err.isatty():
            yield
            return
        with Live(
            get_renderable=state,
            console=_console(self.err),
            refresh_per_second=5,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield


def to_json(value: Mapping[str, object]) -> str:
    """One JSON document in ASCII."""
    cleaned: Json = json_value(value)
    return json.dumps(cleaned, indent=2, allow_nan=False)


def _print(stream: TextIO, parts: Sequence[RenderableType]) -> None:
    console = _console(stream)
    if stream.isatty():
        for part in parts:
            console.print(part)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    # Tables fill their last column with spaces, which nobody wants in a file.
    stream.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _console(stream: TextIO) -> Console:
    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,
        color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
        width=None if terminal else _UNLIMITED,
        markup=False,
        emoji=False,
        highlight=False,
    )
