"""One bounded thread pool for each process, shared by everything that waits for storage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from time import perf_counter
from typing import Generic, TypeVar

from airflow_provider_icechunk.storage.process import PerProcess

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 64
"""Most threads a process ever waits for storage with."""
_BRIEF = 0.0001
"""Seconds for an item below which threads cost more than they save."""
_START = 0.001
"""Seconds that the first items may take longer."""


def run_all(
    function: Callable[[Item], Result], items: Sequence[Item], *, at_once: int
) -> list[Result]:
    """`function` of each item, at most `at_once` at a time, results in the order of the items.

    The first failure stops what has not begun, and is raised when what had begun is over. Called
    from inside the pool it works through the items in the calling thread: waiting there for other
    threads of the same pool could wait for ever.
    """
    lanes = min(at_once, len(items), THREADS)
    if lanes <= 1 or getattr(_here, "inside", False):
        return [function(item) for item in items]
    work = _Work(function, items)
    executor = _EXECUTOR.get()
    # Each lane in a copy of the caller's context, which holds how much memory a file may take.
    waiting = [executor.submit(copy_context().run, work.lane) for _ in range(lanes)]
    for lane in waiting:
        lane.result()
    if work.failure is not None:
        raise work.failure
    return [work.results[place] for place in range(len(items))]


def run_while_brief(
    function: Callable[[Item], Result], items: Sequence[Item], *, at_once: int
) -> list[Result]:
    """Like `run_all`, for items that often take less time than handing them to a thread.

    Works through them in the calling thread, and leaves the rest to the pool as soon as they turn
    out to take longer: small files of a disk do not, those of a network or large ones do.
    """
    results = []
    allowed = perf_counter() + _START
    for item in items:
        results.append(function(item))
        allowed += _BRIEF
        if perf_counter() > allowed:
            break
    return results + run_all(function, items[len(results) :], at_once=at_once)


def submit(function: Callable[[], Result]) -> Future[Result]:
    """Call `function` in a thread of the pool."""

    def inside() -> Result:
        _here.inside = True
        return function()

    return _EXECUTOR.get().submit(copy_context().run, inside)


class _Work(Generic[Item, Result]):
    """Items that several threads take from; a future for each item would cost more than a read."""

    def __init__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._function = function
        self._todo = iter(enumerate(items))
        self._lock = threading.Lock()
        self.results: dict[int, Result] = {}
        self.failure: BaseException | None = None

    def lane(self) -> None:
        _here.inside = True
        while True:
            with self._lock:
                taken = None if self.failure is not None else next(self._todo, None)
            if taken is None:
                return
            place, item = taken
            try:
                self.results[place] = self._function(item)
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
                with self._lock:
                    self.failure = self.failure or error


_here = threading.local()
_EXECUTOR = PerProcess(lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="icechunk-storage"))
