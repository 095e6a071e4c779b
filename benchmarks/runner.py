"""Carry out the measurements: contenders take turns, every one in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from benchmarks.model import Measurement, Place, Workload, nothing
from benchmarks.proxy import Far

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 1800.0
_BRIEF = 1.0
"""Seconds."""


class RunError(Exception):
    """A measured process failed; the message ends with its output."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: sizes of a workload, and how often each."""

    workload: Workload
    sizes: tuple[int, ...]
    rounds: int
    most: int = 0
    """How many rounds there are if all of them are brief, because those are noisier."""
    by_the_clock: bool = False
    """Whether further rounds are made while there is time for them."""


def plan(
    workloads: Sequence[Workload],
    *,
    quick: bool,
    rounds: int | None,
    only: Sequence[str] = (),
    thorough: bool = False,
) -> list[Plan]:
    """What a run measures: everything at two sizes, or one size once.

    Unless `rounds` sets the number: once, and up to five times while there is time. A thorough run
    has three sizes and three rounds, and nine of brief workloads that need no new preparation.
    """
    chosen = [w for w in workloads if not only or any(name in w.name for name in only)]
    if quick:
        return [
            Plan(workload, (workload.sizes[workload.quick],), rounds or 1) for workload in chosen
        ]
    if thorough:
        most = 0 if rounds else 9
        return [
            Plan(workload, workload.sizes, rounds or 3, most if workload.repeatable else 0)
            for workload in chosen
        ]
    return [
        Plan(
            workload,
            tuple(sorted({workload.sizes[workload.quick], workload.sizes[-1]})),
            rounds or 1,
            0 if rounds else 5,
            by_the_clock=not rounds,
        )
        for workload in chosen
    ]


@dataclass(slots=True)
class Hours:
    """Shares the time of a run among the sizes that are left."""

    ends: float
    sizes: int
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, planned: Sequence[Plan], minutes: float) -> Hours:
        """From now on."""
        return cls(time.monotonic() + 60 * minutes, sum(len(one.sizes) for one in planned))

    def share(self) -> float:
        """The time until which the next size may be measured."""
        now = self.clock()
        until = now + max(0.0, self.ends - now) / max(1, self.sizes)
        self.sizes -= 1
        return until


@dataclass(slots=True)
class Runner:
    """Starts measured processes and collects their results."""

    interpreters: Mapping[str, str]
    """Which Python runs a contender; one without is skipped."""
    missing: Mapping[str, str]
    """Why a contender has none."""
    folder: Path
    endpoint: str | None
    profiles: Path | None = None
    far: Far | None = None
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def run(
        self, planned: Plan, tell: Callable[[Measurement], None], hours: Hours | None = None
    ) -> list[Measurement]:
        """All measurements of one workload."""
        found: list[Measurement] = []
        for size in planned.sizes:
            turns = _Turns(self, planned.workload, size)
            until = hours.share() if planned.by_the_clock and hours is not None else None
            try:
                brief = True
                for number in range(max(planned.rounds, planned.most)):
                    enough = not brief if until is None else time.monotonic() > until
                    if number >= planned.rounds and enough:
                        break
                    for contender in rotated(planned.workload.contenders, number):
                        try:
                            found.append(turns.take(contender))
                        except RunError:
                            # The page must not omit it without a word.
                            about = (planned.workload.name, contender, size)
                            tell(Measurement(*about, skipped="failed"))
                            raise
                        brief = brief and found[-1].seconds < _BRIEF
                        tell(found[-1])
            finally:
                turns.clean()
        return found

    def fresh(self, workload: Workload, contender: str, size: int) -> dict[str, object]:
        """A request for an unused place."""
        name = f"{workload.name}-{size}-{contender}-{next(self._numbers)}"
        folder = self.folder / name
        folder.mkdir()
        return {
            "workload": workload.name,
            "contender": contender,
            "size": size,
            "folder": str(folder),
            "endpoint": self._endpoint(workload.place),
            "counters": self.far.counters if self.far and workload.place == "far" else None,
            "prefix": name,
            "answer": str(folder / "answer.json"),
            "profile": str(self.profiles / f"{name}.txt") if self.profiles else None,
        }

    def _endpoint(self, place: Place) -> str | None:
        if place == "local":
            return None
        return self.far.endpoint if place == "far" and self.far else self.endpoint

    def start(self, order: Mapping[str, object], phase: str) -> dict[str, object]:
        """Run one process to its end and return its result."""
        contender = str(order["contender"])
        command = [self.interpreters[contender], "-m", "benchmarks.child"]
        done = subprocess.run(
            [*command, json.dumps({**order, "phase": phase})],
            cwd=ROOT,
            env={**os.environ, "ICECHUNK_LOG": "error"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode:
            what = f"{order['workload']} ({phase}, {contender}, size {order['size']})"
            raise RunError(f"{what} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        answer: dict[str, object] = json.loads(Path(str(order["answer"])).read_text())
        self.versions[contender] = answer.pop("versions")  # type: ignore[assignment]
        return answer


@dataclass(slots=True)
class _Turns:
    """The places of one workload at one size, reused where that is allowed."""

    runner: Runner
    workload: Workload
    size: int
    prepared: dict[str, dict[str, object]] = field(default_factory=dict)

    def take(self, contender: str) -> Measurement:
        """Measure one contender once."""
        about = (self.workload.name, contender, self.size)
        if contender not in self.runner.interpreters:
            return Measurement(*about, skipped=self.runner.missing.get(contender, "not available"))
        order = self.prepared.get(contender)
        if order is None:
            order = self.runner.fresh(self.workload, contender, self.size)
            if self.workload.prepare is not nothing:
                by = self.workload.prepared_by or contender
                near = {"endpoint": self.runner.endpoint} if order["endpoint"] else {}
                self.runner.start({**order, **near, "contender": by}, "prepare")
            self.prepared[contender] = order
        try:
            answer = self.runner.start(order, "measure")
        finally:
            if not self.workload.repeatable:
                self._forget(contender)
        return Measurement(*about, **answer)  # type: ignore[arg-type]

    def clean(self) -> None:
        """Remove what is left."""
        for contender in list(self.prepared):
            self._forget(contender)

    def _forget(self, contender: str) -> None:
        shutil.rmtree(str(self.prepared.pop(contender)["folder"]))


def rotated(contenders: tuple[str, ...], number: int) -> tuple[str, ...]:
    """A different one begins each round: what helps the second must not always help the same."""
    first = number % len(contenders)
    return contenders[first:] + contenders[:first]
