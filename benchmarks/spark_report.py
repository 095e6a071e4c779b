"""Run the measurements on Spark in processes of their own, and report the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import aligned, markdown

ROOT = Path(__file__).resolve().parent.parent
NAME = "spark"
OURS = "ours on Spark, no fsync"
OFFICIAL = "official fork and merge on Spark"
GOALS = {"raw": 1.3, "zstd": 1.0}
"""By codec: how many times as fast as the official fork and merge."""
HEADER = ("codec", "contender", "median MB/s", "best MB/s", "times official")
GOAL_HEADER = ("what", "measured", "goal", "met")
_TIMEOUT = 3600


@dataclass(frozen=True, slots=True)
class SparkFigures:
    """Seconds of all rounds by codec and contender; with two cores and, for ours, with one."""

    size: int
    seconds: dict[str, dict[str, list[float]]]
    one_core: dict[str, dict[str, list[float]]]
    task: float
    """Seconds that each additional task costs."""
    empty_task: float
    """The same for a task that does nothing: what Spark itself takes."""

    def rate(self, codec: str, contender: str) -> float:
        """Median of MB/s."""
        return self.size / 1e6 / median(self.seconds[codec][contender])

    def scaling(self, codec: str) -> float:
        """How many times as fast two cores are as one."""
        return median(self.one_core[codec][OURS]) / median(self.seconds[codec][OURS])


def wanted(only: list[str]) -> bool:
    """Whether a choice of workloads includes these."""
    return not only or any(name in NAME for name in only)


def measure(folder: Path, *, quick: bool, rounds: int | None) -> SparkFigures | str:
    """The figures, or why there are none."""
    size, times = ("128", rounds or 1) if quick else ("1024", rounds or 3)
    try:
        both = _child(folder, size, times, "--master", "local[2]")
        one = _child(folder, size, times, "--master", "local[1]", "--only", OURS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"Spark could not be measured: {_said(error)}"
    return SparkFigures(
        both["bytes"], both["seconds"], one["seconds"], both["task"], both["empty_task"]
    )


def rows(found: SparkFigures) -> list[tuple[str, ...]]:
    """Lines of the table of rates."""
    lines = []
    for codec, contenders in found.seconds.items():
        official = found.rate(codec, OFFICIAL)
        for name, seconds in contenders.items():
            rate = found.rate(codec, name)
            best = found.size / 1e6 / min(seconds)
            lines.append((codec, name, f"{rate:.0f}", f"{best:.0f}", f"{rate / official:.2f}"))
    return lines


def goal_rows(found: SparkFigures) -> list[tuple[str, ...]]:
    """Lines of the table of goals."""
    lines = []
    for codec, least in GOALS.items():
        ratio = found.rate(codec, OURS) / found.rate(codec, OFFICIAL)
        what = f"1 GB with `write_regions`, {codec}, times the official fork and merge"
        met = "yes" if ratio >= least else "no"
        lines.append((what, f"{ratio:.2f}", f">= {least:g}", met))
    return lines


def text(found: SparkFigures) -> str:
    """For the terminal."""
    return "\n".join(
        [aligned(HEADER, rows(found)), aligned(GOAL_HEADER, goal_rows(found)), *_lines(found)]
    )


def section(found: SparkFigures) -> list[str]:
    """Parts of the page of results."""
    return [
        f"## Spark: {found.size / 1e6:.0f} MB in chunks of 4 MiB, two cores",
        markdown(GOAL_HEADER, goal_rows(found)),
        markdown(HEADER, rows(found)),
        "\n".join(f"- {line}" for line in _lines(found)),
    ]


def _lines(found: SparkFigures) -> list[str]:
    scaling = ", ".join(f"{codec} {found.scaling(codec):.2f}" for codec in found.seconds)
    task, empty = (f"{1000 * cost:.1f} ms" for cost in (found.task, found.empty_task))
    return [
        f"Two cores against one, times as fast: {scaling}",
        f"Each further task costs {task}, an empty one of Spark {empty}",
    ]


def _child(folder: Path, size: str, rounds: int, *options: str) -> dict[str, Any]:
    answer = folder / "spark.json"
    command = [sys.executable, "-m", "benchmarks.spark", size, str(rounds), "--json", str(answer)]
    subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        check=True,
        timeout=_TIMEOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    result: dict[str, Any] = json.loads(answer.read_text())
    return result


def _said(error: Exception) -> str:
    lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
