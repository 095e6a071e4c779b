"""Run the quickstart pipeline once on this machine and look at what it made.

Airflow (on SQLite) runs the Dag in `dags/icechunk_quickstart.py`, Spark writes the chunks, one
commit makes them visible; then the repository is opened here and with the official library. All
files are below `.demo`. Running it again adds a commit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / ".demo"
DATA = DEMO / "data"
DAG_ID = "icechunk_quickstart"
REPOSITORY = "weather"
SILENCE = 900
"""Seconds after which a run without an end is given up."""

TELLING = re.compile(
    r"\[DAG TEST\] starting task_id=(?P<begun>\w+)"
    r"|(?P<made>Created \w+://\S+|\w+://\S+ is there already)"
    r"|(?P<planned>icechunk: \d+ regions to write)"
    r"|(?P<committed>Committed \w+ to \w+: \d+ chunks)"
)
TASKS = {
    "create_repository": "create the repository",
    "open_session": "open a session and declare its arrays",
    "write_chunks": "write the chunks with Spark (starting it takes some seconds)",
    "commit": "commit everything at once",
}


class DemoError(Exception):
    """A step failed; the text says which and what to do."""


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Settings for Airflow and its two connections, on top of what the Makefile set."""
    home = given.get("AIRFLOW_HOME", str(DEMO / "airflow"))
    settings = {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW_CONN_ICECHUNK_DEFAULT": json.dumps(
            {"conn_type": "icechunk", "host": str(DATA), "extra": {"storage": "file"}}
        ),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
        "NO_COLOR": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), given.get("PYTHONPATH")])),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", "")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return {**given, **settings}


def progress(lines: Iterator[str]) -> Iterator[str]:
    """The few lines of Airflow's output that say how far the run is."""
    for line in lines:
        found = TELLING.search(line)
        if found is None:
            continue
        if found["begun"]:
            yield f"- {TASKS.get(found['begun'], found['begun'])}"
        else:
            yield f"    {found[0]}"


def airflow(arguments: list[str], env: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run an Airflow command, keep its output in a file, and yield it line by line."""
    command = [sys.executable, "-m", "airflow", *arguments]
    began = time.monotonic()
    with log.open("w") as kept:
        process = subprocess.Popen(  # noqa: S603
            command,
            env=dict(env),
            cwd=DEMO,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                kept.write(line)
                yield line
                if time.monotonic() - began > SILENCE:
                    raise DemoError(f"`airflow {arguments[0]}` ran for {SILENCE} s; see {log}")
            status = process.wait()
        finally:
            process.kill()
    if status:
        tail = "".join(log.read_text().splitlines(keepends=True)[-15:])
        raise DemoError(
            f"{tail}\n`airflow {' '.join(arguments[:2])}` failed with status {status}. Its whole "
            f"output is in {log}. `rm -r {DEMO}` lets the next run start from nothing."
        )


def check_tools(env: Mapping[str, str]) -> None:
    """Refuse to begin without what the run needs, and say how to get it."""
    for name, help_text in {
        "spark-submit": "it comes with the extra `spark`; `make setup` installs it",
        "java": "Spark needs Java 17 or newer; `make demo` chooses one and sets JAVA_HOME",
    }.items():
        home = env.get("JAVA_HOME")
        if name == "java" and home and Path(home, "bin", "java").exists():
            continue
        if shutil.which(name, path=env["PATH"]) is None:
            raise DemoError(f"There is no command `{name}`: {help_text}.")


def run_pipeline(env: Mapping[str, str]) -> None:
    """Prepare Airflow's tables and run the Dag to its end."""
    print("Preparing Airflow's tables ...", flush=True)
    for _ in airflow(["db", "migrate"], env, DEMO / "migrate.log"):
        pass
    print(f"Running the Dag {DAG_ID} ...", flush=True)
    for line in progress(airflow(["dags", "test", DAG_ID], env, DEMO / "run.log")):
        print(line, flush=True)


def show(repository: Repository) -> None:
    """Print the history and the tree of a repository."""
    import zarr

    print(f"\nHistory of {repository.storage.location}, branch main:")
    for info in repository.ancestry(branch="main"):
        print(f"  {info.id}  {info.written_at:%Y-%m-%d %H:%M:%S}  {info.message}")
    print("\nTree:")
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    for name, array in sorted(root.arrays()):
        chunks = "x".join(map(str, array.chunks))
        print(f"  {name:<12} {array.dtype!s:<8} {array.shape!s:<18} in chunks of {chunks}")


def compare_with_official(repository: Repository) -> None:
    """Open the same folder with the official library, where it is installed, and compare."""
    import numpy as np
    import zarr

    if find_spec("icechunk") is None:
        print("\nThe official `icechunk` is not installed here: nothing to compare with.")
        return
    os.environ.setdefault("ICECHUNK_LOG", "error")
    import icechunk

    storage = icechunk.local_filesystem_storage(str(DATA / REPOSITORY))
    theirs = icechunk.Repository.open(storage).readonly_session("main").store
    ours = repository.readonly_session("main").store
    left, right = (zarr.open_array(store, path="temperature", mode="r") for store in (ours, theirs))
    one, other = np.asarray(left[:]), np.asarray(right[:])
    if not np.array_equal(one, other):
        raise DemoError("The official library reads other values from the same repository.")
    print(
        f"\nicechunk {icechunk.__version__} opens it as well: all {one.size:,} values are equal; "
        f"temperature[180, 45, 90] = {float(other[180, 45, 90]):.3f} K."
    )


def explain() -> None:
    """Print how to go on from here."""
    print(
        f"""
Open it with Xarray (the first line can be `import icechunk` just as well):

  import airflow_provider_icechunk.api as icechunk
  import xarray as xr

  storage = icechunk.local_filesystem_storage("{DATA / REPOSITORY}")
  session = icechunk.Repository.open(storage).readonly_session("main")
  print(xr.open_zarr(session.store, consolidated=False))
"""
    )


def main() -> int:
    """Run everything; print what to do when a step fails."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    (DEMO / "airflow").mkdir(parents=True, exist_ok=True)
    env = environment(os.environ)
    try:
        check_tools(env)
        run_pipeline(env)
        sys.path.insert(0, str(ROOT))
        from airflow_provider_icechunk.api import Repository, local_filesystem_storage

        repository = Repository.open(local_filesystem_storage(DATA / REPOSITORY))
        show(repository)
        compare_with_official(repository)
    except DemoError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    explain()
    return 0


if __name__ == "__main__":
    sys.exit(main())
