"""Parse the command line, run one command, and turn its result or error into an exit code.

0: success. 1: an error of this package, one line on standard error. 2: wrong usage. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_icechunk.engine.storage.location import OPTIONS, StorageLocation
from airflow_provider_icechunk.exceptions import IcechunkError

from . import (
    browse,
    completion,
    contents,
    grammar,
    history,
    maintenance,
    plot,
    refs,
    shipping,
    values,
)
from .screen import Report, Screen, Task, UsageError

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.storage.base import Storage

SCRIPT = "icechunk-airflow"
MODULE = "python -m airflow_provider_icechunk"
DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

COMMANDS: Mapping[grammar.Path, Callable[[Task], Report]] = {
    ("init",): contents.init,
    ("log",): history.log,
    ("show",): history.show,
    ("diff",): history.diff,
    ("tree",): contents.tree,
    ("coverage",): contents.coverage,
    ("branch", "list"): refs.list_branches,
    ("branch", "create"): refs.create_branch,
    ("branch", "delete"): refs.delete_branch,
    ("branch", "reset"): refs.reset_branch,
    ("tag", "list"): refs.list_tags,
    ("tag", "create"): refs.create_tag,
    ("tag", "delete"): refs.delete_tag,
    ("expire",): maintenance.expire,
    ("collect",): maintenance.collect,
    ("compact",): maintenance.compact,
    ("migrate",): maintenance.migrate,
    ("verify",): maintenance.verify,
    ("measure",): contents.measure,
    ("browse",): browse.browse,
    ("ls",): values.ls,
    ("cat",): values.cat,
    ("plot",): plot.plot,
}

ALONE: Mapping[grammar.Path, Callable[[argparse.Namespace], Report]] = {
    ("ship",): shipping.ship,
    ("completion",): completion.complete,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Wrong usage exits with 2, as `argparse` does."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = grammar.build_parser(SCRIPT if Path(sys.argv[0]).stem == SCRIPT else MODULE)
    if not given:
        parser.print_help()
        return DONE
    args = parser.parse_args(given)
    if args.command in ALONE:
        return run_alone(args.command, args, standard_screen())
    return run(args.command, args, locate_repository, standard_screen())


def run_alone(path: grammar.Path, args: argparse.Namespace, screen: Screen) -> int:
    """Run a command that concerns no repository."""
    try:
        report = ALONE[path](args)
    except (IcechunkError, OSError) as error:
        screen.complain("failed", str(error))
        return FAILED
    screen.show(report, as_json=getattr(args, "json", False))
    return DONE


def run(
    path: grammar.Path,
    args: argparse.Namespace,
    locate: Callable[[argparse.Namespace], Storage],
    screen: Screen,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> int:
    """Run a command with parsed arguments on the repository that `locate` finds."""
    from airflow_provider_icechunk.engine.storage.observed import ObservedStorage

    try:
        below = partial(_below, locate, args)
        task = Task(args, screen, ObservedStorage(locate(args)), now, below)
        report = COMMANDS[path](task)
        screen.show(report, as_json=args.json)
    except IcechunkError as error:
        screen.complain(error.kind.value, error.message)
        return FAILED
    except UsageError as error:
        screen.complain("usage", str(error))
        return WRONG_USAGE
    except BrokenPipeError:
        _forget_output()
        return FAILED
    except KeyboardInterrupt:
        screen.complain("interrupted", "interrupted by the user")
        return INTERRUPTED
    if report.problem is not None:
        screen.complain("incomplete", report.problem)
        return FAILED
    return DONE


def _below(
    locate: Callable[[argparse.Namespace], Storage], args: argparse.Namespace, path: str
) -> Storage:
    """The storage at a path below the address of a command."""
    address = args.repository.rstrip("/") or "/"
    whole = path if address == "." else f"{address}/{path}"
    return locate(argparse.Namespace(**{**vars(args), "repository": whole if path else address}))


def locate_repository(args: argparse.Namespace) -> Storage:
    """The storage at the given address; a relative path is relative to the working directory."""
    address: str = args.repository
    if not address:
        raise UsageError("the repository is empty: give a path, file:///path or s3://bucket/prefix")
    if "://" not in address:
        address = str(Path(address).resolve())
    given = {name: getattr(args, name) for name in OPTIONS if getattr(args, name)}
    return StorageLocation(address, **given).storage()


def standard_screen() -> Screen:
    """The streams of this process; characters they cannot encode are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return Screen(sys.stdout, sys.stderr, sys.stdin)


def _forget_output() -> None:
    """Keep the interpreter from reporting the closed pipe again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
