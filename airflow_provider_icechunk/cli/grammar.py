"""One table of the commands and their arguments, from which every parser is built."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from airflow_provider_icechunk.engine.maintenance.ages import SAFE_AGE
from airflow_provider_icechunk.engine.storage.location import OPTIONS, Option

from .render import parse_age, parse_cutoff

Path = tuple[str, ...]
"""The words that name a command: `("log",)`, `("branch", "create")`."""


class Options(TypedDict, total=False):
    """The `argparse` options of an argument."""

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
    """One argument: a positional name, or flags that start with a hyphen."""

    flags: tuple[str, ...]
    options: Options = field(default_factory=lambda: Options())

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add it to a parser."""
        parser.add_argument(*self.flags, **self.options)


@dataclass(frozen=True, slots=True)
class Command:
    """The name, help and arguments of a command."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    alias: str | None = None
    """Another name for the same command."""


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Subcommands for one kind of object."""

    name: str
    help: str
    commands: tuple[Command, ...]


def count(text: str) -> int:
    """An argument type: a positive integer."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _of_location(option: Option) -> Argument:
    text = f"{', '.join(f'{one}://' for one in option.schemes)}: {option.help}"
    options: Options = {"help": text}
    if option.is_flag:
        options["action"] = "store_true"
    return Argument((f"--{option.name.replace('_', '-')}",), options)


def port(text: str) -> int:
    """An argument type: a TCP port."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


_REPOSITORY = Argument(
    ("repository",),
    {"help": "a path, or a URL: s3://, gs://, az://, abfs://, https:// or file://"},
)
_COMMON = (
    Argument(("--json",), {"action": "store_true", "help": "print JSON, for programs"}),
    *map(_of_location, OPTIONS.values()),
)
_VERSION_HELP = "branch, tag or snapshot id; x~2 goes back two; branch:x or tag:x if both exist"
_VERSION = Argument(
    ("version",),
    {"nargs": "?", "default": "main", "help": f"{_VERSION_HELP} (default: main)"},
)
_NAME = Argument(("name",), {"help": "name of the branch or tag"})
_AT = Argument(
    ("--at",), {"default": "main", "metavar": "VERSION", "help": f"{_VERSION_HELP} (default: main)"}
)
_DRY_RUN = Argument(
    ("--dry-run",), {"action": "store_true", "help": "show the plan, change nothing"}
)
_YES = Argument(("--yes",), {"action": "store_true", "help": "do not ask for confirmation"})
_DELETING = (
    Argument(
        ("--minimum-age",),
        {
            "type": parse_age,
            "default": SAFE_AGE,
            "metavar": "AGE",
            "help": "refuse a more recent cut-off than this (default: 24h); keep it longer than "
            "your longest write",
        },
    ),
    _DRY_RUN,
    _YES,
)

_RULES = {
    "small": "move chunks smaller than this (default: 1 MiB)",
    "target": "size of a packed file (default: 64 MiB)",
    "enough": "skip files with at least this much data in use (default: 4 MiB)",
    "inline-from": "also move inline chunks of at least this size (default: none)",
}


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


def _command(name: str, text: str, *arguments: Argument, alias: str | None = None) -> Command:
    return Command(name, text, (_REPOSITORY, *arguments, *_COMMON), alias)


