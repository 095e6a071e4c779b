"""Frames of metadata hold what the engine tells, and what the command line prints."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.cli.run import main
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.columns import arrow_schema, spark_schema
from airflow_provider_icechunk.spark.read.metadata import (
    METADATA_COLUMNS,
    plan_metadata,
    read_metadata,
)
from airflow_provider_icechunk.spark.source.source import IcechunkSource


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository.create(local_filesystem_storage(tmp_path / "repository"))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("time", data=np.arange(4), dimension_names=("time",))
    t = root.create_array(
        "t", shape=(4, 6), chunks=(1, 6), dtype="int64", dimension_names=("time", "x")
    )
    t[:2] = 7
    t[3] = 8
    first = session.commit("first", metadata={"dag": "weather"})
    repository.create_tag("v1", first)
    session = repository.writable_session("main")
    zarr.open_group(session.store)["t"][0, 0] = 9
    session.commit("second")
    return repository


def rows(repository: Repository, table: str, path: str = "/", **more: Any) -> list[dict[str, Any]]:
    reading = plan_metadata(
        repository, table, path, repository.lookup_branch("main"), more.get("dim")
    )
    batches = [batch for task in reading.tasks for batch in reading.read(task)]
    assert all(batch.schema == arrow_schema(reading.columns) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def printed(repository: Repository, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    place = str(repository.storage.location).removeprefix("file://")
    assert main([words[0], place, *words[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_snapshots_and_refs_are_those_of_the_log(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(repository, capsys, "log", "--all")["snapshots"]
    found = rows(repository, "snapshots")
    assert [(one["snapshot_id"], one["branches"], one["tags"]) for one in found] == [
        (one["id"], one["branches"], one["tags"]) for one in told
    ]
    assert json.loads(found[1]["metadata"])["dag"] == "weather"
    heads = {(one["type"], one["name"]): one["message"] for one in rows(repository, "refs")}
    assert heads == {("branch", "main"): "second", ("tag", "v1"): "first"}
    history = rows(repository, "history")
    assert [one["back"] for one in history] == [0, 1, 2]
    assert [one["snapshot_id"] for one in history] == [one["id"] for one in told]


def test_arrays_are_those_of_the_tree(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(repository, capsys, "tree", "--chunks")["nodes"]
    arrays = [{k: v for k, v in one.items() if k != "type"} for one in told if one["shape"]]
    assert rows(repository, "arrays") == arrays
    assert [one["path"] for one in rows(repository, "arrays", "t")] == ["/t"]


def test_chunks_name_files_that_are_listed(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = rows(repository, "chunks", "t")
    assert [one["chunk"] for one in chunks] == [[0, 0], [1, 0], [3, 0]]
    files = rows(repository, "files")
    counted = Counter(one["folder"] for one in files)
    told = printed(repository, capsys, "measure")["files"]
    assert counted == Counter({name: one["count"] for name, one in told.items() if one["count"]})
    sizes = {one["name"]: one["bytes"] for one in files}
    for one in rows(repository, "chunks"):
        assert one["kind"] != "native" or sizes[one["file"]] >= one["offset"] + one["length"]


def test_coverage_tells_what_is_missing(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(repository, capsys, "coverage", "t")
    found = rows(repository, "coverage", "t", dim="time")
    assert [[one["first"], one["last"]] for one in found if one["present"]] == [
        [str(label) for label in pair] for pair in told["present"]
    ]
    assert [one["first"] for one in found if not one["present"]] == ["2"]
    assert rows(repository, "coverage") == found


def test_other_tables_and_paths_are_refused(repository: Repository) -> None:
    with pytest.raises(InvalidInputError, match="snapshots, refs, history"):
        rows(repository, "branches")
    with pytest.raises(InvalidInputError, match="no array and no group at 'z'"):
        rows(repository, "arrays", "z")
    with pytest.raises(InvalidInputError, match="`dim` applies to coverage"):
        rows(repository, "arrays", dim="time")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_shows_metadata_by_option_and_by_function(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    place = str(tmp_path / "repository")
    chunks = read_metadata(spark, place, "chunks", "t")
    assert [row["chunk"] for row in chunks.orderBy("chunk").collect()] == [[0, 0], [1, 0], [3, 0]]
    shown = spark.read.format("icechunk").option("metadata", "refs").load(place)
    assert [row["name"] for row in shown.collect()] == ["main", "v1"]


def test_the_source_reads_every_table(repository: Repository, tmp_path: Path) -> None:
    for table, columns in METADATA_COLUMNS.items():
        source = IcechunkSource({"path": str(tmp_path / "repository"), "metadata": table})
        reader = source.reader(StructType())
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sum(len(batch) for batch in batches) > 0
        assert source.schema() == spark_schema(columns)
