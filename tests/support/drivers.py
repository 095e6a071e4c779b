"""Spark drivers that run as processes of their own, to be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 600.0
_STARTED: list[subprocess.Popen[str]] = []


def environment(**more: str) -> dict[str, str]:
    """What a driver or a daemon of Spark needs, and nothing from the environment of the tests."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return keep | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    } | more  # fmt: skip


def start(code: str, *arguments: object, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run a program as the head of a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=env,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _STARTED.append(process)
    return process


def kill_leftovers() -> None:
    """Kill what a failed test has left running."""
    while _STARTED:
        process = _STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def last_line(process: subprocess.Popen[str]) -> str:
    """The last line printed by a program that ends well."""
    output, errors = process.communicate(timeout=_LONGEST)
    assert process.returncode == 0, f"{output}\n{errors[-4000:]}"
    return output.splitlines()[-1]


def kill_at(sign: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a program gives a sign, then kill it and its Java process without warning."""
    until(sign.exists, f"the sign {sign.name}", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    sign.unlink()


def until(
    condition: Callable[[], bool], what: str, process: subprocess.Popen[str] | None = None
) -> None:
    """Wait for something that happens in another process."""
    limit = time.monotonic() + _LONGEST
    while not condition():
        assert process is None or process.poll() is None, f"ended by itself before {what}"
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.1)
