"""Tasks that commit, each in its own way, and their visible results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.decorators.icechunk import icechunk_task
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

FIELD = {"path": "field", "shape": [6], "chunks": [2], "dtype": "int32"}
ASSET = Asset("icechunk://bucket/weather?branch=main")
Way = Callable[..., tuple[Any, dict[str, Any]]]
"""Runs a committing task that writes a value; returns the operator and its result."""


def field(repository: Repository, path: str = "field") -> list[int]:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=path, mode="r")[:]).tolist()


def commits(repository: Repository) -> list[Any]:
    """Newest first, without the first snapshot."""
    return [info for info in repository.ancestry(branch="main") if info.message != "begin"][:-1]


def others(repository: Repository, value: int = 9, path: str = "other") -> str:
    """Another writer commits."""
    session = repository.writable_session("main")
    zarr.open_array(session.store, path=path, mode="r+")[0] = value
    return session.commit("theirs")


def leave(session: dict[str, Any], writer: str, where: slice, value: int) -> None:
    """What a worker does: write chunks through a fork and leave a fragment."""
    described = parse_session(session)
    repository = Repository.open(described.place.storage())
    fork = repository.fork(described.work_unit)
    zarr.open_array(fork.store, path="field", mode="r+")[where] = value
    JobFolder(repository.storage, fork.work.job).put_fragment(writer, fork.fragment(writer))


def opened(context: Any, **arguments: Any) -> dict[str, Any]:
    given = {"task_id": "open", "repository": "weather", "arrays": [FIELD], **arguments}
    return IcechunkOpenSessionOperator(**given).execute(context)


def committing(session: dict[str, Any], context: Any, **arguments: Any) -> tuple[Any, Any]:
    given = {"task_id": "commit", "session": session, "message": "chain", "outlets": [ASSET]}
    operator = IcechunkCommitOperator(**given | arguments)
    return operator, operator.execute(context)


def by_chain(_: Any, value: int, context: Any, **arguments: Any) -> tuple[Any, Any]:
    """Open, write, commit."""
    session = opened(context)
    leave(session, "only", slice(0, 6), value)
    return committing(session, context, **arguments)


def by_function(_: Any, value: int, context: Any, **arguments: Any) -> tuple[Any, Any]:
    """`@task.icechunk`."""

    def write(store: Any) -> int:
        root = zarr.open_group(store, mode="a")
        root.require_array("field", shape=(6,), chunks=(2,), dtype="int32")[:] = value
        return value

    task = icechunk_task(repository="weather", outlets=[ASSET], **arguments)(write)
    operator = task().operator
    return operator, operator.execute(context)


def by_spark(patch: Any, value: int, context: Any, **arguments: Any) -> tuple[Any, Any]:
    """One task with a Spark job."""

    def submit(task: IcechunkSparkSubmitOperator, context: Any) -> None:
        task.submit_job(context)
        leave(json.loads(task.application_args[-1])["session"], "w", slice(0, 6), value)

    patch.setattr(SparkSubmitOperator, "execute", submit)
    patch.setattr(SparkSubmitOperator, "submit_job", lambda *_: "driver-1")
    given = {"task_id": "task", "repository": "weather", "arrays": [FIELD], "outlets": [ASSET]}
    operator = IcechunkSparkSubmitOperator(application="job.py", **given | arguments)
    return operator, operator.execute(context)


def told(operator: Any, context: Any) -> Any:
    """What consumers of the asset receive; `None` without an event."""
    return context["outlet_events"][ASSET].extra if ASSET in operator.outlets else None
