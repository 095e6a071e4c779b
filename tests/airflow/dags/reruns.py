"""Tasks that are retried, cleared and backfilled: each writes what a file holds by then."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator

SIGNS = Path(os.environ.get("TEST_SIGNS", "/nonexistent"))
MAIN = Asset(name="reruns_main", uri="icechunk://test/reruns?branch=main")
HERE = {"repository": "{{ dag.dag_id }}"}
FIELD = {"path": "chained", "shape": [4], "chunks": [2], "dtype": "int64"}


def value() -> int:
    """What the file upstream holds by now."""
    return int((SIGNS / "value").read_text())


def put(store: Any, name: str, place: int = 0) -> int:
    import zarr

    root = zarr.open_group(store, mode="a")
    array = root.require_array(name, shape=(4,), chunks=(1,), dtype="int64")
    array[place] = value()
    return value()


def crash_once(context: Any, result: Any) -> None:
    """The worker dies after the commit, before Airflow hears of it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("died after the commit")


def linger(context: Any, result: Any) -> None:
    """Stand still after the commit, as long as it is the first attempt."""
    if context["ti"].try_number == 1:
        (SIGNS / "lingering").write_text("committed")
        time.sleep(900)


with DAG("reruns", schedule=None, catchup=False, max_active_tasks=1):
    create = IcechunkCreateRepositoryOperator(task_id="create", **HERE)

    @task.icechunk(
        retries=1, retry_delay=timedelta(seconds=1), post_execute=crash_once, outlets=[MAIN], **HERE
    )
    def alone(store: Any) -> dict[str, int]:
        """One array in one task."""
        return {"wrote": put(store, "alone")}

    @task.icechunk(outlets=[MAIN], **HERE)
    def idle(store: Any) -> str:
        """Look, and write nothing."""
        return f"nothing to do in {store}"

    @task.icechunk(outlets=[MAIN], on_rerun="skip", **HERE)
    def once(store: Any) -> int:
        """Written once, whatever is cleared."""
        return put(store, "once")

    @task.icechunk(**HERE)
    def mapped(store: Any, place: int) -> int:
        """One place of an array for each mapped task."""
        return put(store, "mapped", place)

    session = IcechunkOpenSessionOperator(task_id="open", arrays=[FIELD], **HERE)

    @task
    def write(session: dict[str, Any], first: int) -> None:
        """What a worker does: write chunks through a fork and leave a fragment."""
        import zarr

        from airflow_provider_icechunk.api import Repository
        from airflow_provider_icechunk.engine.pipelines.description import parse_session
        from airflow_provider_icechunk.engine.workers.jobs import JobFolder

        described = parse_session(session)
        repository = Repository.open(described.place.storage())
        fork = repository.fork(described.work_unit)
        zarr.open_array(fork.store, path="chained", mode="r+")[first : first + 2] = value()
        writer = f"from-{first}"
        folder = JobFolder(repository.storage, fork.work.job)
        folder.put_fragment(writer, fork.fragment(writer))

    written = write.partial(session=session.output).expand(first=[0, 2])
    commit = IcechunkCommitOperator(task_id="commit", session=session.output, message="chain")
    create >> [idle(), once()] >> alone() >> mapped.expand(place=[0, 1, 2]) >> session
    written >> commit

with DAG("lingering", schedule=None, catchup=False):
    create = IcechunkCreateRepositoryOperator(task_id="create", **HERE)

    @task.icechunk(post_execute=linger, **HERE)
    def stand(store: Any) -> int:
        """Commit, and then keep running."""
        return put(store, "field")

    create >> stand()

with DAG(
    "daily",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    end_date=datetime(2026, 1, 2, tzinfo=UTC),
    catchup=True,
    max_active_runs=1,
):
    create = IcechunkCreateRepositoryOperator(task_id="create", **HERE)

    @task.icechunk(**HERE)
    def day(store: Any, logical_date: datetime) -> int:
        """One place for each day."""
        return put(store, "field", logical_date.day - 1)

    create >> day()
