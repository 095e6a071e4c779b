"""The tour's pipeline: one day per run, in any order, and a DAG that waits for a week.

The function is in `tour_jobs.py`, beside this file. It reads the file of a day from a folder, as
any function would fetch its data. Executors call it; the task commits what it returned.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_provider_icechunk.sensors.coverage import IcechunkCoverageSensor

weather = IcechunkDataset(
    "weather",
    dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 90, "longitude": 180},
    variables={
        "temperature": Variable(
            "float32", ("time", "latitude", "longitude"), attrs={"units": "K"}, fill_value=0.0
        )
    },
    coords={
        "latitude": Coordinate(start=-89, step=2, attrs={"units": "degrees_north"}),
        "longitude": Coordinate(start=0, step=2, attrs={"units": "degrees_east"}),
    },
)

with DAG(
    "icechunk_tour",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
):
    IcechunkSparkSubmitOperator(
        task_id="write",
        dataset=weather,
        at={"time": "{{ ds }}"},
        function="tour_jobs:day",
        arguments={"upstream": os.environ.get("TOUR_UPSTREAM", "/nonexistent")},
        py_files=str(Path(__file__).parent / "tour_jobs.py"),
        message="temperature of {{ ds }}",
    )

with DAG("icechunk_tour_week", schedule=None, catchup=False, doc_md=__doc__):
    wait_for_week = IcechunkCoverageSensor(
        task_id="wait_for_week",
        dataset=weather,
        at={"time": {"from": "2026-01-01", "until": "2026-01-08"}},
        mode="poke",
        poke_interval=1,
    )

    @task.icechunk(repository="weather", message="mean of the first week")
    def add_mean(store: Any) -> float:
        """Write the mean of the week beside the days."""
        import numpy as np
        import zarr

        days = np.asarray(zarr.open_array(store, path="temperature", mode="r")[:7])
        mean = days.mean(axis=0)
        root = zarr.open_group(store, mode="r+")
        root.create_array("week_mean", data=mean, dimension_names=("latitude", "longitude"))
        return float(mean.mean())

    wait_for_week >> add_mean()  # type: ignore[call-arg,misc]
