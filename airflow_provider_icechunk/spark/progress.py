"""Progress as plain lines, one now and then: task logs keep every line that is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_EVERY_SECONDS = 5.0


def line(done: int, total: int, seconds: float) -> str:
    """What is said when `done` of `total` tasks are finished after some seconds. Pure."""
    share = 100 * done // total if total else 100
    text = f"icechunk: {done}/{total} tasks {share}% after {seconds:.0f} s"
    if 0 < done < total:
        minutes, rest = divmod(round(seconds / done * (total - done)), 60)
        text += f", about {minutes}:{rest:02d} left"
    return text


@contextmanager
def progress(spark: SparkSession, total: int, say: Callable[[str], None]) -> Iterator[None]:
    """Say how far the jobs of the block are; silent where Spark does not tell (Spark Connect)."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # noqa: BLE001 - the class of the error differs between releases
        yield
        return
    before = set(tracker.getJobIdsForGroup(None))
    finished = threading.Event()
    began = time.monotonic()

    def count() -> int:
        done = 0
        for job in set(tracker.getJobIdsForGroup(None)) - before:
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
            done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
        return min(done, total)

    def watch() -> None:
        said = 0
        while not finished.wait(_EVERY_SECONDS):
            done = count()
            if done != said:
                said = done
                say(line(done, total, time.monotonic() - began))

    watcher = threading.Thread(target=watch, name="icechunk-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
