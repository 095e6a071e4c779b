"""Give an array other chunks on Spark, after asking what that means.

Whoever writes one day for each run has chunks of one day; whoever reads long series wants chunks of
many days. The values stay the same, and earlier versions keep the old chunks until they expire.

Needs the connections `icechunk_default` (a bucket or a directory) and `spark_default`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_icechunk.operators.rechunk import IcechunkRechunkOperator
from airflow_provider_icechunk.policies.retry import icechunk_retry_policy

with DAG(
    dag_id="icechunk_rechunk",
    schedule=None,
    catchup=False,
    default_args={"retries": 3, "retry_policy": icechunk_retry_policy(timedelta(seconds=10))},
    tags=["icechunk", "example"],
    params={"repository": Param("rechunk", type="string")},
    doc_md=__doc__,
) as dag:
    # [START rechunk]
    ask = IcechunkRechunkOperator(
        task_id="ask",
        repository="{{ params.repository }}",
        array="temperature",
        chunks=[8, 9, 9],
        dry_run=True,
    )
    rechunk = IcechunkRechunkOperator(
        task_id="rechunk",
        repository="{{ params.repository }}",
        array="temperature",
        chunks=[8, 9, 9],
    )
    # [END rechunk]
    ask >> rechunk
