"""Wait until all days of a week are there, in whatever order they were written, then use them.

The sensor asks which labels of the dataset are there, so that days that failed, were cleared or are
still being backfilled are waited for, which the length of the array says nothing about.

Needs the connection `icechunk_default` (a bucket or a directory) and a dataset that others write.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.policies.retry import icechunk_retry_policy
from airflow_provider_icechunk.sensors.coverage import IcechunkCoverageSensor

log = logging.getLogger(__name__)

WEATHER = IcechunkDataset(
    "growing",
    dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 18, "longitude": 36},
    variables={"temperature": Variable("float32", ("time", "latitude", "longitude"))},
)

with DAG(
    dag_id="icechunk_wait_for_days",
    schedule=None,
    catchup=False,
    default_args={"retries": 3, "retry_policy": icechunk_retry_policy(timedelta(seconds=10))},
    tags=["icechunk", "example"],
    params={
        "first": Param("2026-01-05", type="string", format="date"),
        "end": Param("2026-01-12", type="string", format="date"),
    },
    doc_md=__doc__,
) as dag:
    # [START coverage_sensor]
    wait_for_week = IcechunkCoverageSensor(
        task_id="wait_for_week",
        dataset=WEATHER,
        at={"time": {"from": "{{ params.first }}", "until": "{{ params.end }}"}},
        mode="reschedule",
        poke_interval=60,
        timeout=timedelta(days=1).total_seconds(),
    )
    # [END coverage_sensor]

    @task
    def use_week(found: dict[str, Any]) -> int:
        """Work on exactly the version in which the week was complete."""
        log.info("%s in snapshot %s", found["present"], found["snapshot_id"])
        return int(found["wanted"])

    use_week(wait_for_week.output)
