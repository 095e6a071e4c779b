"""One day of data per run, with backfill: every run owns one position on the time axis.

`@task.icechunk` opens a session and commits what the function wrote when it returns. A run always
writes to the position of its day, so runs can be retried, cleared and backfilled in any order: a
retry never commits twice, and a cleared or reprocessed run writes its day again. Several runs may
extend the array at once: their commits are merged, and the longer one counts.

Needs the connection `icechunk_default` (a bucket or a directory).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.policies.retry import icechunk_retry_policy

START = pendulum.datetime(2026, 1, 1, tz="UTC")
ROWS, COLUMNS = 18, 36

with DAG(
    dag_id="icechunk_append_daily",
    schedule="@daily",
    start_date=START,
    catchup=True,
    max_active_runs=8,
    default_args={"retries": 3, "retry_policy": icechunk_retry_policy(timedelta(seconds=10))},
    tags=["icechunk", "example"],
    params={"repository": Param("daily", type="string", minLength=1)},
    doc_md=__doc__,
) as dag:
    create_repository = IcechunkCreateRepositoryOperator(
        task_id="create_repository",
        repository="{{ params.repository }}",
    )

    # [START append]
    @task.icechunk(repository="{{ params.repository }}", message="{{ ds }}")
    def append_day(store: Any, logical_date: datetime) -> int:
        """Write the field of one day to its position, extending the array if necessary."""
        import numpy as np
        import zarr

        day = (logical_date - START).days
        root = zarr.open_group(store, mode="a")
        if "temperature" not in root:
            root.create_array(
                "temperature",
                shape=(0, ROWS, COLUMNS),
                chunks=(1, ROWS, COLUMNS),
                dtype="float32",
                dimension_names=("time", "latitude", "longitude"),
            )
        array = root["temperature"]
        if array.shape[0] <= day:
            array.resize((day + 1, ROWS, COLUMNS))
        season = 10 * np.sin(2 * np.pi * day / 365)
        array[day] = np.full((ROWS, COLUMNS), 288 + season, dtype="float32")
        return day

    # [END append]

    create_repository >> append_day()
