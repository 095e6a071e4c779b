"""A transaction without Spark: what the open task declares is what the commit task commits."""

from airflow.sdk import DAG

from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator

with DAG("transaction", schedule=None, catchup=False) as dag:
    create = IcechunkCreateRepositoryOperator(task_id="create", repository="{{ dag.dag_id }}")
    session = IcechunkOpenSessionOperator(
        task_id="open",
        repository="{{ dag.dag_id }}",
        arrays=[{"path": "x", "shape": [3], "dtype": "int64", "values": [1, 2, 3]}],
    )
    commit = IcechunkCommitOperator(
        task_id="commit", session=session.output, message="{{ run_id }}"
    )
    create >> session >> commit
