"""One day for each run as an Xarray Dataset, in any order and many at once.

The data are declared once. A task gets the part that belongs to its run, with its labels and what
is stored there now, and returns a `Dataset` for it, which is written there and committed once. Days
may be backfilled side by side, cleared and written again. Stations have no steps: a new one goes to
the end, behind those that other runs appended meanwhile.

Needs the connection `icechunk_default` (a bucket or a directory), and the extra `xarray`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import DAG, task

from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.policies.retry import icechunk_retry_policy

# [START place]
weather = IcechunkDataset(
    "weather_fields",
    dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 18, "longitude": 36},
    variables={
        "t2m": Variable("float32", ("time", "latitude", "longitude"), attrs={"units": "K"}),
    },
    coords={
        "latitude": Coordinate(start=85, step=-10),
        "longitude": Coordinate(start=5, step=10),
    },
)
stations = IcechunkDataset(
    "weather_stations",
    dims={"station": Growing(by="labels", dtype="str")},
    variables={"reports": Variable("int32", ("station",))},
)

with DAG(
    dag_id="icechunk_xarray_daily",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=True,
    max_active_runs=8,
    default_args={"retries": 3, "retry_policy": icechunk_retry_policy(timedelta(seconds=10))},
    tags=["icechunk", "example"],
    doc_md=__doc__,
) as dag:

    @task.icechunk(dataset=weather, at={"time": "{{ ds }}"})
    def fetch(place: Any) -> Any:
        """Fill the day of the run: `place` has its labels."""
        import numpy as np

        season = np.cos(2 * np.pi * (place["time"].dt.dayofyear - 15) / 365.25)
        values = 288 - 12 * season * np.sin(np.deg2rad(place["latitude"]))
        return place.assign(t2m=values.broadcast_like(place["t2m"]))

    @task.icechunk(dataset=stations, at={"station": "station-{{ ds_nodash }}"})
    def count(place: Any) -> Any:
        """Append what is new: where it belongs is found when it is committed."""
        return place.assign(reports=place["reports"] + 1)

    fetch() >> count()
# [END place]
