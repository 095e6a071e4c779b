"""Write, audit, publish: readers of `main` never see data that nobody has checked.

Each run writes to a branch of its own, a task looks at the very snapshot that was written, and only
then is `main` moved to it, all at once. Whatever fails before leaves `main` as it was. The branch
is deleted in any case.

Needs the connection `icechunk_default` (a bucket or a directory).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.operators.branch import (
    IcechunkCreateBranchOperator,
    IcechunkDeleteBranchOperator,
)
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

    @task
    def audit(written: dict[str, Any], repository: str) -> str:
        """Look at what was written, and at nothing else."""
        import zarr

        found = IcechunkHook().open(repository)
        session = found.readonly_session(snapshot_id=written["snapshot_id"])
        field = zarr.open_group(session.store, mode="r")["field"][:]
        if field.min() < 0 or field.max() > 100:
            raise ValueError(f"values from {field.min()} to {field.max()} cannot be right")
        return str(written["snapshot_id"])

    written = write("{{ params.value }}")
    audited = audit(written, REPOSITORY)
    publish = IcechunkPublishOperator(
        task_id="publish",
        repository=REPOSITORY,
        source=STAGING,
        snapshot_id=audited,
        outlets=[PUBLISHED],
    )
    delete_branch = IcechunkDeleteBranchOperator(
        task_id="delete_branch", repository=REPOSITORY, branch=STAGING
    ).as_teardown(setups=create_branch)
    # [END publish]
    create_repository >> create_branch >> written >> audited >> publish >> delete_branch
