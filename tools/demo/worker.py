"""What runs in each Airflow of the tour: read requests for Dag runs, run them, tell the outcome.

A process of its own, because importing Airflow takes seconds and only pays once. Requests come on
standard input and answers go to standard output, one JSON document in a line with a mark in front;
all that Airflow and Spark print goes to standard output as well, without the mark.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MARK = "TOUR-ANSWER "


def main() -> None:
    """Prepare the tables, say so, then run what is asked for until the input ends."""
    from airflow.utils import db

    if Path(os.environ["AIRFLOW_HOME"], "airflow.db").exists():
        db.upgradedb()
    else:
        db.initdb()
    _answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        _answer(_run(request["dag_id"], request["conf"]))


def _run(dag_id: str, conf: dict[str, Any]) -> dict[str, Any]:
    """Run a Dag to its end and collect what its tasks returned."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    bag = DagBag(Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], f"{dag_id}.py"))
    if bag.import_errors:
        raise SystemExit("\n".join(bag.import_errors.values()))
    finished = bag.dags[dag_id].test(run_conf=conf)
    wanted = select(XComModel).where(
        XComModel.run_id == finished.run_id,
        XComModel.dag_id == dag_id,
        XComModel.key == "return_value",
    )
    with create_session() as session:
        results = {one.task_id: XComModel.deserialize_value(one) for one in session.scalars(wanted)}
    return {"state": str(finished.state), "run_id": finished.run_id, "results": results}


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(value, default=str)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
