"""The command line: measure, print, write `RESULTS.md` and the plot."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks import report, spark_report
from benchmarks.environment import second_python
from benchmarks.model import (
    ACCESS_KEY,
    BUCKET,
    OBSTORE,
    OFFICIAL_1,
    OFFICIAL_2,
    OURS,
    OURS_UNSYNCED,
    SECRET_KEY,
    TITLES,
    ZARR,
    Measurement,
)
from benchmarks.proxy import proxy
from benchmarks.runner import ROOT, Hours, Plan, RunError, Runner, plan
from benchmarks.workloads import ALL
from tools.seaweedfs import Account, seaweedfs


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line requests."""
    options = _parser().parse_args(arguments)
    planned = plan(
        ALL,
        quick=options.quick,
        rounds=options.rounds,
        only=options.only,
        thorough=options.thorough,
    )
    # Starting Spark alone would take half of the time that the quick form has.
    on_spark = spark_report.wanted(options.only) and (bool(options.only) or not options.quick)
    if not planned and not on_spark:
        names = ", ".join([*(workload.name for workload in ALL), spark_report.NAME])
        print(f"No workload is called {' or '.join(options.only)}; there are: {names}")
        return 2
    begin = time.monotonic()
    measurements, runner = _measure(planned, options)
    _print_goals(measurements)
    spark = _measure_spark(options) if on_spark else None
    for text in report.uneven(runner.versions):
        print(f"Careful: {text}")
    whole = not options.quick and not options.only
    results = options.results or (ROOT / "benchmarks" if whole else None)
    if results is not None:
        _write(results, measurements, runner, spark)
    print(f"\nTook {time.monotonic() - begin:.0f} s.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare this package with the official one on this machine.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one size of each, once, without Spark"
    )
    parser.add_argument(
        "--thorough", action="store_true", help="three sizes, three to nine rounds: hours"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=18.0,
        help="how long rounds are added, without Spark (18); each size is measured at least once",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="workloads with NAME in theirs"
    )
    parser.add_argument(
        "--rounds", type=int, help="how often each is measured (as time allows, 1 to 5)"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="where RESULTS.md and the plot go (benchmarks/ after a whole run, else nowhere)",
    )
    parser.add_argument("--profile", type=Path, help="a folder for sampling profiles of the runs")
    parser.add_argument(
        "--folder", type=Path, help="a disk to measure on (the system's temporary folder)"
    )
    return parser


def _measure(planned: list[Plan], options: argparse.Namespace) -> tuple[list[Measurement], Runner]:
    profiles = options.profile
    interpreters = dict.fromkeys((OURS, OURS_UNSYNCED, OFFICIAL_1, ZARR, OBSTORE), sys.executable)
    missing = {}
    second = second_python()
    if isinstance(second, Path):
        interpreters[OFFICIAL_2] = str(second)
    else:
        print(f"{TITLES[OFFICIAL_2]} is skipped: {second}")
        # The reason is stated once; the tables stay narrow.
        missing[OFFICIAL_2] = "no environment"
    measurements: list[Measurement] = []
    with ExitStack() as stack:
        # An error while removing must not hide the error that ended the run.
        root = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="icechunk-bench-", dir=options.folder, ignore_cleanup_errors=True
                )
            )
        )
        endpoint = far = None
        places = {one.workload.place for one in planned}
        if places & {"s3", "far"}:
            account = Account(ACCESS_KEY, SECRET_KEY, BUCKET)
            server = seaweedfs(root / "seaweedfs", account, volume_megabytes=256)
            endpoint = stack.enter_context(server)
            far = stack.enter_context(proxy(endpoint)) if "far" in places else None
        runner = Runner(
            interpreters,
            missing,
            root,
            endpoint,
            None if profiles is None else profiles.absolute(),
            far,
        )
        hours = Hours.of(planned, options.minutes)
        for one in planned:
            measurements += _one(runner, one, hours)
    return measurements, runner


def _one(runner: Runner, planned: Plan, hours: Hours) -> list[Measurement]:
    print(f"\n{planned.workload.name}: {planned.workload.titled(planned.sizes[-1])}", flush=True)
    found: list[Measurement] = []
    try:
        runner.run(planned, found.append, hours)
    except RunError as error:
        # One broken workload must not lose the results of the others.
        print(error, file=sys.stderr, flush=True)
    rows = report.figure_rows(planned.workload, report.figures(found))
    print(report.aligned(report.HEADER, rows), flush=True)
    return found


def _print_goals(measurements: list[Measurement]) -> None:
    found = report.figures(measurements)
    rows = report.verdict_rows(ALL, report.verdicts(ALL, found))
    print(f"\n{report.aligned(report.GOAL_HEADER, rows)}")
    print("\n" + "\n".join(report.summary(ALL, found)))


def _measure_spark(options: argparse.Namespace) -> spark_report.SparkFigures | None:
    print("\nspark: array writes on Spark", flush=True)
    with tempfile.TemporaryDirectory(prefix="icechunk-bench-", dir=options.folder) as folder:
        rounds = options.rounds or (None if options.thorough or options.quick else 1)
        found = spark_report.measure(Path(folder), quick=options.quick, rounds=rounds)
    if isinstance(found, str):
        print(found, file=sys.stderr, flush=True)
        return None
    print(spark_report.text(found), flush=True)
    return found


def _write(
    folder: Path,
    measurements: list[Measurement],
    runner: Runner,
    spark: spark_report.SparkFigures | None,
) -> None:
    from benchmarks.plot import draw

    folder.mkdir(parents=True, exist_ok=True)
    name = "growth.png"
    draw(ALL, report.figures(measurements), folder / name)
    text = report.page(
        ALL,
        measurements,
        runner.versions,
        folder=Path(tempfile.gettempdir()),
        plot=name,
        more=[] if spark is None else spark_report.section(spark),
    )
    (folder / "RESULTS.md").write_text(text)
    print(f"\nWrote {folder / 'RESULTS.md'} and {name}.")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Leave through the context managers, which stop the server and remove the data."""
    del frame
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main())
