"""What is checked in an environment: programs in `probes/`, and tests of this project."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.java_home import java_home

from .rows import HERE, ROOT

_PROBES = HERE / "probes"
_LONGEST = 3600
"""Seconds after which a check has failed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must work, and its description for the page."""

    title: str
    arguments: tuple[str, ...]
    """The command for the row's interpreter."""
    needs_airflow: bool = False
    """Whether Airflow's database is created first."""


def _tests(*arguments: str, marks: str = "not long") -> tuple[str, ...]:
    # The rows of the engine keep the project's rule that warnings are errors. In the others, old
    # releases warn about themselves, so a warning from another package is not an error there.
    return ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *arguments)


_WITH_MORE = (
    "arrays/test_regions.py",
    "format/legacy",
    "format/test_bombs.py",
    "format/test_conditions.py",
    "format/test_default_limits.py",
    "format/test_typed_ids.py",
)
"""Tests of the engine that need an extra or Spark, which a base install lacks."""
_QUIET = ("-o", "filterwarnings=default")

CHECKS: Mapping[str, Check] = {
    "modules": Check("every module imports", (str(_PROBES / "modules.py"),)),
    "bare": Check("reads and writes without Airflow and Spark", (str(_PROBES / "bare.py"),)),
    "discovery": Check("provider discovery", (str(_PROBES / "discovery.py"),), needs_airflow=True),
    "form": Check("connection form, pages", (str(_PROBES / "form.py"),), needs_airflow=True),
    "example": Check(
        "one example DAG",
        _tests(*_QUIET, "tests/airflow/test_example_dags.py", "-k", "each_run_appends_its_day"),
    ),
    "examples": Check("every example DAG", _tests(*_QUIET, "tests/airflow/test_example_dags.py")),
    "scheduler": Check(
        "scheduler, deferred sensor, asset event",
        _tests(
            *_QUIET,
            "tests/airflow/test_standalone.py",
            "-k",
            "test_event_driven or release_and_roll_back",
            marks="",
        ),
    ),
    "engine": Check(
        "engine, Zarr and Xarray",
        _tests(
            "-W",
            "ignore:The codec:UserWarning",  # Zarr before 3.1.4, about variable-length strings
            *(f"tests/engine/{room}" for room in ("zarr_store", "arrays", "format", "xarray_io")),
            "tests/test_api.py",
            # Zarr knows nothing of servers, and without extras there is no Airflow and no Spark.
            "-k",
            "not (moto or seaweedfs or spark or only_what_is_public or import_from_within)",
            *(f"--ignore=tests/engine/{one}" for one in _WITH_MORE),
        ),
    ),
    "spark-functions": Check(
        "functions on Spark",
        _tests(*_QUIET, "tests/spark/write/test_write_regions.py", "tests/spark/read/test_read.py"),
    ),
    "spark-source": Check("data source", _tests(*_QUIET, "tests/spark/source/test_source.py")),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check."""

    passed: bool
    summary: str
    """The last line of a test run, or of what a probe printed."""
    log: Path


def run(check: str, row: str, python: Path, logs: Path) -> Outcome:
    """Run a check; its whole output is kept."""
    what = CHECKS[check]
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{row}-{check}.log"
    with tempfile.TemporaryDirectory(prefix="matrix-") as home:
        environment = _environment(python, Path(home))
        with log.open("w") as output:
            code = 0
            if what.needs_airflow:
                code = _call([str(python), "-m", "airflow", "db", "migrate"], environment, output)
            code = code or _call([str(python), *what.arguments], environment, output)
    return Outcome(code == 0, summary(log.read_text()), log)


def summary(text: str) -> str:
    """The most informative line of a log: how many tests passed, or the last one."""
    lines = [line.strip("= ") for line in text.splitlines() if line.strip()]
    counted = [line for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    last = (counted or lines or ["no output"])[-1]
    # Times differ from run to run and are meaningless.
    return re.sub(r" in [\d.]+s.*$", "", last)[:160]


def _environment(python: Path, home: Path) -> dict[str, str]:
    java = java_home(os.environ, ROOT)
    found = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    folders = [str(python.parent), *([str(java / "bin")] if java else []), found.get("PATH", "")]
    return found | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PATH": os.pathsep.join(folders),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **({"JAVA_HOME": str(java)} if java else {}),
    }


def _call(command: Sequence[str], environment: Mapping[str, str], output: IO[str]) -> int:
    try:
        return subprocess.run(  # noqa: S603 - our own command
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_LONGEST,
        ).returncode
    except subprocess.TimeoutExpired:
        return 124
