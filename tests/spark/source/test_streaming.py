"""Streams from end to end: batches that are committed once, changes that are told once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.streams import attempt, content, history, reader, rows, short

from airflow_provider_icechunk.api import Repository, RepositoryConfig, local_filesystem_storage
from airflow_provider_icechunk.spark.source.stream_write import BATCH_KEY, MicroBatch


@pytest.mark.parametrize("generation", ["2", "alpha", "alpha1", "draft"])
def test_every_generation_of_the_format_can_be_streamed(tmp_path: Path, generation: str) -> None:
    place = str(tmp_path / "other")
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = Repository.create(local_filesystem_storage(place), config, spec_version=generation)
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(8, 10), chunks=(1, 4), dtype="int64", fill_value=0)
    start = session.commit("first")
    for value in (1, 2):
        writer, messages = attempt(place, value=value)
        writer.commit(list(messages), 5)
    writer, messages = attempt(place, batch=MicroBatch("q", 6), value=3)
    writer.abort([messages[0], None], 6)
    assert content(place)[:3, 0].tolist() == [1, 1, 0]
    source = reader(place, since=start)
    found = rows(source, source.initialOffset(), source.reportLatestOffset())
    assert short(found) == [
        ("batch 5 of a", "/a", "written", (row, part)) for row in range(2) for part in range(3)
    ]


def put_input(folder: Path, number: int, rows: dict[int, int]) -> None:
    """A file of the stream: for each row of the array its value."""
    lines = [
        f'{{"row": {row}, "part": {part}, "value": {value}}}'
        for row, value in rows.items()
        for part in range(3)
    ]
    file = folder / f"{number}.json"
    file.write_text("\n".join(lines))
    # Spark takes the oldest file first.
    os.utime(file, (1_000_000 + number, 1_000_000 + number))


def run_to_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query that ends by itself.

    Spark gives a new Python process ten seconds to connect, too few on a very busy machine.
    """
    for _ in range(4):
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query
    pytest.fail("Spark could not start a Python process")


def run_stream(spark: SparkSession, folder: Path, place: str, checkpoint: Path) -> None:
    """Write all files that are there, a batch for each, and stop."""
    cells = "transform(sequence(1, if(part = 2, 2, 4)), x -> value)"
    stream = (
        spark.readStream.schema("row long, part long, value long")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder))
        .repartition(2, "row")
        .selectExpr("array(row, part) as chunk", f"{cells} as cells")
        .selectExpr(
            "chunk",
            "unhex(array_join(transform(cells, x -> rpad(hex(x), 16, '0')), '')) as data",
        )
    )
    writer = stream.writeStream.format("icechunk").trigger(availableNow=True)
    options = {"node": "a", "path": place, "checkpointLocation": str(checkpoint)}
    run_to_end(writer.options(**options).start)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_a_stream_is_written_once_and_its_changes_are_read_once(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    put_input(folder, 0, {0: 17, 4: 27})
    run_stream(spark, folder, place, checkpoint)
    assert content(place)[:, 0].tolist() == [17, 0, 0, 0, 27, 0, 0, 0]
    assert (content(place)[0] == 17).all()
    assert [info.metadata.get(BATCH_KEY) for info in history(place)] == [0, None, None]

    # As if Spark had died after our commit and before its own note of it.
    for name in ("commits/0", "commits/.0.crc"):
        (checkpoint / name).unlink()
    put_input(folder, 1, {1: 33})
    run_stream(spark, folder, place, checkpoint)
    assert [info.metadata.get(BATCH_KEY) for info in history(place)] == [1, 0, None, None]
    assert content(place)[:, 0].tolist() == [17, 33, 0, 0, 27, 0, 0, 0]

    first = history(place)[-2].id
    changes = {"layout": "changes", "since": first, "commits_per_batch": "1"}
    stream = spark.readStream.format("icechunk").options(**changes).load(place)
    told = stream.writeStream.format("memory").queryName("told").trigger(availableNow=True)
    query = run_to_end(told.start)
    assert len([step for step in query.recentProgress if step["numInputRows"]]) == 2
    frame = spark.read.format("icechunk").options(**changes).load(place)
    for told_rows in (spark.table("told").collect(), frame.collect()):
        assert sorted((row["message"], row["change"], *row["chunk"]) for row in told_rows) == [
            (f"batch {batch} of a", "written", row, part)
            for batch, written in enumerate([(0, 4), (1,)])
            for row in written
            for part in range(3)
        ]
