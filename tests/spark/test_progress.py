"""What a job says about how far it is."""

import pytest

from airflow_provider_icechunk.spark.progress import line


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (0, "icechunk: 0/8 tasks 0% after 30 s"),
        (2, "icechunk: 2/8 tasks 25% after 30 s, about 1:30 left"),
        (8, "icechunk: 8/8 tasks 100% after 30 s"),
    ],
)
def test_a_line_says_tasks_and_the_time_left(done: int, words: str) -> None:
    assert line(done, 8, 30.0) == words
