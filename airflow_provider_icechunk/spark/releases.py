"""What a release of PySpark lacks, and what to do without it.

Functions work on Spark 3.5 and later; the data source needs 4.0, its parts for streams 4.1 and 4.2.
`pyspark-client` has only what Spark Connect can do: no `SparkContext`, and no tasks of its own.
"""

from __future__ import annotations

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
