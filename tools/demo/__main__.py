"""Run the tour and print it line by line; say what to do when a step fails."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tools.demo import ending, picture, steps
from tools.demo.airflow_process import AirflowProcess
from tools.demo.settings import (
    DEMO,
    EXAMPLES,
    PICTURE,
    TOUR_DAGS,
    TourError,
    check_tools,
    copy_tables,
    environment,
    make_home,
)

PIPELINE, DOWNSTREAM = DEMO / "airflow", DEMO / "airflow-downstream"
_RUN = ("icechunk_quickstart", "icechunk_append_year", "icechunk_maintenance")
_STEPS = 6


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """A step with its title before and its time after."""
    began = time.monotonic()
    print(f"\n[{number}/{_STEPS}] {title}", flush=True)
    yield
    print(f"  {time.monotonic() - began:.0f} s", flush=True)


def tour() -> None:
    """All steps; whatever they started ends with them."""
    env = environment(os.environ, PIPELINE)
    check_tools(env)
    steps.start_over()
    examples = [EXAMPLES / f"{name}.py" for name in _RUN]
    make_home(PIPELINE, [*examples, TOUR_DAGS / "icechunk_tour_correction.py"])
    make_home(DOWNSTREAM, [EXAMPLES / "icechunk_downstream.py"])
    with ExitStack() as stack:
        with step(1, "Airflow and its tables, on SQLite"):
            airflow = AirflowProcess("airflow", env)
            stack.callback(airflow.stop)
            airflow.wait_until_ready()
            copy_tables(PIPELINE, DOWNSTREAM)
            downstream = AirflowProcess("downstream", environment(os.environ, DOWNSTREAM))
            stack.callback(downstream.stop)
        with step(2, "The quick start: a year of temperatures, written by Spark"):
            before = steps.quick_start(airflow)
            downstream.wait_until_ready()
        with step(3, "Two writers at once: a commit that conflicts and is rebased"):
            steps.correction(airflow)
        with step(4, "One more year, and a downstream that a sensor starts"):
            steps.append_and_downstream(airflow, downstream)
        with step(5, "Expire old versions and collect garbage, each with a dry run first"):
            steps.upkeep(airflow)
    with step(6, "What is there now"):
        repository = steps.open_repository()
        ending.show(steps.FOLDER)
        print("\nThe official library, the same folder:")
        ending.compare_with_official(repository, steps.FOLDER)
        print(f"Xarray: {ending.check_with_xarray(repository)}")
        picture.draw(repository, before=before, file=PICTURE)
    ending.explain(steps.FOLDER, PICTURE)


def main() -> int:
    """The tour; returns the exit code."""
    argparse.ArgumentParser(prog="make demo", description=__doc__).parse_args()
    began = time.monotonic()
    try:
        tour()
    except TourError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped on request.", file=sys.stderr)
        return 130
    print(f"\nThe tour took {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
