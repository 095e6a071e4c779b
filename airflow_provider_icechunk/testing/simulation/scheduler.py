"""Tasks of which exactly one runs at a time, switched on request, in virtual time.

Each task has a thread of its own, since the simulated code is ordinary synchronous code. Only the
holder of a baton runs, and its next holder is drawn from the seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

START = datetime(2026, 1, 1, tzinfo=UTC)


class Over(BaseException):
    """The schedule has ended; tasks that still run are unwound. Not to be caught."""


class EndlessError(AssertionError):
    """Some task did not end within the bound."""


class VirtualClock:
    """A clock that advances only when a task waits or calls the store."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        """The time."""
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Policy:
    """How the next task is chosen."""

    name: str = "even"
    """`even`: any; `sticky`: mostly the same; `ranked`: by ranks that change a few times."""
    switch: float = 1.0
    """For `sticky`: the probability of a change."""
    changes: frozenset[int] = frozenset()
    """For `ranked`: the steps after which the running task becomes the last in rank."""

    @classmethod
    def drawn(cls, random: Random) -> Policy:
        """A policy at random; ranks that change d times find bugs that need d unlucky moments."""
        name = random.choice(("even", "sticky", "sticky", "ranked", "ranked"))
        switch = random.choice((0.02, 0.1, 0.3)) if name == "sticky" else 1.0
        count = random.randint(1, 4) if name == "ranked" else 0
        changes = frozenset(int(400 * random.random() ** 2) for _ in range(count))
        return cls(name, switch, changes)


class SimulatedTask:
    """One thread of work."""

    __slots__ = ("error", "go", "ident", "is_over", "name", "rank", "wakes")

    def __init__(self, name: str, rank: float) -> None:
        self.name = name
        self.rank = rank
        self.go = threading.Lock()
        self.go.acquire()
        self.ident = 0
        self.wakes: datetime = START
        self.is_over = False
        self.error: BaseException | None = None


CURRENT: ContextVar[SimulatedTask | None] = ContextVar("CURRENT", default=None)
"""The task for which code runs, even in a thread that the task waits for."""


class Scheduler:
    """Runs tasks to their end, one at a time.

    :param limit: steps after which a schedule counts as endless.
    """

    def __init__(
        self, random: Random, policy: Policy, clock: VirtualClock, *, limit: int = 20_000
    ) -> None:
        self._random = random
        self._policy = policy
        self.clock = clock
        self._limit = limit
        self._tasks: list[SimulatedTask] = []
        self._current: SimulatedTask | None = None
        self._main = threading.Lock()
        self._main.acquire()
        self._is_over = False
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self.steps = 0

    def spawn(self, name: str, act: Callable[[], None]) -> SimulatedTask:
        """Add a task; it begins when it is chosen."""
        task = SimulatedTask(name, self._random.random())
        task.wakes = self.clock.now
        thread = threading.Thread(target=self._live, args=(task, act), name=name, daemon=True)
        self._tasks.append(task)
        self._threads.append(thread)
        thread.start()
        return task

    def run(self) -> None:
        """Run until every task has ended; the first error ends them all."""
        if self._tasks:
            self._hand_to(self._choose())
            self._main.acquire()
        self._is_over = True
        for task in list(self._tasks):
            task.go.release()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def step(self) -> None:
        """A point at which another task may take over."""
        task = self._current
        # A thread that a task waits for runs to its end: no other task can take over in it.
        if task is None or task.ident != threading.get_ident():
            return
        self.steps += 1
        if self.steps > self._limit:
            raise EndlessError(f"{task.name} has not ended after {self.steps} steps")
        self._switch(task)

    def wait(self, seconds: float) -> None:
        """Continue when this much time has passed."""
        task = self._current
        if task is None or task.ident != threading.get_ident():
            self.clock.pass_by(seconds)
            return
        task.wakes = self.clock.now + timedelta(seconds=seconds)
        self.step()

    def _live(self, task: SimulatedTask, act: Callable[[], None]) -> None:
        task.go.acquire()
        task.ident = threading.get_ident()
        CURRENT.set(task)
        try:
            if not self._is_over:
                act()
        except Over:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            task.error = error
            self._failure = self._failure or error
        task.is_over = True
        self._tasks.remove(task)
        if self._is_over:
            return
        if self._failure is not None or not self._tasks:
            self._current = None
            self._is_over = True
            self._main.release()
        else:
            self._hand_to(self._choose())

    def _switch(self, task: SimulatedTask) -> None:
        following = self._choose()
        if following is not task:
            self._hand_to(following)
            task.go.acquire()
            if self._is_over:
                raise Over

    def _hand_to(self, task: SimulatedTask) -> None:
        self._current = task
        task.go.release()

    def _choose(self) -> SimulatedTask:
        now = self.clock.now
        ready = [task for task in self._tasks if task.wakes <= now]
        if not ready:
            first = min(task.wakes for task in self._tasks)
            self.clock.now = first
            ready = [task for task in self._tasks if task.wakes <= first]
        if len(ready) == 1:
            return ready[0]
        policy = self._policy
        if policy.name == "ranked":
            if self.steps in policy.changes and self._current is not None:
                self._current.rank = -self.steps
            return max(ready, key=lambda task: task.rank)
        current = self._current
        is_sticky = policy.name == "sticky" and current in ready
        if is_sticky and current is not None and self._random.random() >= policy.switch:
            return current
        return ready[int(self._random.random() * len(ready))]
