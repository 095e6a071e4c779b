"""What a job says about how far it is."""

import pytest
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.spark.progress import is_connect, line
from airflow_provider_icechunk.spark.write.job import SparkWriteJob


@pytest.mark.parametrize(
    ("done", "size", "words"),
    [
        (0, None, "icechunk: 0/8 tasks 0% after 0:30"),
        (2, None, "icechunk: 2/8 tasks 25% after 0:30, about 1:30 left"),
        (2, 999, "icechunk: 2/8 tasks 25%, 999 bytes, 33 bytes/s after 0:30, about 1:30 left"),
        (4, 6_000_000, "icechunk: 4/8 tasks 50%, 6.0 MB, 200.0 kB/s after 0:30, about 0:30 left"),
        (8, 3 * 10**15, "icechunk: 8/8 tasks 100%, 3000.0 TB, 100.0 TB/s after 0:30"),
    ],
)
def test_a_line_says_tasks_bytes_rate_and_the_time_left(
    done: int, size: int | None, words: str
) -> None:
    assert line(done, 8, 30.0, size) == words


def test_a_line_about_hours_or_nothing_is_readable() -> None:
    assert line(1, 3, 5400, 0).endswith("0 bytes, 0 bytes/s after 1:30:00, about 3:00:00 left")
    assert line(0, 0, 0.0, 7) == "icechunk: 0/0 tasks 100%, 7 bytes after 0:00"


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_the_bytes_of_all_tasks_are_said_at_the_end(
    spark: SparkSession, repository: Repository
) -> None:
    assert not is_connect(spark)
    said: list[str] = []
    job = SparkWriteJob.open(spark, repository, job="one")
    names = [f"task-{number}" for number in range(3)]
    job.run(names, lambda _, number: 1000 * (number + 1), say=said.append)
    assert said[-1].startswith("icechunk: 3/3 tasks 100%, 6.0 kB, ")
    said.clear()
    SparkWriteJob.open(spark, repository, job="one").run(names, lambda *_: 0, say=said.append)
    assert said == []
