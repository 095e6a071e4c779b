"""Many writers, one commit: mapped Spark tasks write parts of one array; readers get all or none.

A session is opened once. Each mapped task submits its own Spark job, which writes whole chunks of
its part and leaves a fragment, a list of the chunks it wrote. The commit merges the fragments. A
rerun replaces its own fragment, so one writer and the commit can be cleared without the others; a
failed task prevents the commit; and if two tasks wrote the same chunk, the commit fails and names
them.

Needs two connections: `icechunk_default` (a bucket or a directory) and `spark_default`.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.session import (
    IcechunkAbortSessionOperator,
    IcechunkOpenSessionOperator,
)
from airflow_provider_icechunk.spark import APPLICATION

REPOSITORY = "{{ params.repository }}"
BLOCKS, BLOCK = 4, 25
"""The number of chunks along the time axis, and of steps in each."""

with DAG(
    dag_id="icechunk_fan_out",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("ensemble", type="string", minLength=1),
        "writers": Param(4, type="integer", minimum=1, maximum=BLOCKS),
    },
    doc_md=__doc__,
) as dag:
    create_repository = IcechunkCreateRepositoryOperator(
        task_id="create_repository", repository=REPOSITORY
    )
    # [START fan_out]
    session = IcechunkOpenSessionOperator(
        task_id="open_session",
        repository=REPOSITORY,
        arrays=[
            {
                "path": "temperature",
                "shape": [BLOCKS * BLOCK, 90, 180],
                "chunks": [BLOCK, 90, 180],
                "dtype": "float32",
                "dimension_names": ["time", "latitude", "longitude"],
            }
        ],
    )

    @task
    def plan(session: dict[str, Any], writers: str) -> list[list[str]]:
        """The arguments of one Spark job per writer, for parts that share no chunk."""
        number = int(writers)
        bounds = [BLOCK * (BLOCKS * place // number) for place in range(number + 1)]
        return [
            [
                json.dumps(
                    {
                        "session": session,
                        "writes": [
                            {
                                "array": "temperature",
                                "generator": "temperature",
                                "region": {"0": [first, end]},
                            }
                        ],
                    }
                )
            ]
            for first, end in pairwise(bounds)
        ]

    write = SparkSubmitOperator.partial(
        task_id="write",
        name="icechunk_fan_out",
        application=APPLICATION,
        env_vars={"PYSPARK_DRIVER_PYTHON": sys.executable},
        conf={"spark.ui.enabled": "false", "spark.log.level": "WARN"},
    ).expand(application_args=plan(session.output, "{{ params.writers }}"))

    commit = IcechunkCommitOperator(
        task_id="commit",
        session=session.output,
        message="{{ params.writers }} writers, one commit",
    )
    # [END fan_out]
    # [START abort]
    abort = IcechunkAbortSessionOperator(
        task_id="abort", session=session.output, trigger_rule="one_failed"
    )
    # [END abort]
    create_repository >> session >> write >> commit >> abort
