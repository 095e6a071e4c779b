"""Read-only pages about repositories, for users who may read the connection.

Airflow does not protect mounted applications by itself: every route requires a login, and routes
that touch storage require permission to read the connection. The API server reads storage with the
connection's credentials, which never appear on a page.

Pages show the output of `airflow icechunk log`, `show`, `tree`, `diff` and `coverage`. Above a
snapshot are the task that made it, with a link, and what checks found before it was published.
"""

from __future__ import annotations

import argparse
import html
import io
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from airflow.api_fastapi.core_api.security import requires_access_connection, requires_authenticated
from airflow.configuration import conf
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from rich.console import Console

from airflow_provider_icechunk.cli.grammar import build_parser
from airflow_provider_icechunk.cli.render import plain
from airflow_provider_icechunk.cli.run import COMMANDS
from airflow_provider_icechunk.cli.screen import Screen, Task
from airflow_provider_icechunk.compat import AirflowNotFoundException
from airflow_provider_icechunk.engine.pipelines.reruns import METADATA_KEY
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
)
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

if TYPE_CHECKING:
    from airflow_provider_icechunk.cli.screen import Report
    from airflow_provider_icechunk.hooks.connection import IcechunkConnection


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
        "frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
CHECKS_KEY = "airflow_provider_icechunk.checks"
"""As in `engine.pipelines.checks`, which is not imported for it."""
Text = Annotated[str, Query(min_length=1, max_length=1024)]
router = APIRouter(dependencies=[Depends(requires_authenticated())])


def build_pages() -> FastAPI:
    """The application to mount, without API docs, which would be public."""
    app = FastAPI(title="Icechunk", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    return app


def check_switched_on() -> None:
    """Answer 404 if `[icechunk] repository_pages` is off."""
    if not conf.getboolean("icechunk", "repository_pages", fallback=True):
        raise HTTPException(404, "the pages are disabled by [icechunk] repository_pages")


@router.get("/", dependencies=[Depends(check_switched_on)])
def home(request: Request) -> HTMLResponse:
    """Ask for a connection and a repository."""
    return _answer("Icechunk repositories", chooser(_here(request)))


@router.get("/open", dependencies=[Depends(check_switched_on)])
def open_repository(request: Request, connection_id: Text, repository: Text) -> RedirectResponse:
    """Redirect to the history of a repository; that page checks permissions."""
    query = urlencode({"repository": repository})
    place = f"{_here(request)}/connections/{quote(connection_id, safe='')}/log?{query}"
    return RedirectResponse(place, status_code=303)


@router.get(
    "/connections/{connection_id}/{view}",
    dependencies=[Depends(check_switched_on), Depends(requires_access_connection(method="GET"))],
)
def show(
    request: Request,
    connection_id: str,
    view: Literal["log", "show", "tree", "diff", "coverage"],
    repository: Text,
    version: Text = "main",
    older: Text = "main",
    newer: Text = "main",
    array: Text = "/",
    dim: Annotated[str | None, Query(max_length=1024)] = None,
) -> HTMLResponse:
    """Show one page of a repository."""
    views: dict[str, dict[str, Any]] = {
        "log": {},
        "show": {"version": version},
        "tree": {"version": version},
        "diff": {"older": older, "newer": newer},
        "coverage": {"version": version, "array": array, "dim": dim or None},
    }
    given = views[view]
    title = f"{view} of {plain(repository)}"
    top = menu(_here(request), repository)
    try:
        settings = IcechunkHook(connection_id).settings
        report = run_view(settings, repository, view, **given)
    except AirflowNotFoundException:
        return _problem(title, top, f"no connection {connection_id!r}", 404)
    except IcechunkError as error:
        return _problem(title, top, error.message, _status(error))
    drawn = draw(report, lambda one: _link(repository, one))
    facts = about(report.json.get("metadata")) if view == "show" else ""
    return _answer(title, f"{top}{facts}<pre>{drawn}</pre>")


def _link(repository: str, snapshot_id: str) -> str:
    return "show?" + urlencode({"repository": repository, "version": snapshot_id})


def _here(request: Request) -> str:
    """The path of these pages as the browser sees it."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _status(error: IcechunkError) -> int:
    match error:
        case NotFoundError():
            return 404
        case InvalidInputError():
            return 400
        case AccessDeniedError():
            return 403
    return 502


def _problem(title: str, top: str, text: str, status: int) -> HTMLResponse:
    return _answer(title, f'{top}<p class="problem">{html.escape(plain(text))}</p>', status)


def _answer(title: str, body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(page(title, body), status_code=status, headers=_HEADERS)


VIEWS = ("log", "show", "tree", "diff", "coverage")
"""Commands that have a page; none of them writes."""

_TRIES = 2
"""How often a storage request is sent: a person is waiting."""
_WIDTH = 200
_LONGEST_NAME = 1000
_MOST_CHECKS = 200
_CHECK_COLUMNS = ("check", "subject", "value", "limit", "text")
_MOST_LINES = 3_000
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5em 2em; color: #1a1a1a; background: #fff }
pre { font: 13px/1.45 ui-monospace, monospace; background: #f7f9fa; padding: 1em; overflow: auto }
td, th { text-align: left; padding-right: 1.5em }
nav a { margin-right: 1em } input { margin-right: .5em; padding: .2em } .problem { color: #a40000 }
"""


def run_view(settings: IcechunkConnection, repository: str, view: str, **given: Any) -> Report:
    """Run a read-only command on a repository of a connection."""
    from airflow_provider_icechunk.engine.budget import allowing, for_web_pages
    from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
    from airflow_provider_icechunk.hooks.connection import build_storage

    assert view in VIEWS
    storage = ObservedStorage(build_storage(settings, repository, tries=_TRIES))
    screen = Screen(io.StringIO(), io.StringIO(), io.StringIO())
    task = Task(_arguments(view, given), screen, storage, lambda: datetime.now(UTC))
    with allowing(for_web_pages()):
        return COMMANDS[(view,)](task)


def _arguments(view: str, given: Mapping[str, Any]) -> argparse.Namespace:
    """The arguments of a command: its defaults, then the given values, which are never parsed."""
    needed = ["x"] if view in ("diff", "coverage") else []
    arguments = build_parser("icechunk").parse_args([view, "x", *needed])
    for name, value in given.items():
        assert hasattr(arguments, name)
        setattr(arguments, name, value)
    return arguments


def draw(report: Report, link: Callable[[str], str]) -> str:
    """The output of a command as HTML; every snapshot id becomes a link. Pure."""
    from airflow_provider_icechunk.engine.format.ids import id_pattern

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
        lines = [*lines[:_MOST_LINES], "... truncated: use the command line to see the rest"]
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
    """Links to the other pages of a repository, and a form for diffs."""
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
        f'<form action="coverage"><input type="hidden" name="repository" value="{name}">'
        '<input name="array" placeholder="path of an array" required>'
        '<input name="dim" placeholder="dimension, or its first">'
        "<button>coverage</button></form>"
    )


