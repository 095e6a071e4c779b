"""Spark transactions that are interrupted: before the commit, and while the job runs."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

SIGNS = Path(os.environ.get("TEST_SIGNS", "/nonexistent"))
FIELD = {"path": "field", "shape": [4], "chunks": [2], "dtype": "float32"}
SPARK = {
    "repository": "{{ dag.dag_id }}",
    "env_vars": {"PYSPARK_DRIVER_PYTHON": sys.executable},
    "conf": {"spark.ui.enabled": "false", "spark.log.level": "WARN"},
}


class WaitsBeforeItsCommit(IcechunkSparkSubmitOperator):
    """Its first attempt stands still when Spark has ended, and says which process it is."""

    def _as_written(self, context: Any, begun: Any) -> Any:
        if context["ti"].try_number == 1:
            (SIGNS / "task").write_text(f"{os.getpid()} {os.getppid()}")
            time.sleep(900)
        return super()._as_written(context, begun)


with DAG("worker_dies", schedule=None, catchup=False):
    create = IcechunkCreateRepositoryOperator(task_id="create", repository="{{ dag.dag_id }}")
    create >> WaitsBeforeItsCommit(
        task_id="write",
        arrays=[{"path": "temperature", "shape": [4, 6, 8], "chunks": [2, 6, 8],
                 "dtype": "float32"}],
        writes=[{"array": "temperature", "generator": "temperature"}],
        retries=1,
        retry_delay=timedelta(seconds=1),
        **SPARK,
    )  # fmt: skip

with DAG("job_is_killed", schedule=None, catchup=False):
    create = IcechunkCreateRepositoryOperator(task_id="create", repository="{{ dag.dag_id }}")
    create >> IcechunkSparkSubmitOperator(
        task_id="write",
        arrays=[FIELD],
        application=str(Path(os.environ.get("TEST_JOBS", "/nonexistent"), "never_ends.py")),
        application_args=[str(SIGNS)],
        **SPARK,
    )
