"""Where the tour keeps its files, and the environment that Airflow and Spark get."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / ".demo"
DATA = DEMO / "data"
UPSTREAM = DEMO / "upstream"
PICTURE = DEMO / "before-and-after.png"
REPOSITORY = "weather"
EXAMPLES = ROOT / "dags"
TOUR_DAGS = Path(__file__).parent / "dags"
CONNECTIONS = {
    "icechunk_default": {"conn_type": "icechunk", "host": str(DATA), "extra": {"storage": "file"}},
    "spark_default": {"conn_type": "spark", "host": "local[*]"},
}
_TOOLS = {
    "spark-submit": "it comes with the extra `spark`; `make setup` installs it",
    "java": "Spark needs Java 17 or newer; `make demo` chooses one and sets JAVA_HOME",
}


class TourError(Exception):
    """A step failed; the message says which one, and what to do."""


def environment(given: Mapping[str, str], home: Path) -> dict[str, str]:
    """Settings for an Airflow whose files are in `home`, in addition to the Makefile's."""
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "ICECHUNK_LOG": "error",
        "NO_COLOR": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), given.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "TOUR_UPSTREAM": str(UPSTREAM),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", "")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    connections = {
        f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in CONNECTIONS.items()
    }
    return {**given, **settings, **connections}


def make_home(home: Path, dags: Sequence[Path]) -> None:
    """A folder for an Airflow, with the DAGs it needs; its database is kept from the last run."""
    shutil.rmtree(home / "dags", ignore_errors=True)
    (home / "dags").mkdir(parents=True)
    for file in dags:
        shutil.copy(file, home / "dags")


def copy_tables(source: Path, target: Path) -> None:
    """Give one Airflow the database that another one has just created."""
    for file in target.glob("airflow.db*"):
        file.unlink()
    with (
        closing(sqlite3.connect(source / "airflow.db")) as made,
        closing(sqlite3.connect(target / "airflow.db")) as copy,
    ):
        made.backup(copy)


def check_tools(env: Mapping[str, str]) -> None:
    """Refuse to start if a requirement is missing, and say how to get it."""
    java = Path(env.get("JAVA_HOME", ""), "bin", "java")
    for name, remedy in _TOOLS.items():
        if name == "java" and env.get("JAVA_HOME") and java.exists():
            continue
        if shutil.which(name, path=env["PATH"]) is None:
            raise TourError(f"There is no command `{name}`: {remedy}.")
