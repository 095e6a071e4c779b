"""Run schedules: `python -m airflow_provider_icechunk.testing.simulation --count 2000`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .simulation import SimulationError
from .workload import simulate


def main(arguments: list[str] | None = None) -> int:
    """Run them and report the results."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--trace", action="store_true", help="print every call")
    chosen = parser.parse_args(arguments)
    begun, failed = time.perf_counter(), 0
    errors, faults = Counter[str](), Counter[str]()
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        try:
            outcome = simulate(seed, trace=chosen.trace)
        except SimulationError as error:
            failed += 1
            for line in error.trace:
                sys.stdout.write(line + "\n")
            sys.stdout.write(f"{error}\n")
            continue
        errors.update(outcome.errors)
        faults.update(outcome.faults)
        if chosen.count == 1:
            sys.stdout.write(f"{outcome}\n")
    seconds = time.perf_counter() - begun
    sys.stdout.write(
        f"{chosen.count} schedules in {seconds:.1f} s, {60 * chosen.count / seconds:.0f} a minute; "
        f"{failed} failed\nerrors: {dict(errors)}\nfaults: {dict(faults)}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
