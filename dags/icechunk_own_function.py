"""Your own function on Spark, one day for each run, in any order and many at once.

The data are declared once. A run finds the place of its day by arithmetic, so the sixth of January
may be written after the sixteenth, twice, or at the same time. Executors call the function for the
region of the run; what it returns is committed once, however often the task is tried. A day that is
cleared is written again.

Needs the connections `icechunk_default` (a bucket or a directory) and `spark_default`.
"""

from __future__ import annotations

# [START own_function]
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

weather = IcechunkDataset(
    "weather_daily",
    dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 721, "longitude": 1440},
    variables={
        "t2m": Variable(
            "float32",
            ("time", "latitude", "longitude"),
            chunks=(1, 721, 1440),
            attrs={"units": "K"},
        ),
    },
    coords={
        "latitude": Coordinate(start=90, step=-0.25, attrs={"units": "degrees_north"}),
        "longitude": Coordinate(start=0, step=0.25, attrs={"units": "degrees_east"}),
    },
)

with DAG(
    "icechunk_own_function",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=True,
    max_active_runs=16,
    default_args={"retries": 3},
    tags=["icechunk", "example", "spark"],
    doc_md=__doc__,
) as dag:
    IcechunkSparkSubmitOperator(
        task_id="write",
        dataset=weather,
        at={"time": "{{ ds }}"},
        function="weather_jobs:field",
        arguments={"base": 288.0},
        py_files=str(Path(__file__).parent / "jobs" / "weather_jobs.py"),
        message="{{ ds }}",
    )
# [END own_function]
