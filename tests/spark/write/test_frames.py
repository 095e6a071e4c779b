"""Frames written into arrays: chunk by chunk, or cell by cell."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pyarrow as pa
import pytest
import zarr
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_icechunk.api import MergeSolver, Repository, in_memory_storage
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError
from airflow_provider_icechunk.spark.read.frames import read_dataframe
from airflow_provider_icechunk.spark.write.frames import (
    Axis,
    CellRows,
    ChunkRows,
    chunks_of,
    write_chunks,
    write_dataframe,
)

on_spark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]
SHAPE, CHUNKS = (5, 4), (2, 3)


def make(session: Session) -> None:
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=SHAPE, chunks=CHUNKS, dtype="int32", fill_value=-1)
    root.create_array("b", shape=SHAPE, chunks=CHUNKS, dtype="float64")


def content(repository: Repository, array: str) -> Any:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=array, mode="r")[:])


@pytest.fixture
def fork() -> ForkSession:
    session = Repository.create(in_memory_storage()).writable_session("main")
    make(session)
    return session.fork()


def values(fork: ForkSession, array: str = "a") -> Any:
    return np.asarray(zarr.open_array(fork.store, path=array, mode="r")[:])


def cells(rows: list[tuple[Any, ...]], size: int = 100) -> list[pa.RecordBatch]:
    """Rows of (chunk, place, value), sorted by chunk, in batches."""
    types = [pa.int64(), pa.int64(), pa.int32()]
    columns = [
        pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)
    ]
    table = pa.table(columns, names=["chunk", "place", "value_0"])
    return table.to_batches(max_chunksize=size)


FIRST = [(0, place, place * 10) for place in range(6)]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_chunks_are_put_together_across_batches(fork: ForkSession, size: int) -> None:
    edge = [(5, place, 7) for place in (0,)]
    CellRows(("a",), "error").write(fork, iter(cells(FIRST + edge, size)))
    expected = np.full(SHAPE, -1)
    expected[:2, :3] = np.arange(6).reshape(2, 3) * 10
    expected[4, 3] = 7
    assert values(fork).tolist() == expected.tolist()
    assert len(list(chunks_of(iter(cells(FIRST + edge, size))))) == 2


@pytest.mark.parametrize(("missing", "expected"), [("fill", -1), ("keep", 5)])
def test_missing_cells_are_filled_or_kept(fork: ForkSession, missing: Any, expected: int) -> None:
    zarr.open_array(fork.store, path="a", mode="r+")[:] = 5
    CellRows(("a",), missing).write(fork, iter(cells([*FIRST[:-1], (0, 5, None)])))
    assert values(fork)[1, 2] == expected
    assert values(fork)[0, 2] == 20
    assert values(fork)[4, 3] == 5


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (FIRST[:4], r"chunk \[0, 0\] of 'a' 2 cells have no row.*at \[1, 1\]"),
        ([*FIRST, (0, 1, 3)], r"1 cells have two rows.*at \[0, 1\]"),
        ([(-1, 0, 3), *FIRST], "1 rows lie outside"),
    ],
)
def test_wrong_cells_are_reported_with_their_place(
    fork: ForkSession, rows: list[tuple[Any, ...]], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        CellRows(("a",), "error").write(fork, iter(cells(rows)))


def chunk_rows(*rows: tuple[Any, bytes]) -> list[pa.RecordBatch]:
    numbers, data = zip(*rows, strict=True)
    types = pa.list_(pa.int64()), pa.binary()
    columns = [pa.array(numbers, types[0]), pa.array(data, types[1])]
    return [pa.RecordBatch.from_arrays(columns, names=["chunk", "data"])]


def test_chunk_rows_hold_a_whole_chunk_or_its_inner_part(fork: ForkSession) -> None:
    whole, inner = np.full((2, 3), 1, "i4").tobytes(), np.full((1, 1), 2, "i4").tobytes()
    assert (
        ChunkRows("a", False).write(fork, iter(chunk_rows(([2, 0], whole), ([2, 1], inner)))) == 28
    )
    assert values(fork)[4].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([([0, 0], b"x" * 24), ([0, 0], b"y" * 24)], FragmentError, r"\[0, 0\].*occurs twice"),
        ([([3, 0], b"x" * 24)], InvalidInputError, "no chunk"),
        ([([0], b"x" * 24)], InvalidInputError, "no chunk"),
        ([([0, 0], b"x" * 23)], InvalidInputError, "23 bytes"),
        ([([0, 0], None)], InvalidInputError, "0 bytes"),
    ],
)
def test_wrong_chunk_rows_are_refused(
    fork: ForkSession, rows: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ChunkRows("a", False).write(fork, iter(chunk_rows(*rows)))


def test_frames_record_the_cells_that_have_rows(fork: ForkSession) -> None:
    CellRows(("a",), "keep").write(fork, iter(cells([(0, 1, 5), (0, 4, 6)])))
    CellRows(("b",), "fill").write(fork, iter(cells([(2, 0, 5)])))
    ChunkRows("b", False).write(fork, iter(chunk_rows(([0, 0], b"x" * 48))))
    ChunkRows("b", True).write(fork, iter(chunk_rows(([2, 1], b"encoded"))))
    written = fork.fragment("1").boxes
    nodes = {node.path: node.id for node in fork.tree.nodes()}
    assert written[nodes["/a"]] == (((0, 2), (1, 2)),)
    assert set(written[nodes["/b"]]) == {((0, 4), (0, 3)), ((4, 5), (3, 4))}


def test_two_frames_with_rows_of_one_chunk_are_both_kept() -> None:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    make(session)
    session.commit("arrays")
    sessions = [repository.writable_session("main") for _ in range(2)]
    for number, session in enumerate(sessions):
        session.work_unit(f"job {number}")
        fork = session.fork()
        rows = [(0, 3 * number + place, 10 * number + place) for place in range(3)]
        CellRows(("a",), "keep").write(fork, iter(cells(rows)))
        session.merge(fork)
    for session in sessions:
        session.commit("frame", rebase_with=MergeSolver())
    assert content(repository, "a")[:2, :3].tolist() == [[0, 1, 2], [10, 11, 12]]


class TestOnSpark:
    pytestmark = on_spark

    def test_a_long_frame_becomes_arrays_that_the_official_library_reads(
        self, spark: SparkSession, repository: Repository, tmp_path: Path
    ) -> None:
        frame = spark.range(20).select(
            F.expr("90 - 0.5 * (id div 4)").alias("lat"),
            (F.col("id") % 4).alias("x"),
            F.col("id").cast("int").alias("one"),
            (F.col("id") * 1.5).alias("two"),
        )
        result = write_dataframe(
            frame,
            repository,
            {"one": "a", "two": "b"},
            [Axis("lat", start=90, step=-0.5), "x"],
            job="long",
            prepare=make,
        )
        assert result.chunks == 12
        storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
        store = icechunk.Repository.open(storage).readonly_session("main").store
        whole = np.arange(20).reshape(SHAPE)
        assert np.array_equal(np.asarray(zarr.open_array(store, path="a", mode="r")[:]), whole)
        assert np.array_equal(content(repository, "b"), whole * 1.5)
        again = write_dataframe(
            frame.limit(0), repository, {"one": "a"}, ["lat", "x"], job="long", prepare=make
        )
        assert (again.snapshot_id, again.replayed) == (result.snapshot_id, True)

    def test_chunk_frames_go_out_and_back(
        self, spark: SparkSession, repository: Repository
    ) -> None:
        session = repository.writable_session("main")
        make(session)
        whole = np.arange(20).reshape(SHAPE)
        zarr.open_array(session.store, path="a", mode="r+")[:] = whole
        session.commit("one process")
        frame = read_dataframe(spark, repository, "a", layout="chunks")

        def copy(writing: Session) -> None:
            root = zarr.open_group(writing.store, mode="a")
            root.create_array("copy", shape=SHAPE, chunks=CHUNKS, dtype="int32")

        result = write_chunks(frame, repository, "copy", job="copy", prepare=copy)
        assert result.chunks == 6
        assert np.array_equal(content(repository, "copy"), whole)
        doubled = frame.union(frame)
        with pytest.raises(FragmentError, match="was written by worker 'task"):
            write_chunks(doubled, repository, "copy", job="twice")
        assert len(list(repository.ancestry(branch="main"))) == 3
