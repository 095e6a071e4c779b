"""The pages that look into repositories. For people who may read the connection; they only read.

A mounted application is not protected by Airflow unless it asks for it: every address demands a
login, and those that touch storage demand the right to read the connection that is used. Storage is
read by the API server with the credentials of the connection, which never reach a page.
"""

from __future__ import annotations

import html
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from airflow.api_fastapi.core_api.security import requires_access_connection, requires_authenticated
from airflow.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from airflow_provider_icechunk.cli.text import plain
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
)
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.plugins import views

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
        "frame-ancestors 'self'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
Text = Annotated[str, Query(min_length=1, max_length=1024)]
router = APIRouter(dependencies=[Depends(requires_authenticated())])


def build_pages() -> FastAPI:
    """The application to mount; has no descriptions of itself, which would be public."""
    app = FastAPI(title="Icechunk", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    return app


def check_switched_on() -> None:
    """Nothing is there if `[icechunk] repository_pages` is off."""
    if not conf.getboolean("icechunk", "repository_pages", fallback=True):
        raise HTTPException(404, "the pages are switched off: [icechunk] repository_pages")


@router.get("/", dependencies=[Depends(check_switched_on)])
def home(request: Request) -> HTMLResponse:
    """Ask for a connection and a repository."""
    return _answer("Icechunk repositories", views.chooser(_here(request)))


@router.get("/open", dependencies=[Depends(check_switched_on)])
def open_repository(request: Request, connection_id: Text, repository: Text) -> RedirectResponse:
    """Go to the history of a repository. Only an address is made: that page checks the rights."""
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
    view: Literal["log", "show", "tree", "diff"],
    repository: Text,
    version: Text = "main",
    older: Text = "main",
    newer: Text = "main",
) -> HTMLResponse:
    """One page of a repository."""
    given = {
        "log": {},
        "show": {"version": version},
        "tree": {"version": version},
        "diff": {"older": older, "newer": newer},
    }[view]
    title = f"{view} of {plain(repository)}"
    top = views.menu(_here(request), repository)
    try:
        settings = IcechunkHook(connection_id).settings
        report = views.run_view(settings, repository, view, **given)
    except AirflowNotFoundException:
        return _problem(title, top, f"there is no connection {connection_id!r}", 404)
    except IcechunkError as error:
        return _problem(title, top, error.message, _status(error))
    drawn = views.draw(report, lambda one: _link(repository, one))
    return _answer(title, f"{top}<pre>{drawn}</pre>")


def _link(repository: str, snapshot_id: str) -> str:
    return "show?" + urlencode({"repository": repository, "version": snapshot_id})


def _here(request: Request) -> str:
    """The path of these pages, as the browser sees it."""
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
    return HTMLResponse(views.page(title, body), status_code=status, headers=_HEADERS)
