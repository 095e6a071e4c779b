"""`airflow icechunk ...`: the same commands, on addresses or on an Airflow connection.

Airflow calls `get_icechunk_cli_commands` whenever the `airflow` command starts, so this module
imports nothing but the table of commands.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand

from airflow_provider_icechunk.engine.storage.location import OPTIONS

from .grammar import COMMANDS, Argument, Command, CommandGroup, Path

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.storage.base import Storage

_CONNECTION = Argument(
    ("--conn-id",),
    {
        "metavar": "ID",
        "help": "an Icechunk connection; the repository is then a path relative to its root",
    },
)


def get_icechunk_cli_commands() -> list[CLICommand]:
    """The group `icechunk` for the `airflow` command."""
    return [
        GroupCommand(
            name="icechunk",
            help="Inspect and maintain Icechunk repositories",
            subcommands=[one for entry in COMMANDS for one in _entries(entry)],
        )
    ]


def _entries(entry: Command | CommandGroup) -> list[CLICommand]:
    """One command, or two if it has an alias: Airflow does not support aliases."""
    if isinstance(entry, Command):
        names = (entry.name,) if entry.alias is None else (entry.name, entry.alias)
        return [_action(replace(entry, name=name), (entry.name,)) for name in names]
    below = [_action(command, (entry.name, command.name)) for command in entry.commands]
    return [GroupCommand(name=entry.name, help=entry.help, subcommands=below)]


def _action(command: Command, path: Path) -> ActionCommand:
    return ActionCommand(
        name=command.name,
        help=command.help,
        func=partial(_run, path),
        args=[_arg(one) for one in (*command.arguments, _CONNECTION)],
    )


def _arg(argument: Argument) -> Arg:
    return Arg(argument.flags, **argument.options)  # type: ignore[no-untyped-call]


def _run(path: Path, args: argparse.Namespace) -> None:
    """Run a command and exit the process with its exit code."""
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    from .run import run, standard_screen

    redirect_stdout_log_handlers_to_stderr()
    sys.exit(run(path, args, _locate, standard_screen()))


def _locate(args: argparse.Namespace) -> Storage:
    """The storage that a connection or an address names."""
    from .run import locate_repository
    from .screen import UsageError

    if args.conn_id is None:
        return locate_repository(args)
    given = [name for name in OPTIONS if getattr(args, name)]
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag} cannot be combined with --conn-id: set it in the connection")
    return _storage_of_connection(args.conn_id, args.repository)


def _storage_of_connection(conn_id: str, repository: str) -> Storage:
    # Outside a task, Airflow reads connections from its database only if this is set; its own
    # `connections` commands set it too.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    from airflow_provider_icechunk.compat import AirflowNotFoundException
    from airflow_provider_icechunk.exceptions import NotFoundError
    from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

    try:
        return IcechunkHook(conn_id).storage(repository)
    except AirflowNotFoundException:
        raise NotFoundError(
            f"Airflow has no connection {conn_id!r}; create it with `airflow connections add`"
        ) from None
