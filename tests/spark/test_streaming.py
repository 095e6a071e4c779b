"""Streams: batches that are committed once, and changes that are told once."""

import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from airflow_provider_icechunk.api import Repository, RepositoryConfig, local_filesystem_storage
from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError, NotFoundError
from airflow_provider_icechunk.format.fragments import encode_fragment
from airflow_provider_icechunk.repository.handoff import WorkUnit
from airflow_provider_icechunk.repository.history import SnapshotInfo
from airflow_provider_icechunk.spark.source import IcechunkSource
from airflow_provider_icechunk.spark.source_options import parse_options
from airflow_provider_icechunk.spark.streaming_sink import (
    ATTEMPT_KEY,
    BATCH_KEY,
    QUERY_KEY,
    Batch,
    BatchPart,
    Earlier,
    IcechunkStreamWriter,
    find_batch,
)
from airflow_provider_icechunk.spark.streaming_source import Changes, IcechunkStreamReader

SCHEMA = StructType(
    [StructField("chunk", ArrayType(LongType())), StructField("data", BinaryType())]
)
BATCH = Batch("q", 5)


@pytest.fixture
def place(repository: Repository, tmp_path: Path) -> str:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(8, 10), chunks=(1, 4), dtype="int64", compressors=None)
    session.commit("first")
    return str(tmp_path / "repository")


def entry(name: str, query: str | None = None, batch: object = None) -> SnapshotInfo:
    details = {} if query is None else {QUERY_KEY: query, BATCH_KEY: batch, ATTEMPT_KEY: "x"}
    return SnapshotInfo(name, None, datetime.now(UTC), "", details, [])


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ([], None),
        ([entry("A"), entry("B", "other", 5)], None),
        ([entry("A"), entry("B", "q", 5)], Earlier("B", "x", True)),
        ([entry("A", "q", 4), entry("B", "q", 5)], None),
        ([entry("A", "q", 6), entry("B"), entry("C", "q", 5)], Earlier("C", "x", True)),
        ([entry("A", "q", 7), entry("B", "q", 6), entry("C", "q", 4)], Earlier("A", "x", False)),
        ([entry("A", "q", 6)], Earlier("A", "x", False)),
        ([entry("A", "q", "damaged")], None),
    ],
)
def test_a_batch_is_found_by_its_query_and_number(
    history: list[SnapshotInfo], found: Earlier | None
) -> None:
    assert find_batch(iter(history), BATCH) == found


def test_the_search_ends_at_the_batch_before() -> None:
    def history() -> Iterator[SnapshotInfo]:
        yield entry("A", "q", 4)
        raise AssertionError("this one is not needed")

    assert find_batch(history(), BATCH) is None


@given(st.lists(st.sampled_from(["next", "replay", "older", "other", "expire"]), max_size=30))
@settings(deadline=None, max_examples=200)
def test_whatever_happens_in_between_no_batch_is_committed_twice(steps: list[str]) -> None:
    """Expiration keeps the newest snapshots, as far back as the newest batch of the query."""
    line: list[SnapshotInfo] = []
    committed: list[int] = []
    current = -1
    for step in steps:
        if step == "other":
            line.insert(0, entry("other"))
        elif step == "expire":
            ours = [place for place, info in enumerate(line) if QUERY_KEY in info.metadata]
            del line[ours[0] + 1 if ours else 0 :]
        else:
            current += step == "next"
            number = max(0, current - 1 if step == "older" else current)
            if find_batch(iter(line), Batch("q", number)) is None:
                line.insert(0, entry("ours", "q", number))
                committed.append(number)
            current = max(current, 0)
    assert committed == list(range(len(committed)))
    assert len(committed) == current + 1


