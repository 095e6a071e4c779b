"""What the benchmark on Spark tells of its figures."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import spark_report
from benchmarks.spark_report import OFFICIAL, OURS, SparkFigures

FIGURES = SparkFigures(
    size=1_000_000_000,
    seconds={
        "raw": {OURS: [1.0, 9.0, 0.5], OFFICIAL: [2.0, 2.0, 2.0]},
        "zstd": {OURS: [5.0], OFFICIAL: [4.0]},
    },
    one_core={"raw": {OURS: [1.8]}, "zstd": {OURS: [9.0]}},
    task=0.0125,
    empty_task=0.01,
)


def test_goals_compare_medians_with_the_official_fork_and_merge() -> None:
    assert [row[1:] for row in spark_report.goal_rows(FIGURES)] == [
        ("2.00", ">= 1.3", "yes"),
        ("0.80", ">= 1", "no"),
    ]


def test_the_section_has_rates_scaling_and_the_cost_of_tasks() -> None:
    text = "\n".join(spark_report.section(FIGURES))
    assert f"| raw | {OURS} | 1000 | 2000 | 2.00 |" in text
    assert "raw 1.80, zstd 1.80" in text
    assert "12.5 ms, an empty one of Spark 10.0 ms" in text
    assert "| raw |" not in spark_report.text(FIGURES)


def test_only_chooses_it_by_name() -> None:
    assert spark_report.wanted([])
    assert spark_report.wanted(["rebase", "spark"])
    assert not spark_report.wanted(["rebase"])
