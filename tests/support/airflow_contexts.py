"""The Airflow context of an operator when a test calls its `execute` directly."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

RETRIES = 2


def make_context(
    task_id: str = "task",
    run_id: str = "run",
    try_number: int = 1,
    *,
    map_index: int = -1,
    max_tries: int = RETRIES,
) -> Any:
    ti = SimpleNamespace(
        dag_id="dag",
        run_id=run_id,
        task_id=task_id,
        map_index=map_index,
        try_number=try_number,
        max_tries=max_tries,
        task=SimpleNamespace(retries=RETRIES),
        get_first_reschedule_date=lambda _: None,
    )
    return {
        "ti": ti,
        "outlet_events": defaultdict(lambda: SimpleNamespace(extra={})),
    }


def retried(context: Any) -> dict[str, Any]:
    """The same task after its attempt failed."""
    ti = context["ti"]
    return make_context(
        ti.task_id,
        ti.run_id,
        ti.try_number + 1,
        map_index=ti.map_index,
        max_tries=ti.max_tries,
    )


def cleared(context: Any, *, retries: int = RETRIES) -> dict[str, Any]:
    """The same task after it was cleared: Airflow allows it the same number of attempts again."""
    ti = context["ti"]
    return make_context(
        ti.task_id,
        ti.run_id,
        ti.try_number + 1,
        map_index=ti.map_index,
        max_tries=ti.try_number + retries,
    )
