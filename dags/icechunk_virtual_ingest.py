"""Many NetCDF files as one dataset, without copying them: the repository references their chunks.

Spark reads the headers and chunk indexes of the files; the repository gets references with
location, offset, length and a checksum, all in one commit. The files stay where they are, and
readers see one array along the time axis. Reading a file that was changed afterwards is an error.

The repository declares where its virtual chunks may be, and readers must also authorize that
location: a stored URL alone opens nothing.

Needs two connections, `icechunk_default` and `spark_default`, and the extra `hdf5` where Spark
runs. The environment variable `ICECHUNK_ARCHIVE` names the folder with the files; an empty folder
gets three small files, for which Xarray and `h5netcdf` are needed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

REPOSITORY = "{{ params.repository }}"
ARCHIVE = os.environ.get("ICECHUNK_ARCHIVE") or f"{tempfile.gettempdir()}/icechunk-archive"
PREFIX = f"file://{ARCHIVE}/"

with DAG(
    dag_id="icechunk_virtual_ingest",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("archive", type="string", minLength=1),
        "files": Param("*.nc", type="string", minLength=1, description="names in the folder"),
    },
    doc_md=__doc__,
) as dag:

    @task
    def find_files(pattern: str) -> int:
        """Count the files, creating some if there are none."""
        import numpy as np
        import xarray

        folder = Path(ARCHIVE)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.glob(pattern)):
            values = np.random.default_rng(1).random((3, 2, 6, 8))
            for number, days in enumerate(values):
                field = xarray.DataArray(days, dims=("time", "y", "x"), name="field")
                field.assign_coords(time=[2 * number, 2 * number + 1]).to_netcdf(
                    folder / f"{number}.nc",
                    engine="h5netcdf",
                    encoding={"field": {"chunksizes": days.shape}},
                )
        return len(list(folder.glob(pattern)))

    # [START virtual]
    create_repository = IcechunkCreateRepositoryOperator(
        task_id="create_repository",
        repository=REPOSITORY,
        config={
            "virtual_chunk_containers": {
                PREFIX: {"url_prefix": PREFIX, "store": {"local_file_system": ARCHIVE}}
            }
        },
    )
    refer = IcechunkSparkSubmitOperator(
        task_id="refer",
        repository=REPOSITORY,
        writes=[
            {
                "kind": "virtual",
                "files": [f"{ARCHIVE}/{{{{ params.files }}}}"],
                "along": "time",
                "start": 0,
                "authorize": [PREFIX],
            }
        ],
        message="refer to {{ params.files }}",
        env_vars={"PYSPARK_DRIVER_PYTHON": sys.executable},
        conf={"spark.ui.enabled": "false", "spark.log.level": "WARN"},
    )

    @task
    def look(repository: str) -> dict[str, list[int]]:
        """Read the last step of every array through the references."""
        import zarr

        opened = IcechunkHook().open(repository)
        allowed = opened.reopen(authorize_virtual_chunk_access={PREFIX: None})
        root = zarr.open_group(allowed.readonly_session("main").store, mode="r")
        shapes: dict[str, Any] = {}
        for name, array in root.arrays():
            array[-1]
            shapes[name] = list(array.shape)
        return shapes

    # [END virtual]
    found = find_files("{{ params.files }}")
    found >> create_repository >> refer >> look(REPOSITORY)
