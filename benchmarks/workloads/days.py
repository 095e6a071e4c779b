"""A backfill: every writer adds one day to one growing array on S3.

Ours all write at once, as the runs of a DAG do, and rebase. The official package conflicts when two
sessions resize one array, so there the same days are written one after another.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.model import OFFICIAL_1, OURS, Case, Goal, Workload
from benchmarks.workloads.arrays import noise, open_array

FIELD = (721, 1440)
"""Latitudes and longitudes, four bytes each."""

_CONTEXT = multiprocessing.get_context("forkserver")


def _values() -> Any:
    import numpy as np

    return noise(FIELD[0] * FIELD[1] * 4).view(np.uint32).reshape(FIELD)


def _create(case: Case) -> None:
    import zarr

    session = case.create_1().writable_session("main")
    zarr.create_array(
        session.store,
        name="data",
        shape=(1, *FIELD),
        chunks=(1, *FIELD),
        dtype="uint32",
        compressors=None,
    )
    session.commit("array")


def _write(case: Case, day: int, values: Any) -> None:
    """One run: open, grow, write, commit."""
    session = case.open().writable_session("main")
    array = open_array(session.store, mode="r+")
    if array.shape[0] <= day:
        array.resize((day + 1, *FIELD))
    if not case.is_ours:
        array[day] = values
        session.commit(f"day {day}")
        return
    box = [(day, day + 1), *((0, length) for length in FIELD)]
    with session.recording({"data": box}):
        array[day] = values
    session.commit(f"day {day}", rebase_with=case.library.MergeSolver())


def _run_of(case: Case, day: int, gate: Connection) -> None:
    case.import_everything()
    values = _values()
    gate.send("ready")
    gate.recv()
    _write(case, day, values)


Writers = list[tuple[BaseProcess, Connection]]


def _setup(case: Case) -> Writers | Any:
    """Ours: processes that wait for a signal. The official package: what it writes."""
    _create(case)
    if not case.is_ours:
        return _values()
    modules = ["zarr", "boto3", "airflow_provider_icechunk.api", __name__]
    _CONTEXT.set_forkserver_preload(modules)
    writers: Writers = []
    for day in range(case.size):
        here, there = _CONTEXT.Pipe()
        writer = _CONTEXT.Process(target=_run_of, args=(case, day, there), daemon=True)
        writer.start()
        there.close()
        writers.append((writer, here))
    for _, gate in writers:
        gate.recv()
    return writers


def _run(case: Case, state: Writers | Any) -> None:
    if not case.is_ours:
        for day in range(case.size):
            _write(case, day, state)
        return
    for _, gate in state:
        gate.send("go")
    for writer, _ in state:
        writer.join()
    codes = [writer.exitcode for writer, _ in state]
    assert not any(codes), codes


def _every_day_is_there(case: Case, state: Any, result: None) -> None:
    del state, result
    repository = case.open()
    assert len(list(repository.ancestry(branch="main"))) == case.size + 2
    data = open_array(repository.readonly_session("main").store)
    assert data.shape == (case.size, *FIELD)
    values = _values()
    assert all((data[day] == values).all() for day in range(case.size))


WORKLOADS = (
    Workload(
        name="days",
        title="{size} writers at once, a day of 4 MiB each, against one after the other",
        sizes=(4, 8, 32),
        quick=0,
        goals=(Goal(0.5, against=(OFFICIAL_1,)),),
        place="far",
        setup=_setup,
        run=_run,
        check=_every_day_is_there,
        contenders=(OURS, OFFICIAL_1),
    ),
)
