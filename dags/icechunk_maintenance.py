"""Every night: expire old versions and delete unneeded objects, after a dry run of each.

Nothing younger than a day is deleted, because sessions may be running, and every branch keeps its
newest versions regardless of age. If the dry run would delete more than expected, a person has to
approve; without an answer for twelve hours nothing is deleted. Finally the repository is verified,
and small chunks are packed for the next readers; what they replaced is collected once it is old.

Needs the connection `icechunk_default` (a bucket or a directory) and a repository.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.operators.maintenance import (
    IcechunkCollectOperator,
    IcechunkCompactOperator,
    IcechunkExpireOperator,
    IcechunkMeasureOperator,
    IcechunkVerifyOperator,
)

REPOSITORY = "{{ params.repository }}"
AGES = {
    "older_than": "{{ params.older_than }}",
    "minimum_age": "{{ params.minimum_age }}",
}
EXPIRY = {**AGES, "keep_last": "{{ params.keep_last }}"}

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
        "minimum_age": Param("24h", type="string", description="longer than most sessions"),
        "keep_last": Param(10, type="integer", minimum=1, description="versions of a branch"),
        "most_gigabytes": Param(10.0, type="number", description="more needs approval"),
    },
    doc_md=__doc__,
) as dag:
    # [START maintenance]
    measure = IcechunkMeasureOperator(task_id="measure", repository=REPOSITORY)
    plan_expiry = IcechunkExpireOperator(
        task_id="plan_expiry", repository=REPOSITORY, dry_run=True, **EXPIRY
    )
    expire = IcechunkExpireOperator(task_id="expire", repository=REPOSITORY, **EXPIRY)
    plan_collection = IcechunkCollectOperator(
        task_id="plan_collection", repository=REPOSITORY, dry_run=True, **AGES
    )

    @task.branch
    def is_expected(planned: dict[str, Any], most_gigabytes: str) -> str:
        """Continue, or ask first because more than expected would be deleted."""
        return "collect" if planned["bytes_deleted"] <= float(most_gigabytes) * 1e9 else "approve"

    approve = ApprovalOperator(
        task_id="approve",
        subject="Delete more than usual from {{ params.repository }}?",
        body="The dry run says: `{{ ti.xcom_pull(task_ids='plan_collection') }}`",
        defaults=ApprovalOperator.REJECT,
        response_timeout=timedelta(hours=12),
    )
    collect = IcechunkCollectOperator(
        task_id="collect",
        repository=REPOSITORY,
        trigger_rule="none_failed_min_one_success",
        **AGES,
    )
    verify = IcechunkVerifyOperator(
        task_id="verify", repository=REPOSITORY, trigger_rule="none_failed"
    )
    compact = IcechunkCompactOperator(task_id="compact", repository=REPOSITORY)
    # [END maintenance]
    checked = is_expected(plan_collection.output, "{{ params.most_gigabytes }}")
    measure >> plan_expiry >> expire >> plan_collection >> checked
    checked >> [approve, collect]
    approve >> collect >> verify >> compact
