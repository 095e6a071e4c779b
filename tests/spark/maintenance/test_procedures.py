"""Maintenance by name: the answers of the engine as frames, and refusals before any work."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.exceptions import InvalidInputError, MaintenanceError
from airflow_provider_icechunk.spark import call


def test_unknown_names_and_arguments_are_refused(repository: Repository) -> None:
    nothing: Any = None
    with pytest.raises(InvalidInputError, match="choose one of expire, collect, compact, verify"):
        call(nothing, "vacuum", repository)
    with pytest.raises(InvalidInputError, match="collect has no argument 'retain'"):
        call(nothing, "system.collect", repository, retain=3)
    with pytest.raises(MaintenanceError, match="younger than"):
        call(nothing, "collect", repository, older_than="1h")
    with pytest.raises(MaintenanceError, match="younger than"):
        call(nothing, "expire", repository, older_than=datetime.now(UTC) - timedelta(hours=1))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_procedures_answer_with_a_row(spark: SparkSession, place: str) -> None:
    repository = Repository.open(_storage(place))
    session = repository.writable_session("main")
    zarr.open_group(session.store)["a"][:] = 5
    session.commit("filled")
    (row,) = call(spark, "system.verify", place).collect()
    assert row["ok"] is True
    (row,) = call(spark, "collect", place, older_than="7d", dry_run=True).collect()
    assert (row["dry_run"], row["bytes_deleted"]) == (True, 0)
    (row,) = call(
        spark, "expire", place, older_than="0s", minimum_age="0s", keep_last=1, dry_run=True
    ).collect()
    assert row["dry_run"] is True
    (row,) = call(spark, "rechunk", place, array="a", chunks=[4, 10]).collect()
    assert row["snapshot_id"] == repository.lookup_branch("main")
    (row,) = call(spark, "compact", place, dry_run=True).collect()
    assert row["branch"] == "main"
    (row,) = call(spark, "rewrite_manifests", place).collect()
    assert row["snapshot_id"] == repository.lookup_branch("main")
    (row,) = call(spark, "measure", place).collect()
    assert json.loads(row["files"])["snapshots"]["count"] > 1


def _storage(place: str) -> Any:
    from airflow_provider_icechunk.api import local_filesystem_storage

    return local_filesystem_storage(place)
