"""Many NetCDF files as one data set, without copying them: the repository refers to their chunks.

Spark reads the headers of the files and each file's own index of chunks; the repository gets
references with location, offset, length and a checksum, all in one commit. The files stay where
they are, and readers see one array along the time. A file that is changed afterwards is refused
when it is read.

The repository declares from where it may refer to chunks, and whoever reads has to allow that place
again: a stored address alone opens nothing.

Needs two connections, `icechunk_default` and `spark_default`, and `h5py` where Spark runs. The
files are in the folder that the variable `ICECHUNK_ARCHIVE` of the environment names; an empty one
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
        "files": Param("*.nc", type="string", minLength=1, description="names below the folder"),
    },
    doc_md=__doc__,
) as dag:

    @task
    def find_files(pattern: str) -> int:
        """Count the files; where there are none, make some."""
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
