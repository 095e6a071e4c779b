"""Migrate a repository to a newer generation of the format, between two verifications.

A dry run first returns what would happen. Run it while nobody writes; if it dies, start it again.
On a migrated repository it does nothing.

Needs the connection `icechunk_default` (a bucket or a directory).
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_icechunk.operators.maintenance import IcechunkVerifyOperator
from airflow_provider_icechunk.operators.migrate import IcechunkMigrateOperator

REPOSITORY = "{{ params.repository }}"

with DAG(
    dag_id="icechunk_migrate",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["icechunk", "example"],
    params={
        "repository": Param("weather", type="string", minLength=1),
        "to": Param("2", type="string", enum=["1", "2"]),
    },
    doc_md=__doc__,
) as dag:
    before = IcechunkVerifyOperator(task_id="verify_before", repository=REPOSITORY)
    # [START migrate]
    plan = IcechunkMigrateOperator(
        task_id="plan", repository=REPOSITORY, to="{{ params.to }}", dry_run=True
    )
    migrate = IcechunkMigrateOperator(
        task_id="migrate", repository=REPOSITORY, to="{{ params.to }}"
    )
    # [END migrate]
    after = IcechunkVerifyOperator(task_id="verify_after", repository=REPOSITORY)
    before >> plan >> migrate >> after