def about(metadata: object) -> str:
    """Who made a snapshot, with a link to the task, and what its checks found. Pure.

    Metadata is stored text of anybody: what has not the expected shape is left out.
    """
    if not isinstance(metadata, Mapping):
        return ""
    return _maker(metadata.get(METADATA_KEY)) + _verdicts(metadata.get(CHECKS_KEY))


def _maker(task: object) -> str:
    if not isinstance(task, Mapping):
        return ""
    names = [task.get(key) for key in ("dag_id", "run_id", "task_id")]
    if not all(isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME for name in names):
        return ""
    index = task.get("map_index")
    mapped = f" [{index}]" if type(index) is int and index >= 0 else ""
    dag, run, name = (quote(str(one), safe="") for one in names)
    base = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
    place = f"{base}/dags/{dag}/runs/{run}/tasks/{name}" + (f"/mapped/{index}" if mapped else "")
    text = html.escape(plain(" / ".join(map(str, names)) + mapped))
    # The pages are in a frame of Airflow's own page, which the link is to replace.
    return f'<p>made by <a target="_top" href="{html.escape(place, quote=True)}">{text}</a></p>'


def _verdicts(report: object) -> str:
    checks = report.get("checks") if isinstance(report, Mapping) else None
    if not isinstance(checks, list):
        return ""
    rows = []
    for one in checks[:_MOST_CHECKS]:
        if isinstance(one, Mapping):
            passed = "passed" if one.get("passed") is True else "failed"
            shown = [passed, *(one.get(key, "") for key in _CHECK_COLUMNS)]
            cells = "".join(f"<td>{html.escape(plain(str(cell))[:300])}</td>" for cell in shown)
            rows.append(f"<tr>{cells}</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("", *_CHECK_COLUMNS))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else ""


def chooser(here: str) -> str:
    """The form that asks for a connection and a repository."""
    return (
        f'<form action="{html.escape(here, quote=True)}/open">'
        '<input name="connection_id" placeholder="connection id" value="icechunk_default" required>'
        '<input name="repository" placeholder="repository, . for the root" required>'
        "<button>open</button></form>"
        "<p>Shows the output of <code>airflow icechunk log, show, tree, diff, coverage</code>. "
        "Requires permission to read the connection. Read-only.</p>"
    )
