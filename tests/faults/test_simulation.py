"""Whole workloads on one seed: schedules keep every promise, and planted bugs do not go unseen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.planted import BUGS

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.exceptions import ConflictError, RebaseFailedError
from airflow_provider_icechunk.testing.simulation import (
    EndlessError,
    Faults,
    Process,
    Simulation,
    SimulationError,
    SimulationOptions,
    ViolationError,
    simulate,
)
from airflow_provider_icechunk.testing.simulation.model import CellValues, perform

SCHEDULES = 300
WITHIN = 10_000
"""Schedules in which each planted bug has to be found."""
AN_HOUR = 3_600
QUICK = {"no_token", "blind_update", "lost_is_moved", "lost_fragment", "same_ids"}
"""Bugs that are looked for in every run of the tests; the others in the long form."""
DOCS = Path(__file__).parents[2] / "docs"
GUARANTEES = DOCS / "guarantees.md"
TABLE = {
    what: int(seed.replace(",", ""))
    for what, seed in re.findall(
        r"^\| ([a-z].*?) \| (\d[\d,]*) \|$", GUARANTEES.read_text(), re.MULTILINE
    )
}
"""The planted bugs and the first schedule that finds each."""
PAGE = DOCS / "simulation.md"


@pytest.mark.filterwarnings("ignore")
def test_schedules_keep_every_promise() -> None:
    commits, errors, faults = 0, Counter[str](), Counter[str]()
    for seed in range(SCHEDULES):
        outcome = simulate(seed)
        commits += outcome.commits
        errors.update(outcome.errors)
        faults.update(outcome.faults)
    print(commits, dict(errors), dict(faults))
    # Schedules in which nothing happens would keep every promise.
    assert commits > SCHEDULES
    assert len(faults) >= 10


@pytest.mark.long
@pytest.mark.timeout(2 * AN_HOUR)
def test_a_million_schedules_or_an_hour_of_them_keep_every_promise() -> None:
    until = time.monotonic() + AN_HOUR
    done = 0
    while done < 1_000_000 and time.monotonic() < until:
        simulate(SCHEDULES + done)
        done += 1
    print(done, "schedules")
    assert done


def first_found(limit: int) -> int | None:
    """The first schedule that breaks a promise."""
    for seed in range(limit):
        try:
            simulate(seed)
        except SimulationError as error:
            print(error)
            return seed
    return None


@pytest.mark.parametrize("seed", [3, 17, 23])
def test_a_seed_gives_the_same_schedule_each_time(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


def test_a_seed_gives_the_same_schedule_in_every_process() -> None:
    script = (
        "from airflow_provider_icechunk.testing.simulation import simulate\n"
        "print([simulate(seed).digest for seed in range(8)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(told) == 1


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=[] if plant.__name__ in QUICK else [pytest.mark.long])
        for what, plant in BUGS.items()
    ],
)
@pytest.mark.timeout(3_600)
def test_a_planted_bug_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[what](monkeypatch)
    found = first_found(WITHIN)
    print(f"| {what} | {found} |")
    assert found is not None


# Long, because a request more or less in the engine gives every seed another schedule.
@pytest.mark.long
@pytest.mark.parametrize("what", BUGS)
def test_the_schedule_in_the_guarantees_finds_its_planted_bug(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = TABLE[what]
    assert seed < WITHIN
    simulate(seed)
    BUGS[what](monkeypatch)
    with pytest.raises(SimulationError):
        simulate(seed)


def test_the_table_in_the_guarantees_has_every_planted_bug() -> None:
    assert list(TABLE) == list(BUGS)


@pytest.mark.filterwarnings("ignore")
def test_the_pipeline_of_the_documentation_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "documentation"})


def quiet(seed: int) -> Simulation:
    return Simulation(SimulationOptions.drawn(seed, faults=Faults(calls=0), is_folder=False))


def test_a_pipeline_of_ones_own_is_run_and_checked() -> None:
    def task(here: Process) -> None:
        session = here.open().writable_session("main")
        intent = here.ledger.intend("main", [CellValues("/a", 0, 600, 7)])
        perform(session, intent.edits)
        try:
            here.commit(session, intent, rebase_with=ConflictDetector())
        except (ConflictError, RebaseFailedError):
            here.notes["refused"] = True

    simulation = quiet(1)
    notes: list[dict[str, object]] = [{}, {}]
    for number, kept in enumerate(notes):
        simulation.start(f"task{number}", task, kept)
    outcome = simulation.run()
    # The last one is the commit with which each simulation ends.
    assert outcome.commits == 3 - sum("refused" in kept for kept in notes)


def test_an_actor_that_does_not_end_is_told_with_its_seed() -> None:
    def restless(here: Process) -> None:
        while True:
            here.wait(seconds=1)

    simulation = quiet(5)
    simulation.start("restless", restless)
    with pytest.raises(SimulationError, match=r"(?s)restless has not ended.*'seed': 5") as caught:
        simulation.run()
    assert isinstance(caught.value.__cause__, EndlessError)


def test_an_error_of_no_name_is_told_with_its_seed() -> None:
    def wrong(here: Process) -> None:
        here.wait(seconds=1)
        raise KeyError("a mistake")

    def right(here: Process) -> None:
        here.wait(hours=1)

    simulation = quiet(6)
    simulation.start("wrong", wrong)
    simulation.start("right", right)
    with pytest.raises(SimulationError, match=r"(?s)a mistake.*'seed': 6"):
        simulation.run()


def test_a_commit_that_was_acknowledged_and_is_not_there_is_a_violation() -> None:
    def liar(here: Process) -> None:
        intent = here.ledger.intend("main", [CellValues("/a", 0, 600, 7)])
        here.ledger.acknowledge(intent, "never stored")

    simulation = quiet(7)
    simulation.start("liar", liar)
    with pytest.raises(SimulationError, match="never stored") as caught:
        simulation.run()
    assert isinstance(caught.value.__cause__, ViolationError)
