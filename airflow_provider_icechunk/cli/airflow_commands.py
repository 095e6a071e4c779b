"""`airflow icechunk ...`: the same commands, on addresses or below an Airflow connection.

Airflow calls `get_icechunk_cli_commands` whenever the `airflow` command starts, so importing this
module imports nothing but the table of commands.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand

from airflow_provider_icechunk.cli.grammar import (
    COMMANDS,
    Argument,
    Command,
    Group,
    Path,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.storage.base import Storage

_CONNECTION = Argument(
    ("--conn-id",),
    {
        "metavar": "ID",
        "help": "an Icechunk connection; the repository is then a path below its root",
    },
)
_ADDRESS_OPTIONS = ("endpoint_url", "region", "anonymous", "allow_http", "force_path_style")


def get_icechunk_cli_commands() -> list[CLICommand]:
    """The group `icechunk` for the `airflow` command."""
    return [
        GroupCommand(
            name="icechunk",
            help="Look into Icechunk repositories and take care of them",
            subcommands=[_entry(entry) for entry in COMMANDS],
        )
    ]


def _entry(entry: Command | Group) -> CLICommand:
    if isinstance(entry, Command):
        return _action(entry, (entry.name,))
    return GroupCommand(
        name=entry.name,
        help=entry.help,
        subcommands=[_action(command, (entry.name, command.name)) for command in entry.commands],
    )


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
    """Run a command and leave the process with its exit code."""
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    from airflow_provider_icechunk.cli.run import run, standard_screen

    redirect_stdout_log_handlers_to_stderr()
    sys.exit(run(path, args, _locate, standard_screen()))


def _locate(args: argparse.Namespace) -> Storage:
    """The storage that a connection or an address names."""
    from airflow_provider_icechunk.cli.run import locate_repository
    from airflow_provider_icechunk.cli.screen import UsageError

    if args.conn_id is None:
        return locate_repository(args)
    given = [name for name in _ADDRESS_OPTIONS if getattr(args, name)]
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag} is for addresses; with --conn-id the connection says it")
    return _storage_of_connection(args.conn_id, args.repository)


def _storage_of_connection(conn_id: str, repository: str) -> Storage:
    # Without it a process outside of a task does not look for connections in Airflow's tables;
    # Airflow's own `connections` commands set it for the same reason.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    from airflow.sdk.exceptions import AirflowNotFoundException

    from airflow_provider_icechunk.exceptions import NotFoundError
    from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

    try:
        return IcechunkHook(conn_id).storage(repository)
    except AirflowNotFoundException:
        raise NotFoundError(f"Airflow has no connection {conn_id!r}") from None
