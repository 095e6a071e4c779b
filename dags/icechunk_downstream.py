"""Wait for somebody else's commit, then work on exactly that version.

A sensor waits for a commit after a given snapshot that changed `temperature`. The next task reads
exactly the snapshot that the sensor found, whatever is committed in the meantime, and adds the mean
of the northern hemisphere for every day. Only the repository connects the two pipelines: they may
run in different Airflows.

Needs the connection `icechunk_default` (a bucket or a directory).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.sensors.branch import IcechunkBranchSensor

REPOSITORY = "{{ params.repository }}"

with DAG(
    dag_id="icechunk_downstream",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("weather", type="string", minLength=1),
        "since": Param("", type="string", description="a snapshot id; empty: any commit counts"),
    },
    doc_md=__doc__,
) as dag:
    # [START branch_sensor]
    wait_for_commit = IcechunkBranchSensor(
        task_id="wait_for_commit",
        repository=REPOSITORY,
        since_snapshot_id="{{ params.since }}",
        path="temperature",
        mode="reschedule",
        poke_interval=2,
        timeout=60 * 60,
    )
    # [END branch_sensor]

    # [START read_that_version]
    @task.icechunk(repository=REPOSITORY, message="mean of the north, day by day")
    def add_means(store: Any, commit: dict[str, Any], repository: str) -> int:
        """Read the version that the sensor found and add an array to it."""
        import numpy as np
        import zarr

        found = IcechunkHook().open(repository)
        version = found.readonly_session(snapshot_id=commit["snapshot_id"])
        field = zarr.open_array(version.store, path="temperature", mode="r")
        days, rows, _ = field.shape
        north = np.arange(rows // 2, rows)
        weights = np.cos(np.pi * ((north + 0.5) / rows - 0.5))
        means = np.average(np.asarray(field[:, north[0] :]).mean(2), axis=1, weights=weights)
        root = zarr.open_group(store, mode="a")
        root.create_array(
            "northern_mean",
            data=means.astype("float32"),
            dimension_names=("time",),
            attributes={"units": "K", "long_name": "mean air temperature of the northern half"},
            overwrite=True,
        )
        return int(days)

    # [END read_that_version]

    add_means(wait_for_commit.output, REPOSITORY)
