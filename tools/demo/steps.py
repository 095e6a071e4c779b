"""The steps of the tour, one function each, in order."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo import upstream
from tools.demo.airflow_process import AirflowProcess
from tools.demo.settings import DATA, REPOSITORY, UPSTREAM, TourError

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository

FOLDER = DATA / REPOSITORY
KEPT = 2
"""The number of versions of `main` that the tour keeps when it expires the others."""
FIRST = (16, 6)
"""The days that are written first, both at once: the array must grow for each of them."""
OTHERS = ((1, 3, 5), (2, 4, 7))
"""The days of the backfill, those of each Airflow."""
CLEARED = 6
DAYS = tuple(sorted([*FIRST, *OTHERS[0], *OTHERS[1]]))


def open_repository() -> Repository:
    """The repository as currently stored; an open one remembers what it has read."""
    from airflow_provider_icechunk.api import Repository, local_filesystem_storage

    return Repository.open(local_filesystem_storage(FOLDER))


def start_over() -> None:
    """Every tour starts over: old data are removed, and a file for each day arrives."""
    for folder in (DATA, UPSTREAM):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for day in DAYS:
        upstream.put(UPSTREAM, day, upstream.field(day))


def both_grow(airflows: tuple[AirflowProcess, AirflowProcess]) -> str:
    """Two runs of different days at once, in an empty location; returns the run of the second."""
    run_ids = write_days(airflows, ((FIRST[0],), (FIRST[1],)))
    print(
        f"  Both created the repository, the array and its coordinates; {upstream.date(FIRST[0])}"
    )
    print(
        "  needs 16 days and the other run 6. The later commit was rebased and the growth merged:"
    )
    show_coverage()
    return run_ids[-1]


def write_days(
    airflows: tuple[AirflowProcess, AirflowProcess], days: tuple[tuple[int, ...], ...]
) -> list[str]:
    """Run one day after another in each Airflow, in all at once; returns the ids of the runs."""
    for airflow, own in zip(airflows, days, strict=True):
        for day in own:
            airflow.begin("icechunk_tour", date=f"{upstream.date(day)}T00:00:00+00:00")
    run_ids = []
    for number, (airflow, own) in enumerate(zip(airflows, days, strict=True), 1):
        for day in own:
            print(f"  Airflow {number}, the run of {upstream.date(day)}:", flush=True)
            airflow.finish()
            run_ids.append(airflow.run_id)
    return run_ids


def backfill(airflows: tuple[AirflowProcess, AirflowProcess], downstream: AirflowProcess) -> None:
    """The days that are missing, two at a time; a third Airflow waits for the whole week."""
    downstream.begin("icechunk_tour_week")
    print("  A third Airflow, independent of the others:")
    downstream.show_until("wait until")
    write_days(airflows, OTHERS)
    print("  The third Airflow:")
    found = downstream.finish()
    print(f"      mean of the week: {found['add_mean']['result']:.2f} K")
    show_coverage()


def show_coverage() -> None:
    """Print which days are present, and which are missing."""
    from airflow_provider_icechunk.engine.datasets.coverage import coverage

    found = coverage(open_repository(), "temperature", dim="time")
    print(f"      present: {_ranges(found.present)}")
    print(f"      missing: {_ranges(_joined(found.missing))}")


def _joined(labels: Iterable[object]) -> list[tuple[object, object]]:
    """Consecutive days as first and last."""
    joined: list[tuple[date, date]] = []
    for day in (date.fromisoformat(str(label)[:10]) for label in labels):
        if joined and day - joined[-1][1] == timedelta(days=1):
            joined[-1] = (joined[-1][0], day)
        else:
            joined.append((day, day))
    return list(joined)


def _ranges(labels: Iterable[tuple[object, object]]) -> str:
    shown = [(str(first)[:10], str(last)[:10]) for first, last in labels]
    texts = [first if first == last else f"{first} to {last}" for first, last in shown]
    return ", ".join(texts) or "none"


def clear_day(airflow: AirflowProcess, run_id: str) -> str:
    """New data arrive for a day, and its run is cleared; returns the snapshot before."""
    before = open_repository().lookup_branch("main")
    upstream.put(UPSTREAM, CLEARED, upstream.corrected(CLEARED))
    print(f"  A new file arrives for {upstream.date(CLEARED)}, and its run is cleared:")
    result = airflow.run_again("icechunk_tour", run_id)["write"]
    if "supersedes" not in result:
        raise TourError(f"The run {run_id} does not know that it committed before.")
    print(f"      it supersedes {result['supersedes']}; all other days stay as they are")
    return before


def maintenance(airflow: AirflowProcess) -> None:
    """Expire and collect, each after a dry run, and verify."""
    now = {"older_than": "0s", "minimum_age": "0s", "keep_last": KEPT}
    results = airflow.run("icechunk_maintenance", repository=REPOSITORY, **now)
    planned, done = results["plan_collection"], results["collect"]
    for name, result in (("would be", planned), ("were", done)):
        print(
            f"      {result['bytes_deleted']:,} bytes {name} deleted: "
            f"{result['chunks_deleted']} chunk files, {result['manifests_deleted']} manifests, "
            f"{result['snapshots_deleted']} snapshots"
        )
    if planned["bytes_deleted"] != done["bytes_deleted"]:
        raise TourError("The collection deleted something else than its dry run said.")
    checked = results["verify"]["checked"]
    print("      verified: " + ", ".join(f"{count} {what}" for what, count in checked.items()))


def expected(folder: Path = UPSTREAM) -> dict[int, upstream.Field]:
    """The input files, by position: what every reader must get."""
    import numpy as np

    return {day - 1: np.load(folder / f"{upstream.date(day)}.npy") for day in DAYS}
