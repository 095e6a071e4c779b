"""Files in, tasks that speak Xarray, files out; a backup, its restore, and a commit taken back.

A NetCDF file becomes a commit. A task reads exactly that commit as an Xarray `Dataset`; another one
returns a `Dataset`, which is written and committed. The result goes out as a NetCDF file, and the
whole repository is copied to another place and from there to a third one. At last the import is
taken back: what was made from it stays.

Needs the connection `icechunk_default` (a bucket or a directory), and the extra `netcdf`.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.transfer import (
    IcechunkBackupOperator,
    IcechunkExportOperator,
    IcechunkImportOperator,
    IcechunkRestoreOperator,
    IcechunkRevertOperator,
)

REPOSITORY = "{{ params.repository }}"
IMPORTED = "{{ ti.xcom_pull('import_file')['snapshot_id'] }}"

with DAG(
    dag_id="icechunk_xarray",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("observations", type="string", minLength=1),
        "source": Param("/tmp/incoming.nc", type="string"),  # noqa: S108 - an example
        "target": Param("/tmp/anomaly.nc", type="string"),  # noqa: S108 - an example
    },
    doc_md=__doc__,
) as dag:
    create_repository = IcechunkCreateRepositoryOperator(
        task_id="create_repository", repository=REPOSITORY
    )
    import_file = IcechunkImportOperator(
        task_id="import_file", repository=REPOSITORY, source="{{ params.source }}", group="raw"
    )

    # [START xarray]
    @task.icechunk(repository=REPOSITORY, read={"snapshot_id": IMPORTED}, group="raw")
    def highest(dataset: Any) -> dict[str, float]:
        """Look at what was imported; nothing is committed."""
        return {name: float(one.max()) for name, one in dataset.data_vars.items()}

    @task.icechunk(repository=REPOSITORY, group="anomaly", mode="a")
    def anomaly(snapshot_id: str, repository: str) -> Any:
        """What is returned is written and committed."""
        from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

        raw = IcechunkHook().to_xarray(repository, snapshot_id=snapshot_id, group="raw")
        return (raw - raw.mean("time")).drop_encoding()

    # [END xarray]
    # [START transfer]
    export = IcechunkExportOperator(
        task_id="export", repository=REPOSITORY, group="anomaly", target="{{ params.target }}"
    )
    backup = IcechunkBackupOperator(
        task_id="backup", repository=REPOSITORY, target=f"backup/{REPOSITORY}"
    )
    restore = IcechunkRestoreOperator(
        task_id="restore", repository=f"restored/{REPOSITORY}", target=f"backup/{REPOSITORY}"
    )
    revert = IcechunkRevertOperator(task_id="revert", repository=REPOSITORY, snapshot_id=IMPORTED)
    # [END transfer]
    made = anomaly(IMPORTED, REPOSITORY)
    create_repository >> import_file >> [highest(), made]
    made >> [export, backup]
    backup >> restore >> revert
