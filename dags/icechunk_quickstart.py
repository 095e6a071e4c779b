"""The smallest transactional array pipeline: create, open, write in parallel, commit once, tag.

One year of daily temperatures on a grid. The repository is created if it is missing; a session is
opened with the arrays it needs; Spark writes the chunks in parallel; one commit makes all of it
visible at once, and an immutable tag marks that version. If anything fails before the commit,
readers see no change.

Needs two connections: `icechunk_default` (a bucket or a directory) and `spark_default` (any Spark
master that runs Python 3.11 or newer, or `local[*]` for this machine).
"""

from __future__ import annotations

import sys

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param

from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator
from airflow_provider_icechunk.operators.tag import IcechunkCreateTagOperator
from airflow_provider_icechunk.spark import APPLICATION

DAYS, ROWS, COLUMNS = 365, 90, 180

ARRAYS = [
    {
        "path": "temperature",
        "shape": [DAYS, ROWS, COLUMNS],
        "chunks": [73, 45, 90],
        "dtype": "float32",
        "dimension_names": ["time", "latitude", "longitude"],
        "attributes": {"units": "K", "long_name": "air temperature"},
    },
    {
        "path": "time",
        "shape": [DAYS],
        "dtype": "int64",
        "dimension_names": ["time"],
        "values": {"start": 0, "step": 1},
        "attributes": {"units": "days since 2025-01-01", "calendar": "proleptic_gregorian"},
    },
    {
        "path": "latitude",
        "shape": [ROWS],
        "dtype": "float64",
        "dimension_names": ["latitude"],
        "values": {"start": -89, "step": 2},
        "attributes": {"units": "degrees_north"},
    },
    {
        "path": "longitude",
        "shape": [COLUMNS],
        "dtype": "float64",
        "dimension_names": ["longitude"],
        "values": {"start": 1, "step": 2},
        "attributes": {"units": "degrees_east"},
    },
]

# The session is passed as JSON, without secrets; `tojson` turns the XCom into text.
JOB = """{
    "session": {{ ti.xcom_pull(task_ids="open_session") | tojson }},
    "writes": [{"array": "temperature", "generator": "temperature"}]
}"""

with DAG(
    dag_id="icechunk_quickstart",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={"repository": Param("weather", type="string", minLength=1)},
    doc_md=__doc__,
) as dag:
    # [START create_repository]
    create_repository = IcechunkCreateRepositoryOperator(
        task_id="create_repository",
        repository="{{ params.repository }}",
    )
    # [END create_repository]
    # [START transaction]
    open_session = IcechunkOpenSessionOperator(
        task_id="open_session",
        repository="{{ params.repository }}",
        arrays=ARRAYS,
    )
    write_chunks = SparkSubmitOperator(
        task_id="write_chunks",
        name="icechunk_quickstart",
        application=APPLICATION,
        application_args=[JOB],
        # The driver needs this environment's packages, not those of the first `python3` on PATH.
        env_vars={"PYSPARK_DRIVER_PYTHON": sys.executable},
        conf={"spark.ui.enabled": "false", "spark.log.level": "WARN"},
    )
    commit = IcechunkCommitOperator(
        task_id="commit",
        session=open_session.output,
        message="temperature of 2025",
    )
    # [END transaction]
    # [START tag]
    tag = IcechunkCreateTagOperator(
        task_id="tag",
        repository="{{ params.repository }}",
        tag="first-year-{{ dag_run.run_after.strftime('%Y%m%dT%H%M%S') }}",
        snapshot_id="{{ ti.xcom_pull(task_ids='commit')['snapshot_id'] }}",
    )
    # [END tag]
    create_repository >> open_session >> write_chunks >> commit >> tag
