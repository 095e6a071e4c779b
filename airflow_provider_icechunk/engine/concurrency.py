"""Threads: one bounded pool per process, per-process values, async twins of methods.

A twin runs its method in a thread and never blocks the event loop.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that each process creates for itself on first use.

    Locks, thread pools and sockets must not be used after a fork: a copied lock may be held
    by a thread that does not exist in the child.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: tuple[int, T] | None = None

    def get(self) -> T:
        """The value of this process."""
        pid = os.getpid()
        held = self._held
        if held is not None and held[0] == pid:
            return held[1]
        with _Making.guard:
            held = self._held
            if held is None or held[0] != pid:
                held = (pid, self._make())
                self._held = held
            return held[1]


class _Making:
    guard = threading.RLock()


def _renew_guard() -> None:
    _Making.guard = threading.RLock()


os.register_at_fork(after_in_child=_renew_guard)


WAITED: ContextVar[int] = ContextVar("WAITED", default=0)
"""How many requests this thread's work has waited for, one after the other; concurrent ones count
once. Observing storages add to it, and code that joins threads also joins their counts."""

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 64
"""Maximum number of threads per process that wait for storage."""
_BRIEF = 0.0001
"""Seconds per item below which threads cost more than they save."""
_START = 0.001
"""Extra seconds for the first items."""

Order = Callable[[int], Sequence[int]]
"""The order in which to do this many things, each once."""
_ORDER: ContextVar[Order | None] = ContextVar("_ORDER", default=None)


@contextmanager
def one_by_one(order: Order) -> Iterator[None]:
    """Within this context nothing runs in the pool: concurrent work runs in a given order.

    This lets a simulator decide what a race of threads would decide elsewhere.
    """
    token = _ORDER.set(order)
    try:
        yield
    finally:
        _ORDER.reset(token)


def run_all(
    function: Callable[[Item], Result], items: Sequence[Item], *, at_once: int
) -> list[Result]:
    """Call `function` on each item, at most `at_once` at a time; results in the order of the items.

    After a failure no further item is started, and the first error is raised when the running ones
    are done. The caller takes part in the work, so it never waits for an item that no thread has
    begun: the pool cannot deadlock, however deeply calls are nested, and brief items are done
    before a thread wakes up.
    """
    lanes = min(at_once, len(items), THREADS)
    if lanes <= 1:
        return [function(item) for item in items]
    order = _ORDER.get()
    if order is not None:
        found = {place: function(items[place]) for place in order(len(items))}
        return [found[place] for place in range(len(items))]
    work = _Work(function, items)
    executor = _EXECUTOR.get()
    # Each lane runs in a copy of the caller's context, which holds the memory allowance.
    helpers = [executor.submit(copy_context().run, work.lane) for _ in range(lanes - 1)]
    work.lane()
    for helper in helpers:
        # One that has not started has nothing left to do.
        if not helper.cancel():
            helper.result()
    WAITED.set(work.waited)
    if work.failure is not None:
        raise work.failure
    return [work.results[place] for place in range(len(items))]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of several calls that run at the same time."""
    return run_all(lambda call: call(), calls, at_once=len(calls))


def run_while_brief(
    function: Callable[[Item], Result], items: Sequence[Item], *, at_once: int
) -> list[Result]:
    """Like `run_all`, for items that often take less time than a handover to a thread.

    Starts in the calling thread, and leaves the rest to the pool once items turn out to take
    longer, as large or remote files do and small local ones do not.
    """
    results = []
    allowed = perf_counter() + _START
    for item in items:
        results.append(function(item))
        allowed += _BRIEF
        if perf_counter() > allowed:
            break
    return results + run_all(function, items[len(results) :], at_once=at_once)


class Background(Generic[Result]):
    """A call that runs in a thread of the pool while its caller goes on."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._pid = os.getpid()
        self._function = function

        def call() -> tuple[Result, int]:
            return function(), WAITED.get()

        order = _ORDER.get()
        is_late = order is not None and order(2)[0] == 1
        self._call = call
        self._future = None if is_late else submit(call)

    def result(self) -> Result:
        """Wait for the call; in a forked child, where those threads are gone, call it again."""
        if self._pid != os.getpid():
            return self._function()
        if self._future is None:
            self._future = submit(self._call)
        found, waited = self._future.result()
        WAITED.set(max(waited, WAITED.get()))
        return found

    @property
    def is_done(self) -> bool:
        """Whether `result` would not wait."""
        return self._pid == os.getpid() and self._future is not None and self._future.done()


def submit(function: Callable[[], Result]) -> Future[Result]:
    """Call `function` in a thread of the pool."""
    if _ORDER.get() is not None:
        return _done_here(function)
    return _EXECUTOR.get().submit(copy_context().run, function)


def _done_here(function: Callable[[], Result]) -> Future[Result]:
    future = Future[Result]()
    try:
        future.set_result(function())
    except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
        future.set_exception(error)
    return future


class _Work(Generic[Item, Result]):
    """A queue that several threads take from; a future per item would cost more than a read."""

    def __init__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._function = function
        self._todo = iter(enumerate(items))
        self._lock = threading.Lock()
        self.results: dict[int, Result] = {}
        self.failure: BaseException | None = None
        self._begun = self.waited = WAITED.get()

    def lane(self) -> None:
        while True:
            with self._lock:
                taken = None if self.failure is not None else next(self._todo, None)
            if taken is None:
                return
            place, item = taken
            WAITED.set(self._begun)
            try:
                self.results[place] = self._function(item)
                self.waited = max(self.waited, WAITED.get())
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
                with self._lock:
                    self.failure = self.failure or error


_EXECUTOR = PerProcess(lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="icechunk-storage"))


async def in_thread(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Call `function` in a thread."""
    # Slow to import, and unused in programs without an event loop.
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


def add_async_twins(cls: type, names: Iterable[str]) -> None:
    """Give `cls` a `<name>_async` for each of its methods in `names`."""
    for name in names:
        kind = inspect.getattr_static(cls, name)
        setattr(cls, f"{name}_async", _twin(name, kind))


def _twin(name: str, kind: object) -> object:
    if isinstance(kind, classmethod | staticmethod):

        async def on_class(cls: type, *args: Any, **kwargs: Any) -> Any:
            return await in_thread(getattr(cls, name), *args, **kwargs)

        return classmethod(_documented(on_class, name, kind.__func__))

    async def on_object(self: object, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(getattr(self, name), *args, **kwargs)

    assert callable(kind)
    return _documented(on_object, name, kind)


def _documented(
    twin: Callable[..., Coroutine[Any, Any, Any]], name: str, original: Callable[..., Any]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    functools.update_wrapper(twin, original)
    twin.__name__ = f"{name}_async"
    twin.__qualname__ = f"{original.__qualname__}_async"
    twin.__doc__ = f"`{name}`, run in a thread."
    return twin
