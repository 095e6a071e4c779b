"""What the front ends accept as a repository, and the nodes they look up in it."""

from __future__ import annotations

from typing import Any

import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.locate import locate
from airflow_provider_icechunk.zarr_store.sessions import ForkSession, Repository, Session

RepositoryLike = Repository | Storage | str
"""An open repository, its storage, or its address; executors use credentials of their own."""


def opened(repository: RepositoryLike) -> Repository:
    """The repository, opened if it is only named."""
    if isinstance(repository, Repository):
        return repository
    return Repository.open(locate(repository) if isinstance(repository, str) else repository)


def open_array(session: Session | ForkSession, path: str) -> zarr.Array[Any]:
    """An array of the session; a missing one is refused, because workers cannot create it."""
    group = zarr.open_group(session.store, mode="r" if session.read_only else "r+")
    node = group.get(path.strip("/"))
    if not isinstance(node, zarr.Array):
        raise InvalidInputError(
            f"the session has no array {path!r}: create it before work is handed out (`prepare=`, "
            "or `arrays=` of IcechunkOpenSessionOperator)"
        )
    return node


def cores(spark: SparkSession) -> int:
    """How many tasks Spark runs at once; a guess on Spark Connect, which does not tell."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - the class of the error differs between releases
        return 8
