"""What a release of PySpark lacks, and the alternative.

Functions work on Spark 3.5 and later; the data source needs 4.0, its parts for streams 4.1 and 4.2.
`pyspark-client` has only what Spark Connect can do: no `SparkContext`, and no tasks of its own.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pyspark

from airflow_provider_icechunk.exceptions import UnsupportedError

if TYPE_CHECKING:
    from pyspark import TaskContext


def missing(what: str, since: str, instead: str) -> UnsupportedError:
    """The error for something that this release of PySpark does not have."""
    return UnsupportedError(
        f"{what} needs Spark {since} or later, and PySpark is {pyspark.__version__}: {instead}"
    )


def refuse_mixture() -> None:
    """Refuse two releases of PySpark in one folder, before a session starts on them.

    `pyspark` and `pyspark-client` overwrite each other's files, and `pip check` sees nothing wrong.
    """
    found = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if len(set(found.values())) > 1:
        told = " and ".join(f"{name} {release}" for name, release in found.items())
        newest = max(found.values(), key=lambda text: [int(n) for n in re.findall(r"\d+", text)])
        raise UnsupportedError(
            f"{told} install into the same folder, and each has overwritten files of the other: "
            "install both in the release of the cluster: pip install --force-reinstall --no-deps "
            f"pyspark=={newest} pyspark-client=={newest}"
        )


def spark_context() -> Any:
    """The class `SparkContext`, which `pyspark-client` alone does not have."""
    try:
        from pyspark import SparkContext
    except ImportError:
        raise UnsupportedError(
            "only pyspark-client is installed, which talks to a Spark Connect server and starts no "
            "Spark: give the address of a server (`remote`, `SPARK_REMOTE`), or install the whole "
            f'of Spark: pip install "pyspark=={pyspark.__version__}"'
        ) from None
    return SparkContext


def task_context() -> TaskContext:
    """The context of the task that is running here."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context
