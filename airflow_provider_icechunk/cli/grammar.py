"""The commands and their arguments as one table, from which every parser is made."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from airflow_provider_icechunk.cli.times import parse_age, parse_cutoff
from airflow_provider_icechunk.hooks.cutoffs import SAFE_AGE

Path = tuple[str, ...]
"""The words that name a command: `("log",)`, `("branch", "create")`."""


class Options(TypedDict, total=False):
    """What is said about an argument, in the words of `argparse`."""

    help: str
    action: Literal["store_true"]
    type: Callable[[str], object]
    default: object
    nargs: Literal["?", "*"]
    choices: tuple[str, ...]
    required: bool
    metavar: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: a name, or flags that begin with a hyphen."""

    flags: tuple[str, ...]
    options: Options = field(default_factory=lambda: Options())

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Make a parser know it."""
        parser.add_argument(*self.flags, **self.options)


@dataclass(frozen=True, slots=True)
class Command:
    """A command, without what it does."""

    name: str
    help: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands about one kind of thing."""

    name: str
    help: str
    commands: tuple[Command, ...]


def count(text: str) -> int:
    """A whole number above 0. The type of an argument."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


_REPOSITORY = Argument(
    ("repository",),
    {"help": "a path, file:///path or s3://bucket/prefix"},
)
_COMMON = (
    Argument(("--json",), {"action": "store_true", "help": "print JSON, for programs"}),
    Argument(("--endpoint-url",), {"metavar": "URL", "help": "S3: an endpoint other than AWS"}),
    Argument(("--region",), {"help": "S3: the region of the bucket"}),
    Argument(("--anonymous",), {"action": "store_true", "help": "S3: do not sign requests"}),
    Argument(("--allow-http",), {"action": "store_true", "help": "S3: allow plain HTTP"}),
    Argument(
        ("--force-path-style",),
        {"action": "store_true", "help": "S3: put the bucket into the path, not the host name"},
    ),
)
_VERSION_HELP = "branch, tag or snapshot id; x~2 goes back two; branch:x or tag:x if both exist"
_VERSION = Argument(
    ("version",),
    {"nargs": "?", "default": "main", "help": f"{_VERSION_HELP} (default: main)"},
)
_NAME = Argument(("name",), {"help": "its name"})
_AT = Argument(
    ("--at",), {"default": "main", "metavar": "VERSION", "help": "where (default: main)"}
)
_DELETING = (
    Argument(
        ("--minimum-age",),
        {
            "type": parse_age,
            "default": SAFE_AGE,
            "metavar": "AGE",
            "help": "refuse cut-offs younger than this (default: 24h); younger than the longest "
            "running writer is dangerous",
        },
    ),
    Argument(("--dry-run",), {"action": "store_true", "help": "show the plan, change nothing"}),
    Argument(("--yes",), {"action": "store_true", "help": "do not ask"}),
)


def _older_than(what: str, *, required: bool) -> Argument:
    default = "" if required else " (default: the minimum age)"
    return Argument(
        ("--older-than",),
        {
            "type": parse_cutoff,
            "required": required,
            "metavar": "WHEN",
            "help": f"{what} before this: an age like 30d, or an ISO time{default}",
        },
    )


def _command(name: str, text: str, *arguments: Argument) -> Command:
    return Command(name, text, (_REPOSITORY, *arguments, *_COMMON))


COMMANDS: tuple[Command | Group, ...] = (
    _command(
        "init",
        "create a repository",
        Argument(
            ("--spec-version",),
            {"metavar": "NAME", "help": "generation of the format (default: 1)"},
        ),
        Argument(
            ("--if-missing",),
            {"action": "store_true", "help": "do nothing if there is a repository already"},
        ),
    ),
    _command(
        "log",
        "show the history as a graph",
        Argument(
            ("versions",),
            {
                "nargs": "*",
                "metavar": "version",
                "help": f"{_VERSION_HELP} (default: all branches and tags)",
            },
        ),
        Argument(
            ("-n", "--limit"),
            {"type": count, "default": 50, "help": "how many snapshots (default: 50)"},
        ),
        Argument(("--all",), {"action": "store_true", "help": "the whole history"}),
    ),
    _command("show", "show a snapshot and what it changed", _VERSION),
    _command(
        "diff",
        "show what changed from an ancestor to a later version",
        Argument(("older",), {"help": _VERSION_HELP}),
        Argument(
            ("newer",),
            {"nargs": "?", "default": "main", "help": f"{_VERSION_HELP} (default: main)"},
        ),
        Argument(
            ("--chunks",),
            {"action": "store_true", "help": "list the coordinates of all changed chunks"},
        ),
    ),
    _command(
        "tree",
        "show groups and arrays",
        _VERSION,
        Argument(("--path",), {"default": "/", "help": "begin at this group or array"}),
        Argument(
            ("--chunks",), {"action": "store_true", "help": "count chunks and their bytes too"}
        ),
    ),
    Group(
        "branch",
        "list, create, delete and move branches",
        (
            _command("list", "list branches and their heads"),
            _command("create", "create a branch", _NAME, _AT),
            _command("delete", "delete a branch; its snapshots stay until collected", _NAME),
            _command(
                "reset",
                "move a branch to any snapshot",
                _NAME,
                Argument(("--to",), {"required": True, "metavar": "VERSION", "help": "new head"}),
                Argument(
                    ("--from",),
                    {"metavar": "SNAPSHOT", "help": "only if this snapshot is the head now"},
                ),
            ),
        ),
    ),
    Group(
        "tag",
        "list, create and delete tags",
        (
            _command("list", "list tags and their snapshots"),
            _command("create", "name a snapshot for ever", _NAME, _AT),
            _command("delete", "delete a tag; its name is never free again", _NAME),
        ),
    ),
    _command(
        "expire",
        "take old snapshots out of the history",
        _older_than("snapshots written", required=True),
        Argument(
            ("--keep-last",),
            {"type": count, "metavar": "N", "help": "keep N snapshots of each branch in any case"},
        ),
        Argument(
            ("--delete-expired-branches",),
            {"action": "store_true", "help": "delete branches with an expired head, never main"},
        ),
        Argument(
            ("--delete-expired-tags",),
            {"action": "store_true", "help": "delete tags of expired snapshots"},
        ),
        *_DELETING,
    ),
    _command(
        "gc",
        "delete what no branch and no tag needs",
        _older_than("unneeded objects stored", required=False),
        *_DELETING,
    ),
    _command(
        "migrate",
        "move up to a newer generation of the format",
        Argument(
            ("--to",),
            {"choices": ("1", "2"), "default": "2", "help": "the generation (default: 2)"},
        ),
        Argument(
            ("--remove-old",),
            {"action": "store_true", "help": "delete the old entry point and old files at the end"},
        ),
        Argument(
            ("--no-fence",),
            {
                "action": "store_true",
                "help": "let programs that know only the old generation go on with the old entry "
                "point; takes a fence away that is there",
            },
        ),
        Argument(("--dry-run",), {"action": "store_true", "help": "show the plan, change nothing"}),
        Argument(("--yes",), {"action": "store_true", "help": "do not ask"}),
    ),
    _command("verify", "check that everything branches and tags need is there"),
    _command(
        "stats",
        "measure versions and files",
        Argument(("--arrays",), {"action": "store_true", "help": "every array of every branch"}),
    ),
)


def paths() -> Iterator[Path]:
    """The words of every command."""
    for entry in COMMANDS:
        if isinstance(entry, Command):
            yield (entry.name,)
        else:
            yield from ((entry.name, command.name) for command in entry.commands)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """A parser whose results say under `command` which command was meant."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Look into Icechunk repositories and take care of them."
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    for entry in COMMANDS:
        if isinstance(entry, Command):
            _add(commands, entry, (entry.name,))
            continue
        inner = commands.add_parser(entry.name, help=entry.help, description=entry.help)
        below = inner.add_subparsers(metavar="command", required=True)
        for command in entry.commands:
            _add(below, command, (entry.name, command.name))
    return parser


def _add(
    parsers: argparse._SubParsersAction[argparse.ArgumentParser], command: Command, path: Path
) -> None:
    parser = parsers.add_parser(command.name, help=command.help, description=command.help)
    for argument in command.arguments:
        argument.add_to(parser)
    parser.set_defaults(command=path)
