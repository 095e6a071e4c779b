"""Arrays written by Spark tasks from a function: as one process would, in one commit or none."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError, TaskError
from airflow_provider_icechunk.spark.write.job import SparkWriteJob
from airflow_provider_icechunk.spark.write.regions import RegionWriter, write_regions

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]
SHAPE, CHUNKS = (10, 7), (3, 4)


def whole() -> Any:
    return np.arange(70, dtype="int64").reshape(SHAPE)


def numbers(part: tuple[slice, ...]) -> Any:
    rows, columns = (np.arange(s.start, s.stop) for s in part)
    return rows[:, None] * SHAPE[1] + columns[None, :]


def make(session: Session, **options: Any) -> None:
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=SHAPE, chunks=CHUNKS, dtype="int64", **options)


def read(repository: Repository, array: str = "a") -> Any:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=array, mode="r")[:])


def snapshots(repository: Repository) -> int:
    return len(list(repository.ancestry(branch="main")))


def test_arrays_and_chunks_become_one_commit_that_the_official_library_reads(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    result = write_regions(spark, repository, "a", numbers, job="one", prepare=make)
    assert (result.chunks, result.replayed, result.size) == (8, False, 560)
    assert snapshots(repository) == 2
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    assert np.array_equal(np.asarray(zarr.open_array(store, path="a", mode="r")[:]), whole())
    info = repository.lookup_snapshot(result.snapshot_id or "")
    assert info.metadata["spark.job_id"] == "one"


def test_a_job_submitted_twice_makes_one_snapshot(
    spark: SparkSession, repository: Repository
) -> None:
    first = write_regions(spark, repository, "a", numbers, job="one", prepare=make)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="r+").attrs["other"] = "commit"
    session.commit("somebody else")
    second = write_regions(spark, repository, "a", numbers, job="one", prepare=make)
    assert (second.snapshot_id, second.replayed) == (first.snapshot_id, True)
    assert snapshots(repository) == 3


def test_a_task_that_fails_once_changes_nothing(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    marker = tmp_path / "failed"

    def once(part: tuple[slice, ...]) -> Any:
        if part[0].start == 3 and not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt fails")
        return numbers(part)

    write_regions(spark, repository, "a", once, job="one", prepare=make, tasks=8)
    assert marker.exists()
    assert np.array_equal(read(repository), whole())
    assert snapshots(repository) == 2


def test_an_attempt_after_a_failure_skips_the_regions_that_are_done(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()

    def broken(part: tuple[slice, ...]) -> Any:
        if part[0].start == 9:
            raise RuntimeError("always")
        return numbers(part)

    words = r"^task 4 of 4, \[9:10, 0:7\] of 'a': the function raised RuntimeError: always$"
    with pytest.raises(TaskError, match=words) as caught:
        write_regions(spark, repository, "a", broken, job="one", prepare=make, tasks=4)
    assert isinstance(caught.value.__cause__, PySparkException)
    assert snapshots(repository) == 1

    def counted(part: tuple[slice, ...]) -> Any:
        (calls / str(part[0].start)).touch()
        return numbers(part)

    result = write_regions(spark, repository, "a", counted, job="one", prepare=make, tasks=4)
    assert result.resumed + len(list(calls.iterdir())) == result.tasks == 4
    assert (calls / "9").exists()
    assert result.resumed > 0
    assert result.chunks == 8
    assert np.array_equal(read(repository), whole())


def test_two_tasks_with_one_chunk_are_refused_by_their_numbers(
    spark: SparkSession, repository: Repository
) -> None:
    job = SparkWriteJob.open(spark, repository, job="one", prepare=make)
    regions = (((0, 3), (0, 7)), ((0, 6), (4, 7)))
    writer = RegionWriter("a", regions, numbers)
    job.run(writer.names, writer)
    with pytest.raises(FragmentError, match=r"chunk \[0, 1\].*'task 0' and by worker 'task 1'"):
        job.commit("both")
    assert snapshots(repository) == 1


def test_a_job_of_somebody_else_leaves_a_fragment_and_no_commit(
    spark: SparkSession, repository: Repository
) -> None:
    session = repository.writable_session("main")
    make(session)
    work = session.work_unit("theirs")
    job = SparkWriteJob.adopt(spark, repository, work)
    writer = RegionWriter("a", (((0, 10), (0, 7)),), numbers)
    job.run(writer.names, writer)
    _, result = job.leave("spark")
    assert (result.snapshot_id, result.chunks) == (None, 8)
    assert snapshots(repository) == 1
    assert session.merge_fragments(JobFolder(repository.storage, "theirs").fragments()) == 8
    session.commit("theirs")
    assert np.array_equal(read(repository), whole())


def test_an_append_resizes_and_fills_in_one_commit(
    spark: SparkSession, repository: Repository
) -> None:
    write_regions(spark, repository, "a", numbers, job="one", prepare=make)

    def longer(session: Session) -> None:
        zarr.open_array(session.store, path="a", mode="r+").resize((13, 7))

    result = write_regions(
        spark, repository, "a", numbers, job="two", prepare=longer, region={0: (10, 13)}
    )
    # The last chunk was cut by the old edge: what it held is read, and not asked for again.
    assert result.size == (13 - 10) * 7 * 8
    assert np.array_equal(read(repository), np.arange(91).reshape(13, 7))
    assert snapshots(repository) == 3


@pytest.mark.parametrize("key", ["time", 0])
def test_a_region_by_name_writes_that_part_and_leaves_the_rest(
    spark: SparkSession, repository: Repository, key: Any
) -> None:
    def named(session: Session) -> None:
        make(session, dimension_names=("time", "x"), fill_value=-1)

    result = write_regions(
        spark, repository, "a", numbers, job="one", prepare=named, region={key: (3, 6)}
    )
    assert result.chunks == 2
    expected = whole()
    expected[:3] = expected[6:] = -1
    assert np.array_equal(read(repository), expected)
    with pytest.raises(InvalidInputError, match=r"'times'.*'time', 'x'"):
        write_regions(spark, repository, "a", numbers, job="two", region={"times": (3, 6)})
    assert snapshots(repository) == 2


def test_a_missing_array_is_refused_before_anything_runs(
    spark: SparkSession, repository: Repository
) -> None:
    with pytest.raises(InvalidInputError, match="'b'"):
        write_regions(spark, repository, "b", numbers, job="one", prepare=make)


def test_earlier_work_is_not_used_if_the_metadata_comes_out_different(
    spark: SparkSession, repository: Repository
) -> None:
    first = SparkWriteJob.open(spark, repository, job="one", prepare=make)
    again = SparkWriteJob.open(spark, repository, job="one", prepare=make)
    assert again.work == first.work
    other = SparkWriteJob.open(
        spark, repository, job="one", prepare=lambda session: make(session, fill_value=7)
    )
    assert other.work.staged != first.work.staged


def test_names_that_nothing_can_be_kept_under_are_refused_on_the_driver(
    spark: SparkSession, repository: Repository
) -> None:
    job = SparkWriteJob.open(spark, repository, job="one", prepare=make)
    for names in (["a", "a b"], ["../x"], ["x" * 101], ["a", "a"]):
        with pytest.raises(InvalidInputError, match=r"cannot name a task|the same name"):
            job.run(names, lambda *_: 0)


def test_several_writes_of_one_job_are_one_commit_also_if_arrays_are_made_in_between(
    spark: SparkSession, repository: Repository
) -> None:
    session = repository.writable_session("main")
    make(session)
    job = SparkWriteJob.adopt(spark, repository, session.work_unit("theirs"))
    first = RegionWriter("a", (((0, 6), (0, 7)),), numbers)
    job.run(first.names, first)
    for name in ("b", "c"):
        job.stage(
            lambda session, name=name: zarr.create_array(  # type: ignore[misc]
                session.store, name=name, shape=SHAPE, chunks=CHUNKS, dtype="int64"
            )
        )
    for writer in (
        RegionWriter("a", (((6, 10), (0, 7)),), numbers),
        RegionWriter("c", (((0, 6), (0, 7)), ((6, 10), (0, 7))), numbers),
    ):
        job.run(writer.names, writer)
    with pytest.raises(InvalidInputError, match="the same name"):
        job.run(first.names, first)
    _, result = job.leave("spark")
    assert (result.tasks, result.chunks) == (4, 16)
    session.merge_fragments(JobFolder(repository.storage, "theirs").fragments())
    session.commit("all of it")
    assert np.array_equal(read(repository), whole())
    assert np.array_equal(read(repository, "c"), whole())
    assert not read(repository, "b").any()
