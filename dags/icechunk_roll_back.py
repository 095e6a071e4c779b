"""Roll back to a release: reset `main` to a good tag, and delete a wrong one.

A sensor looks up the snapshot of the good tag, and waits for it if necessary. The branch is moved
to it in one step, so readers see one version or the other. Later commits stay stored until they
are collected; `roll_back` returns where the branch was, which is all you need to go forward again.

Needs the connection `icechunk_default` (a bucket or a directory).
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_icechunk.operators.branch import IcechunkResetBranchOperator
from airflow_provider_icechunk.operators.tag import IcechunkDeleteTagOperator
from airflow_provider_icechunk.sensors.presence import IcechunkTagSensor

REPOSITORY = "{{ params.repository }}"

with DAG(
    dag_id="icechunk_roll_back",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("weather", type="string", minLength=1),
        "good": Param("release-1", type="string", minLength=1, description="tag to go back to"),
        "bad": Param("release-2", type="string", minLength=1, description="tag to withdraw"),
    },
    doc_md=__doc__,
) as dag:
    # [START tag_sensor]
    find_release = IcechunkTagSensor(
        task_id="find_release",
        repository=REPOSITORY,
        tag="{{ params.good }}",
        mode="reschedule",
        poke_interval=60,
        timeout=60 * 60,
    )
    # [END tag_sensor]
    # [START roll_back]
    roll_back = IcechunkResetBranchOperator(
        task_id="roll_back",
        repository=REPOSITORY,
        branch="main",
        snapshot_id="{{ ti.xcom_pull(task_ids='find_release')['snapshot_id'] }}",
    )
    withdraw = IcechunkDeleteTagOperator(
        task_id="withdraw", repository=REPOSITORY, tag="{{ params.bad }}"
    )
    # [END roll_back]
    find_release >> roll_back >> withdraw
