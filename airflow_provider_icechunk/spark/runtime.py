"""The Spark driver: versions, the package for executors, errors raised on executors.

Not every Python process that Spark starts gets the zip: the one that plans the batches of a stream
runs on the driver's machine without it. Data sources therefore carry the path of the package.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyspark
import zarr
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import airflow_provider_icechunk
from airflow_provider_icechunk import exceptions
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.location import locate
from airflow_provider_icechunk.engine.workers.shipping import package_sources, write_zip
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    InvalidInputError,
    SessionError,
    UnsupportedError,
)

from .releases import refuse_mixture, spark_context


def zipped_package(folder: Path | None = None) -> Path:
    """Write the package as a zip to a folder (a temporary one by default) and return its path.

    It contains only source files and no timestamps, so a release always gives the same bytes.
    """
    where = Path(tempfile.mkdtemp(prefix="icechunk-")) if folder is None else folder
    name = airflow_provider_icechunk.__name__
    target = where / f"{name}-{airflow_provider_icechunk.__version__}.zip"
    write_zip(target, package_sources())
    return target


def package_root() -> str:
    """What must be on Python's path to import the package: a folder, or the zip."""
    return str(Path(airflow_provider_icechunk.__file__).parents[1])


def arrive(root: str, options: Mapping[str, str]) -> Any:
    """Recreate the data source in a Python process that may not have the package on its path.

    :param root: path of the package in the process that sent it.
    """
    import importlib
    import sys

    name = "airflow_provider_icechunk.spark.source.source"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        sys.path.append(root)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
    return module.IcechunkSource(options)


# Pickled as code, not by name: a name could only be resolved where the package is importable.
arrive.__module__ = "__main__"
_PR_SET_PDEATHSIG = 1
_BORN = os.getpid(), os.getppid()
_STARTED_BY = {
    "PYSPARK_GATEWAY_PORT": "`spark-submit`",
    "AIRFLOW_CTX_DAG_RUN_ID": "an Airflow task",
}
"""Environment variables of drivers that must end with their parent, and what the parent is."""


def parent() -> int:
    """The process that started this one, even if it has ended; in a fork, the current parent."""
    return _BORN[1] if os.getpid() == _BORN[0] else os.getppid()


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends; only works on Linux.

    Airflow kills a job by killing `spark-submit`; the Python driver would keep writing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent():
            raise SystemExit("icechunk: the process that started this driver has ended")


def refuse_orphan(started_by: int) -> None:
    """Refuse to commit if the process that started this driver was killed.

    A program that was started by hand may outlive its shell.

    :param started_by: what `parent` returned when the work started.
    """
    by = next((name for key, name in _STARTED_BY.items() if key in os.environ), None)
    if by is not None and os.getppid() != started_by:
        raise SessionError(
            f"this driver was started by {by}, which has ended: nothing is committed. A new "
            "attempt with the same job id reuses the finished tasks"
        )


def start(name: str) -> SparkSession:
    """A session on the master that `spark-submit` set, or else on this machine."""
    refuse_mixture()
    spark_context()._ensure_initialized()
    from pyspark import SparkConf

    master = SparkConf().get("spark.master", "local[*]") or "local[*]"
    os.environ["PYSPARK_PYTHON"] = python_of_tasks(master, os.environ.get("PYSPARK_PYTHON"))
    submitted = SparkConf().get("spark.app.name", "") or ""
    spark = (
        SparkSession.builder.master(master)
        # `spark-submit` names an application after its file unless a name is given.
        .appName(name if not submitted or submitted.endswith(".py") else submitted)
        .config("spark.speculation", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    check_versions(pyspark.__version__, spark.version)
    if not _is_local(master):
        spark.sparkContext.addPyFile(str(zipped_package()))
    return spark


@contextmanager
def start_for_task(
    name: str, *, master: str, remote: str | None, config: Mapping[str, str]
) -> Iterator[SparkSession]:
    """A session inside a task: on a master, or of the Spark Connect server `remote`.

    Remote executors get this package as a zip, which precedes an installed one.
    """
    refuse_mixture()
    if remote:
        builder = SparkSession.builder.remote(remote).appName(name)
    else:
        spark_context()
        os.environ["PYSPARK_PYTHON"] = python_of_tasks(master, os.environ.get("PYSPARK_PYTHON"))
        builder = SparkSession.builder.master(master).appName(name)
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.speculation", "false")
    for key, value in config.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        check_versions(pyspark.__version__, spark.version)
        if remote:
            spark.addArtifacts(str(zipped_package()), pyfile=True)
        else:
            spark.sparkContext.setLogLevel("WARN")
            if not _is_local(master):
                spark.sparkContext.addPyFile(str(zipped_package()))
        yield spark
    finally:
        spark.stop()


def python_of_tasks(master: str, named: str | None) -> str:
    """The Python for tasks: this one on a local master, elsewhere `named` if it is set.

    Otherwise Spark would use the first `python3` on PATH.
    """
    return named if named and not _is_local(master) else sys.executable


def _is_local(master: str) -> bool:
    return master.startswith("local")


def check_versions(python_side: str, spark_side: str) -> None:
    """Refuse different versions of PySpark and Spark: every Python function would fail."""
    if python_side != spark_side:
        raise UnsupportedError(
            f"PySpark is {python_side} but Spark is {spark_side}. The packages `pyspark` and "
            "`pyspark-client` install into the same folder: install both in the version of the "
            "cluster"
        )


Result = TypeVar("Result")

_SAID = re.compile(r"airflow_provider_icechunk\.exceptions\.(\w+): (.+)")


def on_executors(action: Callable[[], Result]) -> Result:
    """Run a Spark action; an error of this package on an executor is raised as itself."""
    try:
        return action()
    except PySparkException as error:
        found = said(str(error))
        if found is None:
            raise
        raise found from error


def said(report: str) -> IcechunkError | None:
    """The last error of this package in a Spark error report, which quotes tracebacks as text."""
    reported = _SAID.findall(report)
    if not reported:
        return None
    name, message = reported[-1]
    kind = getattr(exceptions, name, None)
    if not (isinstance(kind, type) and issubclass(kind, IcechunkError)):
        return None
    try:
        return kind(message.strip())
    except TypeError:
        # Some errors need more than a message, and the report does not contain it.
        return IcechunkError(message.strip())


_LONGEST_TEXT = 2000


def one_line(error: BaseException) -> str:
    """An exception on one line, in the form that `said` finds in a Spark error report."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_TEXT]


RepositoryLike = Repository | Storage | str
"""An open repository, its storage, or its address; executors use their own credentials."""


def opened(repository: RepositoryLike) -> Repository:
    """The repository, opened if necessary."""
    if isinstance(repository, Repository):
        return repository
    return Repository.open(locate(repository) if isinstance(repository, str) else repository)


def open_array(session: Session | ForkSession, path: str) -> zarr.Array[Any]:
    """An array of the session; it must exist, because workers cannot create it."""
    group = zarr.open_group(session.store, mode="r" if session.read_only else "r+")
    node = group.get(path.strip("/"))
    if not isinstance(node, zarr.Array):
        raise InvalidInputError(
            f"the session has no array {path!r}: create it before the job starts (`prepare=`, or "
            "`arrays=` of IcechunkOpenSessionOperator)"
        )
    return node


def cores(spark: SparkSession) -> int:
    """How many tasks Spark runs at once; a guess on Spark Connect, which does not say."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - the class of the error differs between releases
        return 8
