"""The few lines of Airflow's and Spark's output that say how far a run is. Pure."""

from __future__ import annotations

import re

_TELLING = re.compile(
    r"\[DAG TEST\] starting task_id=(?P<begun>\w+)"
    r"|(?P<said>Created \w+://\S+"
    r"|\d+ tasks to run"
    r"|Committed \w+ to \w+(?:: \d+ chunks)?"
    r"|\w+ is at [0-9A-Z]{20}"
    r"|\d+ snapshots before \S+ (?:would expire|expired)"
    r"|Tag \S+ names \w+)"
)
TASKS = {
    "create_repository": "create the repository",
    "open_session": "open a session and declare its arrays",
    "write_chunks": "let Spark write the chunks (starting it takes some seconds)",
    "commit": "commit everything at once",
    "tag": "name this version for ever",
    "append": "open a session, let Spark write the new year, commit",
    "correct": "write a heat wave, while somebody else commits",
    "wait_for_commit": "wait for a commit that touches temperature",
    "add_means": "read that very version and write the mean of the north for every day",
    "measure": "measure",
    "plan_expiry": "expire: a dry run first",
    "expire": "expire",
    "plan_collection": "collect garbage: a dry run first",
    "is_expected": "is that as much as expected?",
    "collect": "collect garbage",
    "verify": "verify that everything is there",
}


def telling(line: str) -> str | None:
    """What to show of a line of output, if it says how far the run is."""
    found = _TELLING.search(line)
    if found is None:
        return None
    if found["begun"]:
        return f"  - {TASKS.get(found['begun'], found['begun'])}"
    return f"      {found['said']}"
