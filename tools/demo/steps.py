"""The steps of the tour, one function each, in the order in which they are told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo.airflow_process import AirflowProcess
from tools.demo.other_writer import MESSAGE
from tools.demo.settings import DATA, REPOSITORY, TourError

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository

FOLDER = DATA / REPOSITORY
KEPT = 2
"""How many versions of `main` the tour keeps when it expires the others."""


def open_repository() -> Repository:
    """The repository as it is stored now; an open one remembers what it has read."""
    from airflow_provider_icechunk.api import Repository, local_filesystem_storage

    return Repository.open(local_filesystem_storage(FOLDER))


def start_over(folder: Path = DATA) -> None:
    """Every tour tells the whole story: the data of the last one goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def quick_start(airflow: AirflowProcess) -> str:
    """Create, write with Spark, commit, tag; returns the snapshot that was tagged."""
    results = airflow.run("icechunk_quickstart", repository=REPOSITORY)
    snapshot: str = results["tag"]["snapshot_id"]
    return snapshot


def correction(airflow: AirflowProcess) -> None:
    """A commit that meets another one, and is rebased."""
    base = open_repository().lookup_branch("main")
    committed = airflow.run("icechunk_tour_correction", repository=REPOSITORY)["correct"]
    repository = open_repository()
    other = repository.lookup_snapshot(committed["parent_id"])
    if (other.parent_id, other.message) != (base, MESSAGE):
        raise TourError(f"The commit {committed['snapshot_id']} was not made on top of the other.")
    print(f"      it was written on {base},")
    print(f"      where {other.id} was committed meanwhile: “{other.message}”;")
    print("      it was rebased: the other's chunks are kept, and of the one chunk that both")
    print("      wrote, ours (`on_chunk_conflict='ours'`)")


def append_and_downstream(airflow: AirflowProcess, downstream: AirflowProcess) -> None:
    """A second Airflow waits for a commit; the append that the first one makes lets it go on."""
    since = open_repository().lookup_branch("main")
    downstream.begin("icechunk_downstream", repository=REPOSITORY, since=since)
    print("  In a second Airflow that knows nothing of the first:")
    downstream.show_until("wait for a commit")
    print("  In the first one:")
    appended = airflow.run("icechunk_append_year", repository=REPOSITORY, years=1)["append"]
    print("  In the second one:")
    found = downstream.finish()
    seen = found["wait_for_commit"]["snapshot_id"]
    if seen != appended["snapshot_id"]:
        raise TourError(f"The sensor found {seen}, not {appended['snapshot_id']}.")
    print(f"      the sensor found {seen}: {found['add_means']['result']} days")


def upkeep(airflow: AirflowProcess) -> None:
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
