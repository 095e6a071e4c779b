"""The traps between a Python driver and its Spark, sprung early and with a clear word."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from airflow_provider_icechunk.exceptions import SessionError, UnsupportedError
from airflow_provider_icechunk.spark.shipping import zipped_package

_PR_SET_PDEATHSIG = 1
_BORN = os.getpid(), os.getppid()
_STARTED_BY = {
    "PYSPARK_GATEWAY_PORT": "`spark-submit`",
    "AIRFLOW_CTX_DAG_RUN_ID": "an Airflow task",
}
"""What is set in the environment of a driver whose end follows from that of its parent."""


def parent() -> int:
    """The process that started this one, also if it has ended since. In a fork, the one it has."""
    return _BORN[1] if os.getpid() == _BORN[0] else os.getppid()


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends; does nothing but on Linux.

    Airflow kills a job by killing `spark-submit`. The Python driver would live on and keep writing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent():
            raise SystemExit("icechunk: whoever started this driver has ended already")


def refuse_orphan(started_by: int) -> None:
    """Refuse to go on if what started this driver was killed: then its work must not be seen.

    A program that was started by hand may outlive its shell.

    :param started_by: what `parent` said when the work began.
    """
    by = next((name for key, name in _STARTED_BY.items() if key in os.environ), None)
    if by is not None and os.getppid() != started_by:
        raise SessionError(
            f"this driver was started by {by}, which has ended: nothing is committed. An attempt "
            "with the same job id takes over what its tasks have finished"
        )


def start(name: str) -> SparkSession:
    """A session on the master that `spark-submit` chose, or on this machine without one."""
    SparkContext._ensure_initialized()
    master = SparkConf().get("spark.master", "local[*]") or "local[*]"
    os.environ["PYSPARK_PYTHON"] = python_of_tasks(master, os.environ.get("PYSPARK_PYTHON"))
    spark = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.speculation", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    check_versions(pyspark.__version__, spark.version)
    if not _is_local(master):
        spark.sparkContext.addPyFile(str(zipped_package()))
    return spark


def python_of_tasks(master: str, named: str | None) -> str:
    """The Python that runs tasks: this one here; elsewhere the one that was named, or its like.

    Without a name Spark would take whatever `python3` is first on PATH.
    """
    return named if named and not _is_local(master) else sys.executable


def _is_local(master: str) -> bool:
    return master.startswith("local")


def check_versions(python_side: str, spark_side: str) -> None:
    """Refuse a PySpark of another release than its Spark: every Python function would fail."""
    if python_side != spark_side:
        raise UnsupportedError(
            f"PySpark is {python_side} but Spark is {spark_side}. The packages `pyspark` and "
            "`pyspark-client` unpack into the same folder: install both in the version of the "
            "cluster"
        )
