"""What an operator sees of Airflow when a test calls its `execute` itself."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any


def make_context(task_id: str = "task", run_id: str = "run", try_number: int = 1) -> Any:
    ti = SimpleNamespace(
        dag_id="dag",
        run_id=run_id,
        task_id=task_id,
        map_index=-1,
        try_number=try_number,
        get_first_reschedule_date=lambda _: None,
    )
    return {
        "ti": ti,
        "outlet_events": defaultdict(lambda: SimpleNamespace(extra={})),
    }
