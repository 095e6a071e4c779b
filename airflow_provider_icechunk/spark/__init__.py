"""Array jobs on Spark: plans, tasks that run on executors, the data source.

The functions for Spark users are exported lazily, because Airflow imports this package without
PySpark.

Executors have no Airflow and never commit: they write chunk files and return columns of references.
May import `engine` and `pyspark`; never Airflow.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.arrays.rechunk import RechunkPlan
    from airflow_provider_icechunk.spark.maintenance.compact import compact
    from airflow_provider_icechunk.spark.maintenance.maintenance import (
        collect,
        garbage_collect,
        measure,
        verify,
    )
    from airflow_provider_icechunk.spark.maintenance.procedures import call
    from airflow_provider_icechunk.spark.read.frames import read_dataframe
    from airflow_provider_icechunk.spark.read.metadata import read_metadata
    from airflow_provider_icechunk.spark.source.source import IcechunkSource
    from airflow_provider_icechunk.spark.write.files import ingest_files
    from airflow_provider_icechunk.spark.write.frames import Axis, write_chunks, write_dataframe
    from airflow_provider_icechunk.spark.write.functions import Region
    from airflow_provider_icechunk.spark.write.job import JobResult, SparkWriteJob
    from airflow_provider_icechunk.spark.write.rechunk import rechunk
    from airflow_provider_icechunk.spark.write.regions import write_regions
    from airflow_provider_icechunk.spark.write.tables import save_dataframe
    from airflow_provider_icechunk.spark.write.virtual import ingest_virtual, plan_virtual

    from .runtime import zipped_package
    from .script import PipelineJob, pipeline_job
    from .submit import run_job

__all__ = [
    "APPLICATION",
    "Axis",
    "IcechunkSource",
    "JobResult",
    "PipelineJob",
    "RechunkPlan",
    "Region",
    "SparkWriteJob",
    "call",
    "collect",
    "compact",
    "garbage_collect",
    "ingest_files",
    "ingest_virtual",
    "measure",
    "pipeline_job",
    "plan_virtual",
    "read_dataframe",
    "read_metadata",
    "rechunk",
    "run_job",
    "save_dataframe",
    "verify",
    "write_chunks",
    "write_dataframe",
    "write_regions",
    "zipped_package",
]

APPLICATION = str(Path(__file__).with_name("main.py"))
"""The application file for `SparkSubmitOperator` or `spark-submit`."""

_LATE = {
    "Axis": "airflow_provider_icechunk.spark.write.frames",
    "IcechunkSource": "airflow_provider_icechunk.spark.source.source",
    "JobResult": "airflow_provider_icechunk.spark.write.job",
    "PipelineJob": "airflow_provider_icechunk.spark.script",
    "RechunkPlan": "airflow_provider_icechunk.engine.arrays.rechunk",
    "Region": "airflow_provider_icechunk.spark.write.functions",
    "SparkWriteJob": "airflow_provider_icechunk.spark.write.job",
    "call": "airflow_provider_icechunk.spark.maintenance.procedures",
    "collect": "airflow_provider_icechunk.spark.maintenance.maintenance",
    "compact": "airflow_provider_icechunk.spark.maintenance.compact",
    "garbage_collect": "airflow_provider_icechunk.spark.maintenance.maintenance",
    "ingest_files": "airflow_provider_icechunk.spark.write.files",
    "ingest_virtual": "airflow_provider_icechunk.spark.write.virtual",
    "measure": "airflow_provider_icechunk.spark.maintenance.maintenance",
    "pipeline_job": "airflow_provider_icechunk.spark.script",
    "plan_virtual": "airflow_provider_icechunk.spark.write.virtual",
    "read_dataframe": "airflow_provider_icechunk.spark.read.frames",
    "read_metadata": "airflow_provider_icechunk.spark.read.metadata",
    "rechunk": "airflow_provider_icechunk.spark.write.rechunk",
    "run_job": "airflow_provider_icechunk.spark.submit",
    "save_dataframe": "airflow_provider_icechunk.spark.write.tables",
    "verify": "airflow_provider_icechunk.spark.maintenance.maintenance",
    "write_chunks": "airflow_provider_icechunk.spark.write.frames",
    "write_dataframe": "airflow_provider_icechunk.spark.write.frames",
    "write_regions": "airflow_provider_icechunk.spark.write.regions",
    "zipped_package": "airflow_provider_icechunk.spark.runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_LATE[name])
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs {error.name}, which is not installed here: "
            'pip install "airflow-provider-icechunk[spark]", with the release of the cluster',
            name=error.name,
        ) from None
    # Kept, because a file may have the name of the function it defines.
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return __all__