def attempt(
    place: str, *, batch: Batch = BATCH, value: int = 1, **options: str
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


@pytest.fixture
def native(place: str) -> str:
    """Chunks of this size would be kept in the manifest; here they are files."""
    repository = repository_at(place)
    config = repository.config
    config.inline_chunk_threshold_bytes = 0
    repository.reopen(config).save_config()
    return place


def test_a_repeated_batch_is_skipped_with_a_warning_and_its_files_deleted(
    native: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer, messages = attempt(native)
    writer.commit(list(messages), 5)
    (first, *_) = history(native)
    assert (first.metadata[QUERY_KEY], first.metadata[BATCH_KEY]) == ("q", 5)
    files = chunk_files(native)
    commit_attribute(native, "somebody else")
    again, messages = attempt(native, value=2)
    assert chunk_files(native) > files
    with caplog.at_level(logging.WARNING):
        again.commit(list(messages), 5)
    assert f"batch 5 of query q is committed already as {first.id}" in caplog.text
    assert chunk_files(native) == files
    assert len(history(native)) == 4
    assert content(native)[:3, 0].tolist() == [1, 1, 0]


def test_the_very_messages_that_were_committed_are_never_deleted(native: str) -> None:
    writer, messages = attempt(native)
    writer.commit(list(messages), 5)
    files = chunk_files(native)
    writer.commit(list(messages), 5)
    writer.abort(list(messages), 5)
    assert chunk_files(native) == files
    assert content(native)[0, 0] == 1


def test_two_drivers_with_one_batch_make_one_snapshot(place: str) -> None:
    """Both have looked back before either commits: the second finds the first by its token."""
    one, first = attempt(place)
    two, second = attempt(place, value=2)
    two._look_back = lambda *_: None  # type: ignore[method-assign]
    one.commit(list(first), 5)
    two.commit(list(second), 5)
    assert len(history(place)) == 3
    assert content(place)[0, 0] == 1


def test_a_batch_is_found_after_its_history_was_cut(place: str) -> None:
    for number in range(3):
        writer, messages = attempt(place, batch=Batch("q", number), value=number + 1)
        writer.commit(list(messages), number)
    repository_at(place).expire_snapshots(datetime.now(UTC))
    assert len(history(place)) == 2
    for number in (0, 2):
        writer, messages = attempt(place, batch=Batch("q", number), value=9)
        writer.commit(list(messages), number)
    assert len(history(place)) == 2
    assert content(place)[0, 0] == 3


def test_a_batch_whose_snapshot_was_reset_away_is_written_again(place: str) -> None:
    writer, messages = attempt(place)
    before = history(place)[0].id
    writer.commit(list(messages), 5)
    repository_at(place).reset_branch("main", before)
    writer, messages = attempt(place, value=3)
    writer.commit(list(messages), 5)
    assert content(place)[0, 0] == 3


def test_the_search_is_bounded_and_says_when_it_was_too_short(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer, messages = attempt(place)
    writer.commit(list(messages), 5)
    for number in range(3):
        commit_attribute(place, str(number))
    again, messages = attempt(place, value=2, look_back="2")
    with caplog.at_level(logging.WARNING):
        again.commit(list(messages), 5)
    assert "`look_back` makes the search go further" in caplog.text


def test_an_abort_deletes_only_if_a_task_is_missing(native: str) -> None:
    writer, messages = attempt(native)
    files = chunk_files(native)
    writer.abort(list(messages), 5)
    assert chunk_files(native) == files
    writer.abort([messages[0], None], 5)
    assert len(chunk_files(native)) == len(files) // 2
    writer.abort([None, None], 5)


def test_a_batch_without_chunks_makes_no_snapshot(place: str) -> None:
    writer, (message, _) = attempt(place)
    fork = repository_at(place).fork(message.work)
    empty = BatchPart(encode_fragment(fork.fragment("task 0")), message.work, BATCH, "x")
    writer.commit([empty], 5)
    writer.commit([], 6)
    assert len(history(place)) == 2


def test_messages_of_other_work_are_refused(place: str) -> None:
    writer, messages = attempt(place)
    _, others = attempt(place)
    with pytest.raises(FragmentError, match="batch 5"):
        writer.commit([messages[0], others[1]], 5)
    with pytest.raises(FragmentError, match="batch 6"):
        writer.commit(list(messages), 6)


def test_streams_that_cannot_be_are_refused(place: str) -> None:
    source = IcechunkSource({"path": place, "node": "a", "checkpointLocation": "/c"})
    with pytest.raises(InvalidInputError, match="outputMode"):
        source.streamWriter(SCHEMA, True)
    with pytest.raises(InvalidInputError, match='"changes"'):
        source.streamReader(SCHEMA)
    options = {"path": place, "layout": "changes"}
    with pytest.raises(InvalidInputError, match="`tag`"):
        IcechunkSource({**options, "tag": "v1"}).streamReader(SCHEMA)
    with pytest.raises(InvalidInputError, match="`since`"):
        IcechunkSource(options).reader(SCHEMA)


def reader(place: str, **options: str) -> IcechunkStreamReader:
    return IcechunkSource({"path": place, "layout": "changes", **options}).streamReader(SCHEMA)


def rows(source: IcechunkStreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    parts = source.partitions(start, end)
    return [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]


def short(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (row["message"], row["path"], row["change"], tuple(row["chunk"] or ())) for row in found
    )


def change_much(place: str) -> list[str]:
    """Three commits: write, create and erase, delete."""
    repository = repository_at(place)
    ids = []
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:2, 8:] = 7
    ids.append(session.commit("one"))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    zarr.open_array(session.store, path="a", mode="r+")[0, 8:] = 0
    root.attrs["x"] = 1
    root.create_array("b/c", shape=(2,), chunks=(2,), dtype="int8")[:] = 1
    ids.append(session.commit("two"))
    session = repository.writable_session("main")
    del zarr.open_group(session.store, mode="a")["b"]
    ids.append(session.commit("three"))
    return ids


def test_changes_are_told_by_commit_node_and_chunk(place: str) -> None:
    source = reader(place)
    start = source.initialOffset()
    ids = change_much(place)
    end = source.latestOffset(start, ReadAllAvailable())
    assert end == {"snapshot": ids[-1]} == source.reportLatestOffset()
    found = rows(source, start, end)
    assert short(found) == [
        ("one", "/a", "written", (0, 2)),
        ("one", "/a", "written", (1, 2)),
        ("three", "/b", "deleted", ()),
        ("three", "/b/c", "deleted", ()),
        ("two", "/", "updated", ()),
        ("two", "/a", "erased", (0, 2)),
        ("two", "/b", "created", ()),
        ("two", "/b/c", "created", ()),
        ("two", "/b/c", "written", (0,)),
    ]
    last = next(row for row in found if row["chunk"] == [1, 2])
    assert (last["start"], last["shape"]) == ([1, 8], [1, 2])
    assert (last["snapshot_id"], last["parent_id"]) == (ids[0], start["snapshot"])
    assert rows(source, end, end) == []


def test_a_batch_of_changes_can_be_limited_and_ends_where_a_run_began(place: str) -> None:
    source = reader(place, commits_per_batch="2")
    start = source.initialOffset()
    ids = change_much(place)
    assert source.getDefaultReadLimit() == ReadMaxFiles(2)
    assert source.latestOffset(start, ReadMaxFiles(2)) == {"snapshot": ids[1]}
    source.prepareForTriggerAvailableNow()
    commit_attribute(place, "late")
    assert source.latestOffset(start, ReadAllAvailable()) == {"snapshot": ids[2]}
    assert source.latestOffset({"snapshot": ids[2]}, ReadMaxFiles(2)) == {"snapshot": ids[2]}


def test_everything_is_what_is_there_and_changes_from_then_on(place: str) -> None:
    change_much(place)
    source = reader(place, since="everything", node="/a")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    found = rows(source, start, end)
    assert short(found) == [("three", "/a", "created", ()), ("three", "/a", "written", (1, 2))]


def test_only_changes_below_a_node_are_told(place: str) -> None:
    source = reader(place, node="b", since=history(place)[0].id)
    start = source.initialOffset()
    change_much(place)
    found = rows(source, start, source.latestOffset(start, ReadAllAvailable()))
    assert {row["path"] for row in found} == {"/b", "/b/c"}


def test_a_move_is_told_with_both_paths(tmp_path: Path) -> None:
    path = tmp_path / "second"
    repository = Repository.create(local_filesystem_storage(path), spec_version=2)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("old")
    start = session.commit("first")
    moving = repository.rearrange_session("main")
    moving.move("/old", "/new")
    moving.commit("moved")
    source = reader(str(path), since=start)
    found = rows(source, source.initialOffset(), source.reportLatestOffset())
    assert [(row["path"], row["change"], row["moved_from"]) for row in found] == [
        ("/new", "moved", "/old")
    ]


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
    writer, messages = attempt(place, batch=Batch("q", 6), value=3)
    writer.abort([messages[0], None], 6)
    assert content(place)[:3, 0].tolist() == [1, 1, 0]
    source = reader(place, since=start)
    found = rows(source, source.initialOffset(), source.reportLatestOffset())
    assert short(found) == [
        ("batch 5 of a", "/a", "written", (row, part)) for row in range(2) for part in range(3)
    ]


def test_a_history_that_was_reset_is_refused(place: str) -> None:
    ids = change_much(place)
    repository_at(place).reset_branch("main", ids[0])
    source = reader(place)
    with pytest.raises(NotFoundError, match="the branch was reset") as caught:
        source.latestOffset({"snapshot": ids[1]}, ReadAllAvailable())
    assert ids[1] in str(caught.value)
    with pytest.raises(NotFoundError, match="new checkpoint"):
        reader(place, since="V1JS0NYHT3ZFE7B2QR6G").initialOffset()


def test_a_history_that_expired_is_refused_also_behind_the_first_snapshot(place: str) -> None:
    root = history(place)[-1].id
    ids = change_much(place)
    repository_at(place).expire_snapshots(datetime.now(UTC))
    source = reader(place)
    with pytest.raises(NotFoundError, match="expired"):
        source.latestOffset({"snapshot": ids[0]}, ReadAllAvailable())
    with pytest.raises(NotFoundError, match=f"before snapshot {ids[2]} expired"):
        rows(source, {"snapshot": root}, {"snapshot": ids[2]})


def test_the_source_travels_without_its_repository(place: str) -> None:
    changes = Changes(parse_options({"path": place, "layout": "changes"}))
    assert changes.head() == history(place)[0].id
    copied, arguments = changes.__reduce__()
    assert copied(*arguments)._repository is None


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
    for rows in (spark.table("told").collect(), frame.collect()):
        assert sorted((row["message"], row["change"], *row["chunk"]) for row in rows) == [
            (f"batch {batch} of a", "written", row, part)
            for batch, written in enumerate([(0, 4), (1,)])
            for row in written
            for part in range(3)
        ]
