"""Processes that write one day each into one growing array, and may be killed at any time."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from support.recording import RecordingStorage
from support.writers import CONTEXT, Done, Place, passed, started, write_whole

from airflow_provider_icechunk.engine.arrays.declared import apply_arrays, parse_arrays
from airflow_provider_icechunk.engine.commit.merge import MergeSolver
from airflow_provider_icechunk.engine.history.ancestry import TOKEN_KEY
from airflow_provider_icechunk.engine.pipelines.reruns import Attempt
from airflow_provider_icechunk.engine.pipelines.transaction import CommitOptions, write_session
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session

SIDE = 64
DAY_BYTES = SIDE * SIDE * 8
_KILL_WITHIN = 0.4
"""Seconds between two kills, at most."""


@dataclass(frozen=True)
class Days:
    """Several days, each the work of one task that commits once, however often it is started."""

    place: Place
    notes: Path
    days: int
    step: int
    """How many days share a chunk."""

    def prepare(self) -> None:
        self.notes.mkdir()
        Repository.create(self.place.storage())

    def expected(self) -> np.ndarray:
        return np.stack([values(day) for day in range(self.days)])


def values(day: int) -> np.ndarray:
    """Different for each day; no codec makes them small enough to be stored in a manifest."""
    return np.random.default_rng(day).random((SIDE, SIDE))


def write_day(session: Session, day: int, step: int) -> None:
    """Make the array long enough and write one day."""
    array = _grown(session, day, step)
    with session.recording({"t2m": [(day, day + 1), (0, SIDE), (0, SIDE)]}):
        array[day] = values(day)


def _grown(session: Session, day: int, step: int) -> zarr.Array[Any]:
    try:
        array = zarr.open_array(session.store, path="t2m", mode="r+")
    except FileNotFoundError:
        shape = [day + 1, SIDE, SIDE]
        declared = {"path": "t2m", "shape": shape, "chunks": [step, SIDE, SIDE], "dtype": "f8"}
        apply_arrays(session.store, parse_arrays([declared]))
        return zarr.open_array(session.store, path="t2m", mode="r+")
    if array.shape[0] <= day:
        array.resize((day + 1, SIDE, SIDE))
    return array


def work(job: Days, day: int, number: int, gate: Connection) -> None:
    """What an operator does in one attempt of the task of a day."""
    storage = RecordingStorage(job.place.storage())
    repository = Repository.open(storage)
    passed(gate)
    attempt = Attempt(f"dag/day {day}", 0, number, False, number == 1, None, "replace")
    options = CommitOptions(
        attempt, f"day {day}", {"airflow": {"try_number": number}}, MergeSolver()
    )
    write_session(repository, "main", lambda one: write_day(one, day, job.step), options)
    done = Done(storage.folders["snapshots"], storage.bytes, len(storage.puts))
    write_whole(job.notes / f"{day}.done", json.dumps(asdict(done)))


def run_days(job: Days, *, kills: int = 0, seed: int = 0) -> list[Done]:
    """Run all days to their end, restarting every process that was killed."""
    chance = random.Random(seed)
    gate, lever = CONTEXT.Pipe(duplex=False)
    attempts = dict.fromkeys(range(job.days), 1)
    running = {day: started(work, (job, day, 1, gate)) for day in attempts}
    lever.close()
    killed = 0
    try:
        while running:
            patience = chance.uniform(0, _KILL_WITHIN) if killed < kills else None
            wait([process.sentinel for process in running.values()], patience)
            for day, process in list(running.items()):
                if process.exitcode is None:
                    continue
                del running[day]
                if process.exitcode == 0:
                    continue
                assert process.exitcode == -9, f"the writer of day {day} failed"
                attempts[day] += 1
                running[day] = started(work, (job, day, attempts[day], gate))
            if killed < kills and running:
                running[chance.choice(sorted(running))].kill()
                killed += 1
    finally:
        for process in running.values():
            process.kill()
            process.join()
        gate.close()
    notes = sorted(job.notes.glob("*.done"))
    return [Done(**json.loads(note.read_text())) for note in notes]


def check_days(job: Days) -> None:
    """Every day was committed exactly once, and the array holds what NumPy says."""
    repository = Repository.open(job.place.storage())
    history = list(repository.ancestry(branch="main"))[:-1]
    tokens = Counter(info.metadata.get(TOKEN_KEY) for info in history)
    assert tokens == Counter(f"dag/day {day}@0" for day in range(job.days))
    array = zarr.open_array(repository.readonly_session("main").store, path="t2m", mode="r")
    np.testing.assert_array_equal(np.asarray(array[...]), job.expected())
