"""Progress as occasional plain lines, because task logs keep every line."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pyspark.sql import SparkSession

_EVERY_SECONDS = 5.0
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


class Meter(Protocol):
    """Sums up on the driver what tasks report: a Spark accumulator."""

    value: int

    def add(self, term: int) -> None:
        """Add to the sum."""
        ...


def line(done: int, total: int, seconds: float, size: int | None = None) -> str:
    """The progress line for `done` of `total` tasks. Pure.

    :param size: bytes that the finished tasks wrote, if known.
    """
    share = 100 * done // total if total else 100
    text = f"icechunk: {done}/{total} tasks {share}%"
    if size is not None:
        text += f", {_amount(size)}"
        if seconds > 0:
            text += f", {_amount(size / seconds)}/s"
    text += f" after {_duration(seconds)}"
    if 0 < done < total:
        text += f", about {_duration(seconds / done * (total - done))} left"
    return text


@contextmanager
def progress(
    spark: SparkSession, total: int | None, say: Callable[[str], None]
) -> Iterator[Meter | None]:
    """Report the progress of the tasks in the block, and a summary at its end.

    Yields a meter for the bytes they write, or `None` on Spark Connect, which has none.

    :param total: the number of tasks; by default as many as Spark has planned so far.
    """
    connect = is_connect(spark)
    meter: Meter | None = None if connect else spark.sparkContext.accumulator(0)
    finished = threading.Event()
    began = time.monotonic()

    def state(done: int, of: int) -> str:
        size = None if meter is None else meter.value
        return line(min(done, of), of, time.monotonic() - began, size)

    def watch(count: Callable[[], Counts]) -> None:
        said = 0
        while not finished.wait(_EVERY_SECONDS):
            done, planned = count()
            of = planned if total is None else total
            if said < done < of:
                said = done
                say(state(done, of))

    counting = _told_by_connect(spark) if connect else _told_by_tracker(spark)
    with counting as count:
        watcher = threading.Thread(
            target=watch, args=(count,), name="icechunk-progress", daemon=True
        )
        watcher.start()
        try:
            yield meter
        finally:
            finished.set()
            watcher.join()
        if total is None:
            _, total = count()
    say(state(total, total))


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session, whose driver runs elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


Counts = tuple[int, int]
"""How many tasks have finished, and how many Spark has planned."""


@contextmanager
def _told_by_tracker(spark: SparkSession) -> Iterator[Callable[[], Counts]]:
    context = spark.sparkContext
    tracker = context.statusTracker()
    group = context.getLocalProperty("spark.jobGroup.id")
    before = set(tracker.getJobIdsForGroup(group))

    def count() -> Counts:
        done = planned = 0
        for job in set(tracker.getJobIdsForGroup(group)) - before:
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
            done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
            planned += sum(stage.numTasks for stage in stages if stage is not None)
        return done, planned

    yield count


@contextmanager
def _told_by_connect(spark: SparkSession) -> Iterator[Callable[[], Counts]]:
    counts: dict[tuple[object, int], Counts] = {}

    def note(stages: object, inflight_tasks: int, operation_id: object, done: bool) -> None:
        del inflight_tasks, done
        for stage in stages or ():  # type: ignore[attr-defined]
            counts[operation_id, stage.stage_id] = stage.num_completed_tasks, stage.num_tasks

    spark.registerProgressHandler(note)
    try:
        yield lambda: (sum(done for done, _ in counts.values()), sum(n for _, n in counts.values()))
    finally:
        spark.removeProgressHandler(note)


def _amount(size: float) -> str:
    """A size in bytes, in human-readable form."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def print_line(line: str) -> None:
    """Print a line at once: the log of a driver is read while it runs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
