"""Run the tour and report each step; if one fails, say what to do."""

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

HOMES = tuple(DEMO / name for name in ("airflow", "airflow-2", "airflow-downstream"))
_STEPS = 6


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """Print a step's title before it and its duration after."""
    began = time.monotonic()
    print(f"\n[{number}/{_STEPS}] {title}", flush=True)
    yield
    print(f"  {time.monotonic() - began:.0f} s", flush=True)


def tour() -> None:
    """All steps; everything they start ends with them."""
    env = environment(os.environ, HOMES[0])
    check_tools(env)
    steps.start_over()
    dags = [*TOUR_DAGS.glob("*.py"), EXAMPLES / "icechunk_maintenance.py"]
    for home in HOMES:
        make_home(home, dags)
    with ExitStack() as stack:
        with step(1, "Three Airflows and their tables, on SQLite"):
            one, two, downstream = start_airflows(stack)
        airflows = (one, two)
        with step(2, "Your own function on Spark: two days at once, into an empty folder"):
            run_id = steps.both_grow(airflows)
        with step(3, "A backfill: the days before, two at a time"):
            steps.backfill(airflows, downstream)
        with step(4, "New data for one day: clear its run"):
            before = steps.clear_day(two, run_id)
        # Drawn now: the version before the correction expires in the next step.
        picture.draw(steps.open_repository(), before=before, file=PICTURE)
        with step(5, "Expire old versions and collect garbage, each with a dry run first"):
            steps.maintenance(one)
    with step(6, "What is there now"):
        repository = steps.open_repository()
        ending.show(steps.FOLDER)
        print("\nThe official library, the same folder:")
        ending.compare_with_official(repository, steps.FOLDER, steps.expected())
        print(f"Xarray: {ending.check_with_xarray(repository)}")
    ending.explain(steps.FOLDER, PICTURE)


def start_airflows(stack: ExitStack) -> list[AirflowProcess]:
    """Start all of them; the first creates the database, which takes a long time, and the others
    get copies.
    """
    made: list[AirflowProcess] = []
    for home in HOMES:
        if made:
            copy_tables(HOMES[0], home)
        made.append(AirflowProcess(home.name, environment(os.environ, home)))
        stack.callback(made[-1].stop)
        if home == HOMES[0]:
            made[-1].wait_until_ready()
    for airflow in made[1:]:
        airflow.wait_until_ready()
    return made


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
