"""The process of each Airflow of the tour: read requests for DAG runs, run them, report the
outcome.

A process of its own, because importing Airflow takes seconds and should happen only once. Requests
come on standard input and answers go to standard output, one JSON document per line with a mark in
front; whatever Airflow and Spark print goes to standard output as well, without the mark.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

MARK = "TOUR-ANSWER "


def main() -> None:
    """Prepare the database, say so, then run what is requested until the input ends."""
    from airflow.utils import db

    if Path(os.environ["AIRFLOW_HOME"], "airflow.db").exists():
        db.upgradedb()
    else:
        db.initdb()
    _answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        dag = _load(request["dag_id"])
        if request.get("clear"):
            _answer(_run_again(dag, request["clear"]))
        else:
            _answer(_run(dag, request["conf"], request.get("date")))


def _load(dag_id: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]))
    if bag.import_errors:
        raise SystemExit("\n".join(bag.import_errors.values()))
    return bag.dags[dag_id]


def _run(dag: Any, conf: dict[str, Any], date: str | None) -> dict[str, Any]:
    """Run a DAG to its end, for a logical date if given."""
    finished = dag.test(
        run_conf=conf, logical_date=None if date is None else datetime.fromisoformat(date)
    )
    return _outcome(dag, finished.run_id, str(finished.state))


def _run_again(dag: Any, run_id: str) -> dict[str, Any]:
    """Clear all tasks of a run, as the button in the web interface does, and run them again."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        run = session.scalar(
            select(DagRun).where(DagRun.dag_id == dag.dag_id, DagRun.run_id == run_id)
        )
        if run is None:
            raise SystemExit(f"There is no run {run_id} of {dag.dag_id}.")
        tasks = run.get_task_instances(session=session)
        clear_task_instances(tasks, session)
        session.commit()
        succeeded = True
        for task in tasks:
            task.try_number += 1
            session.commit()
            done = _run_task(ti=task, task=dag.task_dict[task.task_id])
            succeeded = succeeded and done is not None and done.ti.state == "success"
    return _outcome(dag, run_id, "success" if succeeded else "failed")


def _outcome(dag: Any, run_id: str, state: str) -> dict[str, Any]:
    """The outcome of a run, and the results of its tasks."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(XComModel).where(
        XComModel.run_id == run_id,
        XComModel.dag_id == dag.dag_id,
        XComModel.key == "return_value",
    )
    with create_session() as session:
        results = {one.task_id: XComModel.deserialize_value(one) for one in session.scalars(wanted)}
    return {"state": state, "run_id": run_id, "results": results}


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(value, default=str)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
