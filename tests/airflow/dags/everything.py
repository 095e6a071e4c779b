"""Every operator, sensor and decorator once, one after the other."""

import os
from pathlib import Path

from airflow.sdk import DAG, Asset, task
from airflow.sdk.bases.operator import chain

from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.operators.branch import (
    IcechunkCreateBranchOperator,
    IcechunkDeleteBranchOperator,
    IcechunkResetBranchOperator,
)
from airflow_provider_icechunk.operators.change import (
    IcechunkAttributesOperator,
    IcechunkDeclareOperator,
    IcechunkDropLabelsOperator,
)
from airflow_provider_icechunk.operators.check import IcechunkCheckOperator
from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.maintenance import (
    IcechunkCollectOperator,
    IcechunkCompactOperator,
    IcechunkExpireOperator,
    IcechunkMeasureOperator,
    IcechunkRewriteManifestsOperator,
    IcechunkVerifyOperator,
)
from airflow_provider_icechunk.operators.migrate import IcechunkMigrateOperator
from airflow_provider_icechunk.operators.publish import IcechunkPublishOperator
from airflow_provider_icechunk.operators.rechunk import IcechunkRechunkOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.session import (
    IcechunkAbortSessionOperator,
    IcechunkOpenSessionOperator,
)
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_provider_icechunk.operators.tag import (
    IcechunkCreateTagOperator,
    IcechunkDeleteTagOperator,
)
from airflow_provider_icechunk.operators.transfer import (
    IcechunkBackupOperator,
    IcechunkExportOperator,
    IcechunkImportOperator,
    IcechunkRestoreOperator,
    IcechunkRevertOperator,
)
from airflow_provider_icechunk.sensors.branch import IcechunkBranchSensor
from airflow_provider_icechunk.sensors.coverage import IcechunkCoverageSensor
from airflow_provider_icechunk.sensors.presence import IcechunkNodeSensor, IcechunkTagSensor

MAIN = Asset(name="everything_main", uri="icechunk://bucket/everything?branch=main")
HERE = {"repository": "{{ dag.dag_id }}"}
WAIT = {**HERE, "poke_interval": 0.1, "timeout": 60}
JOBS = Path(os.environ.get("TEST_JOBS", "/nonexistent"))
FILE = str(Path(os.environ.get("TEST_FILES", "/nonexistent")) / "everything.zarr")
FIELD = {
    "path": "x", "shape": [3], "dtype": "int64", "values": [1, 2, 3], "dimension_names": ["i"],
}  # fmt: skip
CHECKS = [{"check": "missing", "array": "x", "most": 0}]
NUMBERED = {**FIELD, "path": "n", "dimension_names": ["day"]}
LABELS = {**FIELD, "path": "day", "dimension_names": ["day"]}
DAYS = IcechunkDataset(
    "everything",
    dims={"day": Growing(by="labels", dtype="int64")},
    variables={"n": Variable("int64", ("day",))},
)
STEPS = IcechunkDataset(
    "everything",
    dims={"step": Growing(start="2026-01-01", every="1D")},
    variables={"m": Variable("int64", ("step",))},
)

with DAG("everything", schedule=None, catchup=False) as dag:
    create = IcechunkCreateRepositoryOperator(task_id="create", spec_version="2", **HERE)
    session = IcechunkOpenSessionOperator(task_id="open", arrays=[FIELD, NUMBERED, LABELS], **HERE)
    commit = IcechunkCommitOperator(
        task_id="commit", session=session.output, message="{{ run_id }}", outlets=[MAIN]
    )
    abort = IcechunkAbortSessionOperator(task_id="abort", session=session.output)
    branch = IcechunkCreateBranchOperator(task_id="branch", branch="staging", **HERE)

    @task.icechunk(branch="staging", **HERE)
    def write(store, value):  # type: ignore[no-untyped-def]
        import zarr

        zarr.open_array(store, path="x", mode="r+")[0] = int(value)
        return value

    written = write("{{ 40 + 2 }}")
    publish = IcechunkPublishOperator(task_id="publish", source="staging", outlets=[MAIN], **HERE)
    commit_id = "{{ ti.xcom_pull(task_ids='commit')['snapshot_id'] }}"
    import_id = "{{ ti.xcom_pull(task_ids='import')['snapshot_id'] }}"
    spark = IcechunkSparkSubmitOperator(
        task_id="spark", arrays=[{**FIELD, "path": "y"}], application=str(JOBS / "fake_job.py"),
        spark_binary=str(JOBS / "fake_spark_submit.sh"), **HERE,
    )  # fmt: skip
    chain(
        create, session, commit, abort, branch, written, publish, spark,
        IcechunkCreateTagOperator(task_id="tag", tag="v1", **HERE),
        IcechunkTagSensor(task_id="wait_tag", tag="v1", deferrable=True, **WAIT),
        IcechunkBranchSensor(
            task_id="wait_branch", since_snapshot_id=commit_id, path="x", deferrable=True, **WAIT
        ),
        IcechunkNodeSensor(task_id="wait_node", path="x", minimum_shape=[3], **WAIT),
        IcechunkCoverageSensor(task_id="wait_days", dataset=DAYS, at={"day": 1}, **WAIT),
        IcechunkDeclareOperator(task_id="declare", dataset=STEPS, **HERE),
        IcechunkAttributesOperator(task_id="describe", attributes={"x": {"units": "1"}}, **HERE),
        IcechunkDropLabelsOperator(task_id="drop", dataset=STEPS, keep=2, **HERE),
        IcechunkRechunkOperator(task_id="rechunk", array="x", chunks=[1], dry_run=True, **HERE),
        IcechunkResetBranchOperator(
            task_id="reset", branch="staging", snapshot_id=commit_id, **HERE
        ),
        IcechunkDeleteBranchOperator(task_id="delete_branch", branch="staging", **HERE),
        IcechunkDeleteTagOperator(task_id="delete_tag", tag="v1", **HERE),
        IcechunkCheckOperator(task_id="check", checks=CHECKS, **HERE),
        IcechunkExportOperator(task_id="export", target=FILE, **HERE),
        IcechunkImportOperator(task_id="import", source=FILE, group="again", **HERE),
        IcechunkRevertOperator(task_id="revert", snapshot_id=import_id, **HERE),
        IcechunkBackupOperator(task_id="backup", target="{{ dag.dag_id }}_copy", **HERE),
        IcechunkRestoreOperator(task_id="restore", target="{{ dag.dag_id }}_copy", **HERE),
        IcechunkRewriteManifestsOperator(task_id="rewrite", **HERE),
        IcechunkCompactOperator(task_id="compact", dry_run=True, **HERE),
        IcechunkExpireOperator(task_id="expire", older_than="30d", **HERE),
        IcechunkCollectOperator(task_id="collect", **HERE),
        IcechunkVerifyOperator(task_id="verify", **HERE),
        IcechunkMigrateOperator(task_id="migrate", to="2", dry_run=True, **HERE),
        IcechunkMeasureOperator(task_id="measure", **HERE),
    )  # fmt: skip