COMMANDS: tuple[Command | CommandGroup, ...] = (
    _command(
        "init",
        "create a repository",
        Argument(
            ("--spec-version",),
            {"metavar": "NAME", "help": "generation of the format (default: 1)"},
        ),
        Argument(
            ("--if-missing",),
            {"action": "store_true", "help": "succeed if the repository already exists"},
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
        "show what changed between two versions, or on each of two branches since they parted",
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
        Argument(
            ("where",),
            {
                "nargs": "*",
                "metavar": "version or /path",
                "help": f"{_VERSION_HELP} (default: main); the path of a group or array to start "
                "at begins with a slash",
            },
        ),
        Argument(("--path",), {"help": "the same as a path without an option"}),
        Argument(("--chunks",), {"action": "store_true", "help": "count chunks and their bytes"}),
    ),
    _command(
        "cat",
        "show what a group or an array holds",
        Argument(("path",), {"help": "path of the group or array"}),
        _VERSION,
        Argument(
            ("--select",),
            {"metavar": "PART", "help": 'positions and ranges of an array, such as "0, 10:20"'},
        ),
    ),
    _command(
        "plot",
        "draw an array as a PNG file",
        Argument(("array",), {"help": "path of the array"}),
        _VERSION,
        Argument(
            ("--output",), {"required": True, "metavar": "FILE", "help": "the PNG file to write"}
        ),
        Argument(
            ("--at",),
            {
                "metavar": "POSITIONS",
                "help": 'one position for each dimension, such as "3, 0, 0" (default: the first); '
                "those of the last two, which are drawn, do not count",
            },
        ),
    ),
    _command("ls", "list the repositories at and below an address"),
    _command(
        "coverage",
        "show which labels of an array are there and which are missing",
        Argument(("array",), {"help": "path of the array"}),
        _VERSION,
        Argument(("--dim",), {"help": "dimension (default: the first)"}),
    ),
    CommandGroup(
        "branch",
        "list, create, delete and move branches",
        (
            _command("list", "list branches and their heads"),
            _command("create", "create a branch", _NAME, _AT),
            _command("delete", "delete a branch; its snapshots remain until collected", _NAME),
            _command(
                "reset",
                "move a branch to any snapshot",
                _NAME,
                Argument(("--to",), {"required": True, "metavar": "VERSION", "help": "new head"}),
                Argument(
                    ("--from",),
                    {"metavar": "SNAPSHOT", "help": "only if this is the current head"},
                ),
            ),
        ),
    ),
    CommandGroup(
        "tag",
        "list, create and delete tags",
        (
            _command("list", "list tags and their snapshots"),
            _command("create", "create an immutable tag", _NAME, _AT),
            _command("delete", "delete a tag; its name cannot be reused", _NAME),
        ),
    ),
    _command(
        "expire",
        "remove old snapshots from the history",
        _older_than("snapshots written", required=True),
        Argument(
            ("--keep-last",),
            {"type": count, "metavar": "N", "help": "always keep N snapshots of each branch"},
        ),
        Argument(
            ("--delete-expired-branches",),
            {"action": "store_true", "help": "delete branches whose head expired, never main"},
        ),
        Argument(
            ("--delete-expired-tags",),
            {"action": "store_true", "help": "delete tags of expired snapshots"},
        ),
        *_DELETING,
    ),
    _command(
        "collect",
        "delete objects that no branch or tag needs",
        _older_than("unneeded objects stored", required=False),
        *_DELETING,
        alias="gc",
    ),
    _command(
        "compact",
        "pack small chunks into larger files, as one commit",
        Argument(("branch",), {"nargs": "?", "default": "main", "help": "default: main"}),
        *(
            Argument((f"--{name}",), {"type": count, "metavar": "BYTES", "help": text})
            for name, text in _RULES.items()
        ),
        Argument(
            ("--message",), {"default": "compact small chunks", "help": "message of the commit"}
        ),
        _DRY_RUN,
    ),
    _command(
        "migrate",
        "migrate to a newer generation of the format",
        Argument(
            ("--to",),
            {"choices": ("1", "2"), "default": "2", "help": "target generation (default: 2)"},
        ),
        Argument(
            ("--remove-old",),
            {"action": "store_true", "help": "delete the old entry point and files at the end"},
        ),
        Argument(
            ("--no-fence",),
            {
                "action": "store_true",
                "help": "leave the old entry point usable by programs that only know the old "
                "generation; removes an existing fence",
            },
        ),
        _DRY_RUN,
        _YES,
    ),
    _command("verify", "check that all objects branches and tags need exist"),
    _command(
        "measure",
        "show the sizes of versions and files, or the values of an array in numbers",
        Argument(
            ("array",),
            {
                "nargs": "?",
                "help": "path of an array: reads it and shows its smallest, largest and "
                "mean value and how many are missing",
            },
        ),
        _VERSION,
        Argument(("--arrays",), {"action": "store_true", "help": "list every array per branch"}),
        alias="stats",
    ),
    _command(
        "browse",
        "show the repositories at and below an address in a web browser, on this machine only",
        Argument(
            ("--port",),
            {"type": port, "default": 8765, "help": "default: 8765; 0 for any that is free"},
        ),
        Argument(("--open",), {"action": "store_true", "help": "open the web browser"}),
    ),
)

ALONE: tuple[Command, ...] = (
    Command(
        "ship",
        "write this package as a zip for Spark's executors",
        (
            Argument(
                ("--output",), {"required": True, "metavar": "FILE", "help": "the zip to write"}
            ),
            Argument(
                ("--with-needs",),
                {"action": "store_true", "help": "add the packages it needs that are pure Python"},
            ),
            Argument(("--json",), {"action": "store_true", "help": "print JSON, for programs"}),
        ),
    ),
    Command(
        "completion",
        "print the completions of these commands for a shell",
        (Argument(("shell",), {"choices": ("bash", "zsh", "fish"), "help": "the shell"}),),
    ),
)
"""Commands that concern no repository; Airflow's program does not have them."""


def paths() -> Iterator[Path]:
    """The words of every command."""
    for entry in COMMANDS:
        if isinstance(entry, Command):
            yield (entry.name,)
        else:
            yield from ((entry.name, command.name) for command in entry.commands)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """A parser that puts the words of the chosen command into `command`."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Inspect and maintain Icechunk repositories."
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in ALONE:
        _add(commands, command, (command.name,))
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
    parser = parsers.add_parser(
        command.name,
        aliases=() if command.alias is None else (command.alias,),
        help=command.help,
        description=command.help,
    )
    for argument in command.arguments:
        argument.add_to(parser)
    parser.set_defaults(command=path)
