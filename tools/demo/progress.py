"""The few lines of Airflow's and Spark's output that show progress. Pure."""

from __future__ import annotations

import re

_TELLING = re.compile(
    r"\[DAG TEST\] starting task_id=(?P<begun>\w+)"
    r"|(?P<said>Created \w+://\S+"
    r"|\d+ tasks to run"
    r"|Committed snapshot \w+ to \w+"
    r"|Rebased onto \w+"
    r"|\d+ snapshots before \S+ (?:would expire|expired)"
    r"|Tag \S+ is at \w+)"
)
TASKS = {
    "write": "open a session, let Spark call the function for the day, commit",
    "wait_for_week": "wait until all days of the first week are there",
    "add_mean": "write the mean of the week beside them",
    "measure": "measure",
    "plan_expiry": "expire: a dry run first",
    "expire": "expire",
    "plan_collection": "collect garbage: a dry run first",
    "is_expected": "is that as much as expected?",
    "collect": "collect garbage",
    "verify": "verify that everything is there",
    "compact": "pack small chunks for the next readers",
}


def telling(line: str) -> str | None:
    """The part of a line of output to show, if it shows progress."""
    found = _TELLING.search(line)
    if found is None:
        return None
    if found["begun"]:
        return f"  - {TASKS.get(found['begun'], found['begun'])}"
    return f"      {found['said']}"
