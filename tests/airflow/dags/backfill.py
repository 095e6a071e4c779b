"""One day for each run, many runs at once; some workers stand still and are killed."""

import os
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

SIGNS = Path(os.environ.get("TEST_SIGNS", "/nonexistent"))
JOBS = Path(os.environ.get("TEST_JOBS", "/nonexistent"))

with warnings.catch_warnings():
    # Sixteen days share a chunk of the means, which is what shall be tried here.
    warnings.simplefilter("ignore", UserWarning)
    WEATHER = IcechunkDataset(
        "backfilled",
        dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 3, "longitude": 4},
        variables={
            "t2m": Variable("float32", ("time", "latitude", "longitude")),
            "mean": Variable("float64", ("time",), chunks=(16,)),
        },
        coords={"latitude": Coordinate(start=60, step=-30)},
    )


class StandsStill(IcechunkSparkSubmitOperator):
    """Two of its runs stand still once: between Spark and the commit, and after the commit."""

    def _as_written(self, context: Any, begun: Any) -> Any:
        self._stand_still(context, "before")
        return super()._as_written(context, begun)

    def report(self, context: Any, outcome: Any) -> dict[str, Any]:
        self._stand_still(context, "after")
        return super().report(context, outcome)

    def _stand_still(self, context: Any, moment: str) -> None:
        import sys

        sys.path.insert(0, str(JOBS))
        from backfill_jobs import stand_still

        day = (context["logical_date"] - datetime(2026, 1, 1, tzinfo=UTC)).days
        stand_still(SIGNS, moment, day)


with DAG(
    "backfilled",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    end_date=datetime(2026, 3, 5, tzinfo=UTC),
    catchup=False,
    max_active_runs=8,
):
    StandsStill(
        task_id="write",
        dataset=WEATHER,
        at={"time": "{{ ds }}"},
        function="backfill_jobs:field",
        arguments={"signs": str(SIGNS)},
        py_files=str(JOBS / "backfill_jobs.py"),
        message="{{ ds }}",
        # Eight drivers share two cores: what matters is that they start.
        conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        driver_memory="512m",
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
