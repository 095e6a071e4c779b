"""Progress as plain lines, one now and then: task logs keep every line that is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pyspark.sql import SparkSession

_EVERY_SECONDS = 5.0
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


class Meter(Protocol):
    """Adds up on the driver what tasks report; an accumulator of Spark's."""

    value: int

    def add(self, term: int) -> None:
        """Count this much more."""
        ...


def line(done: int, total: int, seconds: float, size: int | None = None) -> str:
    """What is said when `done` of `total` tasks are finished after some seconds. Pure.

    :param size: bytes that the finished tasks wrote, if it is known.
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
def progress(spark: SparkSession, total: int, say: Callable[[str], None]) -> Iterator[Meter | None]:
    """Say how far the tasks of the block are, and at its end what they did.

    Gives a meter for the bytes they write, or `None` on Spark Connect, which has none.
    """
    connect = is_connect(spark)
    meter: Meter | None = None if connect else spark.sparkContext.accumulator(0)
    finished = threading.Event()
    began = time.monotonic()

    def state(done: int) -> str:
        size = None if meter is None else meter.value
        return line(min(done, total), total, time.monotonic() - began, size)

    def watch(count: Callable[[], int]) -> None:
        said = 0
        while not finished.wait(_EVERY_SECONDS):
            done = count()
            if said < done < total:
                said = done
                say(state(done))

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
    say(state(total))


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect, whose driver is somewhere else."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


Counting = AbstractContextManager[Callable[[], int]]
"""A block in which a function tells how many tasks have finished since it began."""


@contextmanager
def _told_by_tracker(spark: SparkSession) -> Iterator[Callable[[], int]]:
    context = spark.sparkContext
    tracker = context.statusTracker()
    group = context.getLocalProperty("spark.jobGroup.id")
    before = set(tracker.getJobIdsForGroup(group))

    def count() -> int:
        done = 0
        for job in set(tracker.getJobIdsForGroup(group)) - before:
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
            done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
        return done

    yield count


@contextmanager
def _told_by_connect(spark: SparkSession) -> Iterator[Callable[[], int]]:
    finished: dict[tuple[object, int], int] = {}

    def note(stages: object, inflight_tasks: int, operation_id: object, done: bool) -> None:
        del inflight_tasks, done
        for stage in stages or ():  # type: ignore[attr-defined]
            finished[operation_id, stage.stage_id] = stage.num_completed_tasks

    spark.registerProgressHandler(note)
    try:
        yield lambda: sum(finished.values())
    finally:
        spark.removeProgressHandler(note)


def _amount(size: float) -> str:
    """Bytes in the unit in which the number stays short."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
