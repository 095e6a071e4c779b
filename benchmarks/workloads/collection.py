"""Garbage collection of unreferenced chunk files."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.model import Case, Goal, SkippedError, Workload
from benchmarks.workloads.arrays import make_array, noise, open_array

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DAY = 86_400


def _garbage(case: Case) -> None:
    """A repository with one commit, and unreferenced chunk files that are a day old."""
    session = case.create().writable_session("main")
    make_array(session.store, 4, 4096)[:] = noise(4 * 4096)
    session.commit("data")
    chunks = case.repository / "chunks"
    chunks.mkdir(exist_ok=True)
    source = random.Random(7)
    yesterday = time.time() - _DAY
    for _ in range(case.size):
        # Twelve bytes in base 32: the last digit carries one bit.
        name = "".join(source.choices(_DIGITS, k=19)) + "0"
        path = chunks / name
        path.write_bytes(b"garbage")
        os.utime(path, (yesterday, yesterday))


def _collector(case: Case) -> Any:
    repository = case.open()
    if not hasattr(repository, "garbage_collect"):
        raise SkippedError("has no garbage_collect yet")
    return repository


def _collect(case: Case, repository: Any) -> Any:
    del case
    return repository.garbage_collect(datetime.now(UTC) - timedelta(hours=1))


def _all_gone(case: Case, repository: Any, result: Any) -> None:
    del repository
    assert result.chunks_deleted == case.size, result
    session = case.open().readonly_session("main")
    assert (open_array(session.store)[:] == noise(4 * 4096)).all()


WORKLOADS = (
    Workload(
        name="collect",
        title="collect {size} chunk files from a disk",
        sizes=(400, 4_000, 40_000),
        goals=(Goal(0.7),),
        prepare=_garbage,
        setup=_collector,
        run=_collect,
        check=_all_gone,
    ),
)
