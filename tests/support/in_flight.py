"""Work in flight, one step for each process: which release runs a step is up to its path.

`python in_flight.py STEP ROOT` prints a JSON document. Uses only names that earlier releases have.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import zarr

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder

DATASET = IcechunkDataset(
    "days",
    dims={"time": Growing(start="2026-01-01", every="1D"), "x": 4},
    variables={"field": Variable("int32", ("time", "x"), chunks=(1, 2))},
)
AT = {"time": "2026-01-03"}
HALVES = {"left": slice(0, 2), "right": slice(2, 4)}
WRITES = [f"write-{half}" for half in HALVES]
COMMIT = "commit"


def context(task: str, attempt: int = 1) -> Any:
    """What an operator sees of Airflow."""
    ti = SimpleNamespace(
        dag_id="dag", run_id="run", task_id=task, map_index=-1, try_number=attempt, max_tries=9,
        task=SimpleNamespace(retries=9), get_first_reschedule_date=lambda _: None,
    )  # fmt: skip
    return {"ti": ti, "outlet_events": defaultdict(lambda: SimpleNamespace(extra={}))}


def opened(root: Path) -> Repository:
    """The repository of all steps."""
    return Repository.open(local_filesystem_storage(root / "data" / "days"))


def sensors() -> list[Any]:
    """Sensors that wait for the commit of the other steps."""
    from airflow_provider_icechunk.sensors.branch import IcechunkBranchSensor
    from airflow_provider_icechunk.sensors.coverage import IcechunkCoverageSensor
    from airflow_provider_icechunk.sensors.presence import IcechunkNodeSensor, IcechunkTagSensor

    given: dict[str, Any] = {"repository": "days", "deferrable": True, "poke_interval": 0.05}
    return [
        IcechunkBranchSensor(task_id="branch", path="/field", **given),
        IcechunkCoverageSensor(task_id="coverage", dataset=DATASET, at=AT, **given),
        IcechunkNodeSensor(task_id="node", path="/field", **given),
        IcechunkTagSensor(task_id="tag", tag="v1", **given),
    ]


def begin(root: Path) -> dict[str, Any]:
    """Open a session for a day, and defer sensors that wait for it."""
    from airflow.serialization.serialized_objects import BaseSerialization

    from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator

    session = IcechunkOpenSessionOperator(task_id="open", dataset=DATASET, at=AT).execute(
        context("open")
    )
    rows = []
    for sensor in sensors():
        path, arguments = sensor.make_trigger().serialize()
        rows.append([sensor.task_id, path, BaseSerialization.serialize(arguments)])
    (root / "session.json").write_text(json.dumps(session))
    (root / "rows.json").write_text(json.dumps(rows))
    return {"session": session.get("release"), "rows": len(rows)}


def write(root: Path, half: str) -> dict[str, Any]:
    """Write half of the day on an executor, which leaves a fragment."""
    described = parse_session(json.loads((root / "session.json").read_text()))
    repository = Repository.open(described.place.storage())
    found = described.declared()
    assert found is not None
    where = (slice(*found[1].regions["time"]), HALVES[half])
    fork = repository.fork(described.work_unit)
    with fork.recording({"field": where}):
        zarr.open_array(fork.store, path="field", mode="r+")[where] = 7
    folder = JobFolder(repository.storage, fork.work.job)
    folder.put_result(half, {"chunks": 1})
    return {"key": folder.put_fragment(half, fork.fragment(half))}


def commit(root: Path, attempt: int = 1) -> dict[str, Any]:
    """Commit both halves; a later attempt finds the commit of an earlier one."""
    from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator

    session = json.loads((root / "session.json").read_text())
    operator = IcechunkCommitOperator(
        task_id=COMMIT, session=session, message="day", fragments=list(HALVES)
    )
    done = operator.execute(context(COMMIT, attempt))
    if attempt == 1:
        opened(root).create_tag("v1", done["snapshot_id"])
    array = zarr.open_array(opened(root).readonly_session("main").store, path="field", mode="r")
    values = np.asarray(array[-1]).tolist()
    return {"snapshot": done["snapshot_id"], "values": values, "chunks": done["chunks"]}


def resume(root: Path) -> dict[str, Any]:
    """Recreate the triggers from the rows, and give their events to the tasks that deferred."""
    from airflow.serialization.serialized_objects import BaseSerialization

    tasks = {sensor.task_id: sensor for sensor in sensors()}
    results = {}
    for task, path, stored in json.loads((root / "rows.json").read_text()):
        module, _, name = path.rpartition(".")
        trigger = getattr(importlib.import_module(module), name)(
            **BaseSerialization.deserialize(stored)
        )
        event = asyncio.run(_first(trigger))
        results[task] = tasks[task].execute_complete(context(task), event)["snapshot_id"]
    return results


async def _first(trigger: Any) -> dict[str, Any]:
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("the trigger ended without an event")


STEPS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "begin": begin,
    **{f"write-{half}": lambda root, half=half: write(root, half) for half in HALVES},
    "commit": commit,
    "commit-again": lambda root: commit(root, 2),
    "resume": resume,
}

if __name__ == "__main__":
    told = STEPS[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps({"release": __version__, **told}))
