"""Which task instance this is, in names that stay the same over its retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context


def task_identity(context: Context) -> str:
    """Dag, run, task and map index: the same for every attempt of a task instance."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{index}"


def task_metadata(context: Context) -> dict[str, str | int]:
    """Who commits, for the metadata of a snapshot; a run without a logical date has none there."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    date = context.get("logical_date")
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": index,
        "try_number": ti.try_number,
        **({} if date is None else {"logical_date": date.isoformat()}),
    }


def earliest_start(context: Context) -> datetime | None:
    """The time before which the run cannot have committed anything, if it is known.

    Not the start of the run, which moves when the run is cleared.
    """
    run = context.get("dag_run")
    return None if run is None else run.run_after
