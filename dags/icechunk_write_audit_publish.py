"""Write, audit, publish: readers of `main` never see unchecked data.

Each run writes to its own branch and checks exactly the snapshot it wrote; only then is it
committed to `main`, in one step and with the report of the checks. If anything fails before that,
`main` does not change. The branch is always deleted.

Needs the connection `icechunk_default` (a bucket or a directory).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from airflow_provider_icechunk.operators.branch import (
    IcechunkCreateBranchOperator,
    IcechunkDeleteBranchOperator,
)
from airflow_provider_icechunk.operators.check import IcechunkCheckOperator
from airflow_provider_icechunk.operators.publish import IcechunkPublishOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator

REPOSITORY = "{{ params.repository }}"
STAGING = "staging-{{ dag_run.run_after.strftime('%Y%m%dT%H%M%S%f') }}"
PUBLISHED = Asset(name="audited_field", uri="icechunk://example/audited?branch=main")

with DAG(
    dag_id="icechunk_write_audit_publish",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("audited", type="string", minLength=1),
        "value": Param(1.0, type="number", description="what is written; the audit wants 0 to 100"),
    },
    doc_md=__doc__,
) as dag:
    create_repository = IcechunkCreateRepositoryOperator(
        task_id="create_repository", repository=REPOSITORY
    )
    # [START publish]
    create_branch = IcechunkCreateBranchOperator(
        task_id="create_branch", repository=REPOSITORY, branch=STAGING, if_exists="reset"
    )

    @task.icechunk(repository=REPOSITORY, branch=STAGING)
    def write(store: Any, value: Any) -> None:
        """Write a field, good or bad."""
        import zarr

        root = zarr.open_group(store, mode="a")
        array = root.require_array("field", shape=(10, 10), chunks=(5, 5), dtype="float64")
        array[:] = float(value)

    written = write("{{ params.value }}")
    audit = IcechunkCheckOperator(
        task_id="audit",
        repository=REPOSITORY,
        snapshot_id="{{ ti.xcom_pull('write')['snapshot_id'] }}",
        checks=[
            {"check": "range", "array": "field", "minimum": 0, "maximum": 100},
            {"check": "missing", "array": "field", "most": 0},
        ],
    )
    publish = IcechunkPublishOperator(
        task_id="publish",
        repository=REPOSITORY,
        source=STAGING,
        snapshot_id="{{ ti.xcom_pull('audit')['snapshot_id'] }}",
        checks=audit.output,
        outlets=[PUBLISHED],
    )
    delete_branch = IcechunkDeleteBranchOperator(
        task_id="delete_branch", repository=REPOSITORY, branch=STAGING
    ).as_teardown(setups=create_branch)
    # [END publish]
    create_repository >> create_branch >> written >> audit >> publish >> delete_branch
