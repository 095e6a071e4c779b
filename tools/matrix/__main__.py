"""`python -m tools.matrix`: run the rows, pin their versions, or rewrite the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from . import checks, environments, report
from .rows import Matrix, Row, load


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line requests; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("action", choices=["run", "pin", "page", "list"], nargs="?", default="run")
    parser.add_argument("rows", nargs="*", help="only these rows")
    parser.add_argument("--check", action="append", help="only this check; can be given again")
    parser.add_argument("--remove", action="store_true", help="remove each environment afterwards")
    given = parser.parse_args(arguments)
    matrix = load()
    unknown = sorted(set(given.rows) - set(matrix.rows))
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(matrix.rows)}")
    chosen = [matrix.rows[name] for name in given.rows or matrix.rows]
    try:
        match given.action:
            case "list":
                for row in chosen:
                    print(f"{row.name}: {row.title}, Python {row.python}: {', '.join(row.checks)}")
            case "pin":
                for row in chosen:
                    environments.pin(row, matrix, f"{datetime.now(UTC):%Y-%m-%d}")
                    print(f"pinned {row.name}")
            case "page":
                report.PAGE.write_text(report.page(matrix, report.read()))
            case _:
                return _run(matrix, chosen, given.check, remove=given.remove)
    except environments.MatrixError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _run(matrix: Matrix, rows: Sequence[Row], only: Sequence[str] | None, *, remove: bool) -> int:
    failed = 0
    for row in rows:
        wanted = [name for name in row.checks if not only or name in only]
        try:
            python = environments.ensure(row)
        except environments.MatrixError as problem:
            _keep(matrix, row, dict.fromkeys(wanted, report.Seen(False, str(problem)[:160])))
            print(f"{row.name}: {problem}", file=sys.stderr)
            failed += 1
            continue
        for name in wanted:
            outcome = checks.run(name, row.name, python, environments.FOLDER / "logs")
            _keep(matrix, row, {name: report.Seen(outcome.passed, outcome.summary)})
            verdict = "ok" if outcome.passed else f"FAILS, see {outcome.log}"
            print(f"{row.name} {name}: {verdict}: {outcome.summary}", flush=True)
            failed += not outcome.passed
        if remove:
            environments.remove(row)
    return 1 if failed else 0


def _keep(matrix: Matrix, row: Row, seen: dict[str, report.Seen]) -> None:
    # After each check, because a run takes long and may be stopped.
    results = report.read()
    results[row.name] = {**results.get(row.name, {}), **seen}
    report.write(results)
    report.PAGE.write_text(report.page(matrix, results))


if __name__ == "__main__":
    sys.exit(main())
