"""Counts of what this process has done so far: for metrics, never for decisions.

Names are `requests`, `retries`, `bytes_read` and `bytes_written` of object stores, and `commits`,
`rebases`, `lost_races` and `conflicts`. Durations are in seconds: `commit_seconds` for the whole
commit, and `commit_rebase_seconds`, `commit_store_seconds` and `commit_branch_seconds` for its
phases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .concurrency import PerProcess


class _Tally:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, float] = {}


_TALLY = PerProcess(_Tally)


def add(name: str, by: float = 1) -> None:
    """Count something."""
    tally = _TALLY.get()
    with tally.lock:
        tally.counts[name] = tally.counts.get(name, 0) + by


@contextmanager
def timed(name: str, clock: Callable[[], float]) -> Iterator[None]:
    """Count how long the block takes, even if it fails."""
    begun = clock()
    try:
        yield
    finally:
        add(name, clock() - begun)


def take() -> dict[str, float]:
    """What was counted since the last call."""
    tally = _TALLY.get()
    with tally.lock:
        counts, tally.counts = tally.counts, {}
    return counts
