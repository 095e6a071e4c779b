"""A command's inputs, and where its results, questions and progress go.

Only results go to standard output, so that `--json` can be piped. Colour, cursor movements and
questions only go to terminals.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from airflow_provider_icechunk.exceptions import MaintenanceError

from .render import Json, json_value, plain, progress_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from airflow_provider_icechunk.api import Repository
    from airflow_provider_icechunk.engine.format.generation import Generation
    from airflow_provider_icechunk.engine.storage.base import Storage
    from airflow_provider_icechunk.engine.storage.observed import ObservedStorage


_UNLIMITED = 10_000
"""Width for files and pipes, which get whole lines."""


class UsageError(Exception):
    """The command line is wrong; the text says what to pass instead."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command, as JSON and as text."""

    json: Mapping[str, object]
    body: Sequence[RenderableType] = ()
    problem: str | None = None
    """Set if the command ran but found or left behind an error: exit code 1."""
    generation: Generation | None = None
    """Generation of the repository, for callers that turn snapshot ids into links."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The three standard streams."""

    out: TextIO
    err: TextIO
    inp: TextIO

    def show(self, report: Report, *, as_json: bool) -> None:
        """Print a result and flush it, so that a closed pipe is noticed here."""
        if as_json:
            self.out.write(to_json(report.json) + "\n")
        else:
            _print(self.out, report.body)
        self.out.flush()

    def complain(self, kind: str, message: str) -> None:
        """Print one line to standard error."""
        self.err.write(f"error [{kind}]: {plain(message)}\n")

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer a question."""
        return self.inp.isatty() and self.err.isatty()

    def confirm(self, plan: Sequence[RenderableType], question: str) -> None:
        """Show a plan and ask; raises unless the answer is yes."""
        _print(self.err, plan)
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        if self.inp.readline().strip().lower() not in {"y", "yes"}:
            raise MaintenanceError("not confirmed; nothing was changed")

    @contextmanager
    def progress(self, state: Callable[[], RenderableType]) -> Iterator[None]:
        """Show a transient progress line on the terminal while the block runs."""
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
    """Encode as one JSON document in ASCII."""
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
    # Tables pad their last column with spaces, which are noise in a file.
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


@dataclass(frozen=True, slots=True)
class Task:
    """One invocation of a command."""

    args: argparse.Namespace
    screen: Screen
    storage: ObservedStorage
    """The repository's storage; it counts requests, for the progress line."""
    now: Callable[[], datetime]
    below: Callable[[str], Storage] | None = None
    """The storage at a path below the given address; empty for the address itself."""

    def open(self) -> Repository:
        """Open the repository; raises `NotFoundError` if there is none."""
        from airflow_provider_icechunk.api import Repository

        return Repository.open(self.storage)

    @contextmanager
    def progress(self, what: str, *, deletes: int | None = None) -> Iterator[None]:
        """Show objects read, or deletes done out of `deletes`, while the block runs."""
        begun = time.monotonic()
        self.storage.reset()

        def state() -> RenderableType:
            return progress_line(
                what, self.storage.usage, deletes=deletes, seconds=time.monotonic() - begun
            )

        with self.screen.progress(state):
            yield
