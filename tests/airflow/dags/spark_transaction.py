"""A whole transaction with Spark in one task."""

import sys

from airflow.sdk import DAG

from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

ARRAY = {"path": "temperature", "shape": [4, 6, 8], "chunks": [2, 6, 8], "dtype": "float32"}

with DAG("spark_transaction", schedule=None, catchup=False) as dag:
    create = IcechunkCreateRepositoryOperator(task_id="create", repository="{{ dag.dag_id }}")
    write = IcechunkSparkSubmitOperator(
        task_id="write",
        repository="{{ dag.dag_id }}",
        arrays=[ARRAY],
        writes=[{"array": "temperature", "generator": "temperature"}],
        message="{{ run_id }}",
        env_vars={"PYSPARK_DRIVER_PYTHON": sys.executable},
        conf={"spark.ui.enabled": "false", "spark.log.level": "WARN"},
    )
    create >> write
