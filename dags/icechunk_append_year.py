"""Append a year in one task: the session, the Spark job and the commit together.

`IcechunkSparkSubmitOperator` opens a session with longer arrays, submits a job that writes only the
new part, and commits. A run owns its year: a retry never commits it twice, and a cleared run writes
the same year again, even if later years have been added.

Needs what `icechunk_quickstart` needs, and the repository that it created.
"""

from __future__ import annotations

import sys

from airflow.sdk import DAG, Param

from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

DAYS, ROWS, COLUMNS = 365, 90, 180
FIRST = f"{{{{ {DAYS} * params.years }}}}"
END = f"{{{{ {DAYS} * (params.years + 1) }}}}"

with DAG(
    dag_id="icechunk_append_year",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("weather", type="string", minLength=1),
        "years": Param(1, type="integer", minimum=1, description="how many years already exist"),
    },
    doc_md=__doc__,
) as dag:
    # [START spark_submit]
    append = IcechunkSparkSubmitOperator(
        task_id="append",
        repository="{{ params.repository }}",
        arrays=[
            {"path": "temperature", "shape": [END, ROWS, COLUMNS], "dtype": "float32"},
            {
                "path": "time",
                "shape": [END],
                "dtype": "int64",
                "values": {"start": 0, "step": 1},
            },
        ],
        writes=[
            {"array": "temperature", "generator": "temperature", "region": {"0": [FIRST, END]}}
        ],
        message="temperature of {{ 2025 + params.years }}",
        env_vars={"PYSPARK_DRIVER_PYTHON": sys.executable},
        conf={"spark.ui.enabled": "false", "spark.log.level": "WARN"},
    )
    # [END spark_submit]
