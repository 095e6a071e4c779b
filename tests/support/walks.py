"""Which files of the package one piece of work enters, in which order.

Run as a program, in a process of its own: Zarr keeps a thread from its first use on, and only
threads that start later are watched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_provider_icechunk"
FIELD = {"path": "field", "shape": [8], "chunks": [4], "dtype": "int32"}


def record(log: Path) -> Callable[[], None]:
    """Write a line for every file that this process enters from now on; returns a way to stop."""
    entered: set[str] = set()
    root = f"{PACKAGE}/"

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(root) or code.co_name == "<module>":
            return
        file = code.co_filename.removeprefix(root)
        if file in entered or _is_import(frame):
            return
        entered.add(file)
        with log.open("a") as lines:
            lines.write(f"{json.dumps([time.time_ns(), file])}\n")

    def stop() -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    threading.setprofile(watch)
    sys.setprofile(watch)
    return stop


def _is_import(frame: FrameType) -> bool:
    """Whether a module is being executed for the first time, as classes and constants are made."""
    above: FrameType | None = frame
    while above is not None:
        if above.f_code.co_name == "<module>" and above.f_code.co_filename.startswith(str(PACKAGE)):
            return above.f_globals["__name__"] != "__main__"
        above = above.f_back
    return False


@contextmanager
def walked(files: list[str]) -> Iterator[Path]:
    """Add to a list the files that are entered inside, each when a process first enters it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        stop = record(log)
        try:
            yield log
        finally:
            stop()
        lines = sorted(json.loads(line) for line in log.read_text().splitlines())
        files += [file for _, file in lines]


def commit(folder: Path, files: list[str]) -> None:
    import zarr

    from airflow_provider_icechunk.api import Repository, local_filesystem_storage

    session = Repository.create(local_filesystem_storage(folder)).writable_session("main")
    with walked(files):
        zarr.create_array(session.store, name="field", data=_values(), chunks=(1024,))
        session.commit("first", token="once")


def read(folder: Path, files: list[str]) -> None:
    import zarr

    from airflow_provider_icechunk.api import Repository, local_filesystem_storage

    _fill(folder)
    with walked(files):
        repository = Repository.open(local_filesystem_storage(folder))
        session = repository.readonly_session("main")
        assert (zarr.open_array(session.store, path="field", mode="r")[:] == _values()).all()


def collection(folder: Path, files: list[str]) -> None:
    from airflow_provider_icechunk.operators.maintenance import IcechunkCollectOperator

    context = _connected(folder)
    _fill(folder / "weather")
    cutoff = (datetime.now(UTC) - timedelta(days=30)).isoformat()
    operator = IcechunkCollectOperator(task_id="collect", repository="weather", older_than=cutoff)
    with walked(files):
        operator.execute(context)


def sensor(folder: Path, files: list[str]) -> None:
    from airflow_provider_icechunk.sensors.branch import IcechunkBranchSensor

    context = _connected(folder)
    _fill(folder / "weather")
    waiting = IcechunkBranchSensor(task_id="wait", repository="weather")
    with walked(files):
        assert waiting.poke(context).is_done


def spark(folder: Path, files: list[str]) -> None:
    from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

    context = _connected(folder)
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps(
        {"conn_type": "spark", "host": "local[1]"}
    )
    _fill(folder / "weather")
    operator = IcechunkSparkSubmitOperator(
        task_id="write",
        repository="weather",
        arrays=[{**FIELD, "path": "made"}],
        writes=[{"array": "made", "generator": "index"}],
    )
    with walked(files) as log:
        # Python runs this file first in every process: the driver and its workers are watched too.
        start = Path(log.parent, "sitecustomize.py")
        start.write_text(
            f"import sys, pathlib\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"import walks\nwalks.record(pathlib.Path({str(log)!r}))\n"
        )
        os.environ["PYTHONPATH"] = os.pathsep.join([str(log.parent), os.environ["PYTHONPATH"]])
        operator.execute(context)


def _connected(folder: Path) -> Any:
    """The context that an operator is called with; the connection leads to the folder."""
    from support.airflow_contexts import make_context

    connection = {"conn_type": "icechunk", "host": str(folder), "extra": {"storage": "file"}}
    os.environ["AIRFLOW_CONN_ICECHUNK_DEFAULT"] = json.dumps(connection)
    return make_context()


def _values() -> Any:
    import numpy as np

    return np.arange(4096, dtype="int32")


def _fill(folder: Path) -> None:
    """Commit an array, in another process: in this one Zarr has no thread yet."""
    subprocess.run([sys.executable, __file__, "fill", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Create a repository with one array."""
    import zarr

    from airflow_provider_icechunk.api import Repository, local_filesystem_storage

    session = Repository.create(local_filesystem_storage(folder)).writable_session("main")
    zarr.create_array(session.store, name="field", data=_values(), chunks=(1024,))
    session.commit("first")


WALKS = {walk.__name__: walk for walk in (commit, read, collection, sensor, spark)}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    if sys.argv[1] == "fill":
        fill(Path(sys.argv[2]))
        sys.exit()
    found: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        WALKS[sys.argv[1]](Path(place), found)
    sys.stdout.write(f"\nWALKED {json.dumps(found)}\n")
