"""An Airflow in a process of its own that runs DAGs on request."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tools.demo.progress import telling
from tools.demo.settings import DEMO, TourError
from tools.demo.worker import MARK

LONGEST = 600
"""Seconds after which an unfinished run is abandoned."""

_TAIL = 25


class AirflowProcess:
    """Send it requests and follow its output, which is kept in full in a file."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = DEMO / f"{name}.log"
        self.run_id = ""
        self._shown = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.demo.worker"],
            env=dict(env),
            cwd=env["AIRFLOW_HOME"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A group of its own, so that Spark's processes end with it.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """Wait until the database is ready."""
        self._follow(lambda _: False, what="preparing its tables")

    def begin(self, dag_id: str, *, date: str | None = None, **conf: Any) -> None:
        """Request a run, for a logical date if given; `finish` waits for its end."""
        self._send(dag_id, date=date, conf=conf)

    def _send(self, dag_id: str, **request: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"dag_id": dag_id, **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"it had ended before {dag_id} could begin") from None

    def show_until(self, text: str) -> None:
        """Print progress until a line of it contains `text`."""
        self._follow(lambda line: text in line, what=f"waiting for “{text}”")

    def finish(self) -> dict[str, Any]:
        """Print progress until the run has ended; returns the results of its tasks, by task."""
        answer = self._follow(lambda _: False, what="running a Dag")
        assert answer is not None
        if answer["state"] != "success":
            raise self._failed(f"the run {answer['run_id']} ended as {answer['state']}")
        self.run_id = answer["run_id"]
        results: dict[str, Any] = answer["results"]
        return results

    def run(self, dag_id: str, **conf: Any) -> dict[str, Any]:
        """Run a DAG from start to end."""
        self.begin(dag_id, **conf)
        return self.finish()

    def run_again(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Clear all tasks of a run and run them again."""
        self._send(dag_id, clear=run_id)
        return self.finish()

    def stop(self) -> None:
        """End it and everything it started."""
        if self._process.poll() is None:
            self._kill(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._kill(signal.SIGKILL)
                self._process.wait()
        self._reader.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _kill(self, sign: int) -> None:
        os.killpg(self._process.pid, sign)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("w") as kept:
            for line in self._process.stdout:
                kept.write(line)
                kept.flush()
                self._lines.put(line)
        self._lines.put(None)

    def _follow(self, enough: Callable[[str], bool], *, what: str) -> dict[str, Any] | None:
        """Print progress until there is a reply, which is returned, or until a condition holds."""
        until = time.monotonic() + LONGEST
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise self._failed(f"{what} took longer than {LONGEST} s") from None
            if line is None:
                raise self._failed(f"it ended while {what}")
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return answer
            shown = telling(line)
            # A sensor that is rescheduled starts from scratch each time.
            if shown is not None and shown != self._shown:
                self._shown = shown
                print(shown, flush=True)
                if enough(shown):
                    return None

    def _failed(self, problem: str) -> TourError:
        return TourError(
            f"{_tail(self.log)}\nThe Airflow `{self.name}` failed: {problem}. All that it and "
            f"Spark said is in {self.log}. If that does not help: `rm -r {DEMO}` lets the next run "
            "start from nothing."
        )


def _tail(log: Path) -> str:
    """The end of a log, from the last traceback on if one is near the end."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [place for place, line in enumerate(lines) if "Traceback" in line or "ERROR" in line]
    start = max(len(lines) - _TAIL, 0)
    if errors and errors[-1] < start:
        return "\n".join([*lines[errors[-1] : errors[-1] + _TAIL], "..."])
    return "\n".join(lines[start:])
