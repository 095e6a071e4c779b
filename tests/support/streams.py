"""Batches and changes of streams without Spark: the calls of its driver and tasks, made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
from airflow_provider_icechunk.engine.workers.codec import encode_fragment
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.spark.source.options import parse_options
from airflow_provider_icechunk.spark.source.source import IcechunkSource
from airflow_provider_icechunk.spark.source.stream_read import IcechunkStreamReader
from airflow_provider_icechunk.spark.source.stream_write import (
    BatchPart,
    IcechunkStreamWriter,
    MicroBatch,
)

SCHEMA = StructType(
    [StructField("chunk", ArrayType(LongType())), StructField("data", BinaryType())]
)
BATCH = MicroBatch("q", 5)


def attempt(
    place: str, *, batch: MicroBatch = BATCH, value: int = 1, **options: str
) -> tuple[IcechunkStreamWriter, list[BatchPart]]:
    """A writer, and the messages of two tasks that wrote a chunk each."""
    source = IcechunkSource({"path": place, "node": "a", **options})
    writer = source.streamWriter(SCHEMA, False)
    work = WorkUnit.from_json({**writer._work.to_json(), "job": batch.job})
    messages = []
    for number in range(2):
        fork = repository_at(place).fork(work)
        zarr.open_array(fork.store, path="a", mode="r+")[number] = value
        fragment = encode_fragment(fork.fragment(f"task {number}"))
        messages.append(BatchPart(fragment, work.to_json(), batch, writer._attempt))
    return writer, messages


def repository_at(place: str) -> Repository:
    return Repository.open(parse_options({"path": place}).storage())


def content(place: str) -> Any:
    store = repository_at(place).readonly_session("main").store
    return np.asarray(zarr.open_array(store, path="a", mode="r")[:])


def history(place: str) -> list[SnapshotInfo]:
    return list(repository_at(place).ancestry(branch="main"))


def chunk_files(place: str) -> set[str]:
    return {file.name for file in Path(place).glob("chunks/*")}


def commit_attribute(place: str, name: str) -> str:
    session = repository_at(place).writable_session("main")
    zarr.open_group(session.store, mode="r+").attrs[name] = "there"
    return session.commit(name)


def reader(place: str, **options: str) -> IcechunkStreamReader:
    return IcechunkSource({"path": place, "layout": "changes", **options}).streamReader(SCHEMA)


def rows(source: IcechunkStreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    parts = source.partitions(start, end)
    return [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]


def short(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (row["message"], row["path"], row["change"], tuple(row["chunk"] or ())) for row in found
    )
