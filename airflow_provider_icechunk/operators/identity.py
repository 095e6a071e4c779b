"""Which task instance this is, and which attempt of which run of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.hooks.reruns import ON_RERUN, Attempt, OnRerun
from airflow_provider_icechunk.operators.base import check_choice

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

_CLOCKS_DIFFER = timedelta(hours=1)


def task_identity(context: Context) -> str:
    """Dag, run, task and map index: the same for every attempt of a task instance."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{index}"


def attempt_of(context: Context, on_rerun: OnRerun = "replace") -> Attempt:
    """The attempt that runs in this context."""
    check_choice("on_rerun", on_rerun, ON_RERUN)
    ti = context["ti"]
    retries = getattr(getattr(ti, "task", None), "retries", None) or 0
    most = getattr(ti, "max_tries", None) or 0
    return Attempt(
        task_identity(context),
        run=most,
        number=ti.try_number,
        is_rerun=most > retries,
        is_first=ti.try_number <= most - retries + 1,
        since=_earliest_start(context),
        on_rerun=on_rerun,
    )


def task_metadata(context: Context) -> dict[str, Any]:
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


def _earliest_start(context: Context) -> datetime | None:
    """The time before which the task cannot have committed anything, if it is known.

    Of a first attempt that is its own start. Later it is the time from which its run could start,
    less what clocks differ by: the moment at which the run did start moves when it is cleared.
    """
    ti, run = context["ti"], context.get("dag_run")
    if ti.try_number <= 1 and getattr(ti, "start_date", None) is not None:
        start: datetime = ti.start_date
        return start
    return None if run is None else run.run_after - _CLOCKS_DIFFER
