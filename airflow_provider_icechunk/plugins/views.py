"""What a page shows: the commands that only read, with their output as HTML.

A page says exactly what `airflow icechunk log`, `show`, `tree` or `diff` would say in a terminal.
"""

from __future__ import annotations

import argparse
import html
import io
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from rich.console import Console

from airflow_provider_icechunk.cli.grammar import build_parser
from airflow_provider_icechunk.cli.run import COMMANDS
from airflow_provider_icechunk.cli.screen import Screen
from airflow_provider_icechunk.cli.task import Task

if TYPE_CHECKING:
    from airflow_provider_icechunk.cli.screen import Report
    from airflow_provider_icechunk.hooks.connection import IcechunkConnection

VIEWS = ("log", "show", "tree", "diff")
"""Commands that have a page; none of them writes."""

_TRIES = 2
"""How often a request to the storage is sent: a person waits."""
_WIDTH = 200
_MOST_LINES = 3_000
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5em 2em; color: #1a1a1a; background: #fff }
pre { font: 13px/1.45 ui-monospace, monospace; background: #f7f9fa; padding: 1em; overflow: auto }
nav a { margin-right: 1em } input { margin-right: .5em; padding: .2em } .problem { color: #a40000 }
"""


def run_view(settings: IcechunkConnection, repository: str, view: str, **given: str) -> Report:
    """Run a command that only reads on a repository below the root of a connection."""
    from airflow_provider_icechunk.budget import allowing, for_web_pages
    from airflow_provider_icechunk.hooks.storages import build_storage
    from airflow_provider_icechunk.storage.observed import ObservedStorage

    assert view in VIEWS
    storage = ObservedStorage(build_storage(settings, repository, tries=_TRIES))
    screen = Screen(io.StringIO(), io.StringIO(), io.StringIO())
    task = Task(_arguments(view, given), screen, storage, lambda: datetime.now(UTC))
    with allowing(for_web_pages()):
        return COMMANDS[(view,)](task)


def _arguments(view: str, given: Mapping[str, str]) -> argparse.Namespace:
    """The arguments of a command: its defaults, and what was given, which is never parsed."""
    needed = ["x"] if view == "diff" else []
    arguments = build_parser("icechunk").parse_args([view, "x", *needed])
    for name, value in given.items():
        assert hasattr(arguments, name)
        setattr(arguments, name, value)
    return arguments


def draw(report: Report, link: Callable[[str], str]) -> str:
    """The output of a command as HTML; every snapshot id becomes a link. Pure."""
    from airflow_provider_icechunk.format.generations.identities import id_pattern

    console = Console(
        file=io.StringIO(),
        record=True,
        width=_WIDTH,
        force_terminal=True,
        color_system="truecolor",
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in report.body:
        console.print(part)
    drawn = console.export_html(inline_styles=True, code_format="{code}")
    lines = [line.rstrip() for line in drawn.splitlines()]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], "... the rest is left out: use the command line"]
    text = "\n".join(lines)
    if report.generation is None:
        return text
    return id_pattern(report.generation).sub(
        lambda found: f'<a href="{html.escape(link(found[0]))}">{found[0]}</a>', text
    )


def page(title: str, body: str) -> str:
    """A whole HTML document; `title` is text, `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h2>{html.escape(title)}</h2>{body}</body></html>"
    )


def menu(here: str, repository: str) -> str:
    """Links to the other pages of a repository, and a form for differences."""
    name = html.escape(repository, quote=True)
    links = "".join(
        f'<a href="{view}?{html.escape(urlencode({"repository": repository}))}">{view}</a>'
        for view in ("log", "tree")
    )
    return (
        f'<nav>{links}<a href="{html.escape(here, quote=True)}/">another repository</a></nav>'
        f'<form action="diff"><input type="hidden" name="repository" value="{name}">'
        '<input name="older" placeholder="older version" required>'
        '<input name="newer" placeholder="newer version" value="main">'
        "<button>diff</button></form>"
    )


def chooser(here: str) -> str:
    """The form that asks for a connection and a repository."""
    return (
        f'<form action="{html.escape(here, quote=True)}/open">'
        '<input name="connection_id" placeholder="connection id" value="icechunk_default" required>'
        '<input name="repository" placeholder="repository, . for the root" required>'
        "<button>open</button></form>"
        "<p>Shows what <code>airflow icechunk log, show, tree, diff</code> show. Only who may read "
        "the connection may look; nothing can be changed here.</p>"
    )
