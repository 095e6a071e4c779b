"""What a command is given to work with."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_icechunk.cli.render import progress_line
from airflow_provider_icechunk.cli.screen import Screen

if TYPE_CHECKING:
    from rich.console import RenderableType

    from airflow_provider_icechunk.api import Repository
    from airflow_provider_icechunk.storage.observed import ObservedStorage


@dataclass(frozen=True, slots=True)
class Task:
    """One command that was asked for."""

    args: argparse.Namespace
    screen: Screen
    storage: ObservedStorage
    """Where the repository is; it counts what is asked of it, for the progress shown."""
    now: Callable[[], datetime]

    def open(self) -> Repository:
        """The repository; `NotFoundError` if there is none."""
        from airflow_provider_icechunk.api import Repository

        return Repository.open(self.storage)

    @contextmanager
    def progress(self, what: str, *, deletes: int | None = None) -> Iterator[None]:
        """Show what is read, or of how many deletes how many are done, while the block runs."""
        begun = time.monotonic()
        self.storage.reset()

        def state() -> RenderableType:
            return progress_line(
                what, self.storage.usage, deletes=deletes, seconds=time.monotonic() - begun
            )

        with self.screen.progress(state):
            yield
