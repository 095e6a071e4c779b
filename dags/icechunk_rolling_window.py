"""Change a dataset over time: add a variable, describe it, and keep the newest days only.

Each step can be asked first what it would do (`dry_run`). The cut moves references where it falls
between chunks, so that keeping ninety days costs the same for a megabyte and a terabyte.

Needs the connection `icechunk_default` (a bucket or a directory) and a dataset that others write.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.operators.change import (
    IcechunkAttributesOperator,
    IcechunkDeclareOperator,
    IcechunkDropLabelsOperator,
)
from airflow_provider_icechunk.policies.retry import icechunk_retry_policy

WEATHER = IcechunkDataset(
    "window",
    dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 18, "longitude": 36},
    variables={
        "temperature": Variable("float32", ("time", "latitude", "longitude")),
        "rain": Variable("float32", ("time", "latitude", "longitude")),
    },
)

with DAG(
    dag_id="icechunk_rolling_window",
    schedule=None,
    catchup=False,
    default_args={"retries": 3, "retry_policy": icechunk_retry_policy(timedelta(seconds=10))},
    tags=["icechunk", "example"],
    params={"keep": Param(90, type="integer", minimum=1)},
    doc_md=__doc__,
) as dag:
    # [START change]
    declare = IcechunkDeclareOperator(task_id="declare", dataset=WEATHER, message="add rain")
    describe = IcechunkAttributesOperator(
        task_id="describe",
        repository="window",
        attributes={"/": {"title": "Weather"}, "rain": {"units": "mm"}},
        remove={"temperature": ["history"]},
    )
    # [END change]
    # [START window]
    ask = IcechunkDropLabelsOperator(
        task_id="ask", dataset=WEATHER, keep="{{ params.keep }}", dry_run=True
    )
    cut = IcechunkDropLabelsOperator(task_id="cut", dataset=WEATHER, keep="{{ params.keep }}")
    # [END window]
    declare >> describe >> ask >> cut
