"""Every night: expire old versions, look what could be deleted, and delete it if that is plausible.

Nothing goes that is younger than a day, because sessions may be at work, and every branch keeps its
newest versions whatever their age. Before anything is deleted, a dry run says how much it would be;
more than expected stops the pipeline, so that a person can look. At the end the repository is
verified.

Needs the connection `icechunk_default` (a bucket or a directory) and a repository.
"""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkGarbageCollectOperator,
    IcechunkMeasureOperator,
    IcechunkVerifyOperator,
)

REPOSITORY = "{{ params.repository }}"
AGES = {
    "older_than": "{{ params.older_than }}",
    "minimum_age": "{{ params.minimum_age }}",
}

with DAG(
    dag_id="icechunk_maintenance",
    schedule="0 3 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["icechunk", "example"],
    params={
        "repository": Param("weather", type="string", minLength=1),
        "older_than": Param("30d", type="string", description="an age, or a time"),
        "minimum_age": Param("24h", type="string", description="longer than any session"),
        "most_gigabytes": Param(100.0, type="number", description="more than this is suspicious"),
    },
    doc_md=__doc__,
) as dag:
    # [START maintenance]
    measure = IcechunkMeasureOperator(task_id="measure", repository=REPOSITORY)
    expire = IcechunkExpireSnapshotsOperator(
        task_id="expire", repository=REPOSITORY, keep_last=10, **AGES
    )
    plan = IcechunkGarbageCollectOperator(
        task_id="plan", repository=REPOSITORY, dry_run=True, **AGES
    )

    @task
    def is_plausible(planned: dict[str, Any], most_gigabytes: str) -> int:
        """Stop if more would be deleted than anybody expects."""
        freed: int = planned["bytes_deleted"]
        if freed > float(most_gigabytes) * 1e9:
            raise ValueError(f"{freed} bytes would be deleted; look before you raise the limit")
        return freed

    collect = IcechunkGarbageCollectOperator(task_id="collect", repository=REPOSITORY, **AGES)
    verify = IcechunkVerifyOperator(task_id="verify", repository=REPOSITORY)
    # [END maintenance]
    checked = is_plausible(plan.output, "{{ params.most_gigabytes }}")
    measure >> expire >> plan >> checked >> collect >> verify
