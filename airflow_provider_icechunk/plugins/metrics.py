"""What the engine counted during a task, told to Airflow's metrics when the task ends.

Airflow sends metrics to StatsD or OpenTelemetry, or nowhere, as its configuration says. Every
Airflow component imports this module, so it loads nothing of the engine: a task that used it has it
loaded.
"""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from typing import Any

from airflow.listeners import hookimpl

PREFIX = "icechunk"
_ENGINE = "airflow_provider_icechunk.engine.counters"
_SECONDS = "_seconds"
log = logging.getLogger(__name__)


@hookimpl
def on_task_instance_running(previous_state: object, task_instance: object) -> None:
    """Forget what this process counted before the task."""
    del previous_state, task_instance
    _take()


@hookimpl
def on_task_instance_success(previous_state: object, task_instance: Any) -> None:
    """Tell what the task did."""
    del previous_state
    _tell(task_instance)


@hookimpl
def on_task_instance_failed(previous_state: object, task_instance: Any, error: object) -> None:
    """Tell what the task did before it failed."""
    del previous_state, error
    _tell(task_instance)


def _take() -> dict[str, float]:
    counters = sys.modules.get(_ENGINE)
    found: dict[str, float] = {} if counters is None else counters.take()
    return found


def _tell(task_instance: Any) -> None:
    counted = _take()
    if not counted:
        return
    from airflow_provider_icechunk.compat import stats

    metrics = stats()
    if metrics is None:
        log.debug("The metrics of this release of Airflow are not supported: %s", counted)
        return
    tags = {"dag_id": task_instance.dag_id, "task_id": task_instance.task_id}
    for name, value in counted.items():
        if name.endswith(_SECONDS):
            took = timedelta(seconds=value)
            metrics.timing(f"{PREFIX}.{name.removesuffix(_SECONDS)}", took, tags=tags)
        else:
            metrics.incr(f"{PREFIX}.{name}", int(value), tags=tags)
