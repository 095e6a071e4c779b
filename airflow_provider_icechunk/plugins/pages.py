"""The repository browser inside of Airflow: who may look, and where its repositories are.

Airflow does not protect mounted applications by itself: every route requires a login, and routes
that touch storage require permission to read the connection. The API server reads storage with the
connection's credentials, which never appear in an answer.

Earlier releases had a page for each command; tasks keep their addresses in XComs, so these lead to
the views that took their place.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_connection,
    requires_authenticated,
)
from airflow.configuration import conf
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import RedirectResponse

from airflow_provider_icechunk.browser.models import MaintenanceRun, PlaceFacts
from airflow_provider_icechunk.compat import AirflowNotFoundException, has_react_apps
from airflow_provider_icechunk.exceptions import NotFoundError
from airflow_provider_icechunk.hooks.connection import CONN_TYPE, build_storage
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.links.snapshot import PREFIX, IcechunkRepositoryLink, page_route

if TYPE_CHECKING:
    from airflow_provider_icechunk.browser.places import Maker
    from airflow_provider_icechunk.engine.storage.base import Storage

_TRIES = 2
"""How often a storage request is sent: a person is waiting."""
_MOST_CONNECTIONS = 200
_MOST_TASKS = 1_000
_LATELY = timedelta(days=7)
_REMEMBERED = timedelta(days=90)
_MAINTENANCE: dict[str, Literal["verify", "collect", "expire"]] = {
    "IcechunkVerifyOperator": "verify",
    "IcechunkCollectOperator": "collect",
    "IcechunkExpireOperator": "expire",
}
Text = Annotated[str, Query(min_length=1, max_length=1024)]
old = APIRouter()


def build_pages() -> FastAPI:
    """The application to mount, without API docs, which would be public."""
    from airflow_provider_icechunk.browser.app import build_app

    everybody = [
        Depends(check_switched_on),
        Depends(requires_authenticated()),
        Depends(remember_user),
    ]
    app = build_app(
        AirflowPlaces(),
        readable_connections,
        host="airflow",
        for_all=everybody,
        # Before 3.1 the login is in the storage of Airflow's page, not in a cookie: the browser can
        # send it with questions, but not when it opens a page.
        for_files=None if has_react_apps() else everybody[:1],
        for_places=[Depends(requires_access_connection(method="GET"))],
    )
    app.include_router(old, dependencies=everybody)
    return app


def check_switched_on() -> None:
    """Answer 404 if `[icechunk] repository_pages` is off."""
    if not conf.getboolean("icechunk", "repository_pages", fallback=True):
        raise HTTPException(404, "the pages are disabled by [icechunk] repository_pages")


async def remember_user(request: Request, user: GetUserDep) -> None:
    """Keep who asks, for the list of connections."""
    request.state.icechunk_user = user


def readable_connections(request: Request) -> list[PlaceFacts]:
    """The Icechunk connections in Airflow's tables that the user may read."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    allowed = get_auth_manager().get_authorized_connections(
        user=request.state.icechunk_user, method="GET"
    )
    with create_session() as session:
        rows = (
            session.query(Connection.conn_id, Connection.host, Connection.description)
            .filter(Connection.conn_type == CONN_TYPE)
            .order_by(Connection.conn_id)
            .all()
        )
    found = [row for row in rows if row.conn_id in allowed]
    return [
        PlaceFacts(id=row.conn_id, title=row.conn_id, location=row.description or row.host or "")
        for row in found[:_MOST_CONNECTIONS]
    ]


class AirflowPlaces:
    """The repositories of Airflow's connections."""

    def storage(self, place: str, repository: str) -> Storage:
        """The storage of a repository, with the credentials of the connection."""
        try:
            settings = IcechunkHook(place).settings
        except AirflowNotFoundException:
            raise NotFoundError(f"there is no connection {place[:200]!r}") from None
        return build_storage(settings, repository, tries=_TRIES)

    def page_of(self, maker: Maker) -> str | None:
        """The page of a task instance in Airflow."""
        base = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
        dag, run, task = (
            quote(one, safe="") for one in (maker.dag_id, maker.run_id, maker.task_id)
        )
        mapped = f"/mapped/{maker.map_index}" if maker.map_index >= 0 else ""
        return f"{base}/dags/{dag}/runs/{run}/tasks/{task}{mapped}"

    def maintenance(self, place: str, repository: str) -> tuple[list[MaintenanceRun], int | None]:
        """Maintenance by tasks, and the writes that failed in the last days, by their links."""
        from airflow_provider_icechunk.browser.places import Maker

        found: list[MaintenanceRun] = []
        failed = 0
        for row in _linked_tasks(place, repository):
            what = _MAINTENANCE.get(row.operator)
            if what is None:
                failed += row.state == "failed"
            elif row.state in ("success", "failed") and row.end_date is not None:
                maker = Maker(row.dag_id, row.run_id, row.task_id, row.map_index)
                ok = row.state == "success"
                summary = "" if ok else "the task failed"
                page = self.page_of(maker)
                found.append(
                    MaintenanceRun(what=what, at=row.end_date, ok=ok, summary=summary, page=page)
                )
        return found, failed


def _linked_tasks(place: str, repository: str) -> list[Any]:
    """Maintenance of a repository, and what lately failed to write to it, newest first."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import and_, or_

    now = datetime.now(UTC)
    # Views differ, and so may the path under which Airflow was served at the time.
    wanted = f"#/{quote(place, safe='')}/{quote(repository, safe='')}/"
    same = [
        getattr(TaskInstance, name) == getattr(XComModel, name)
        for name in ("dag_id", "run_id", "task_id", "map_index")
    ]
    columns = [
        getattr(TaskInstance, name)
        for name in ("dag_id", "run_id", "task_id", "map_index", "operator", "state", "end_date")
    ]
    with create_session() as session:
        rows = (
            session.query(*columns, XComModel.value)
            .filter(
                *same,
                XComModel.key == IcechunkRepositoryLink().xcom_key,
                XComModel.timestamp > now - _REMEMBERED,
                or_(
                    TaskInstance.operator.in_(list(_MAINTENANCE)),
                    and_(TaskInstance.state == "failed", XComModel.timestamp > now - _LATELY),
                ),
            )
            .order_by(XComModel.timestamp.desc())
            .limit(_MOST_TASKS)
            .all()
        )
    return [row for row in rows if isinstance(row.value, str) and wanted in row.value]


@old.get("/open")
def open_repository(request: Request, connection_id: Text, repository: Text) -> RedirectResponse:
    """Lead to the history of a repository; the view checks permissions."""
    return _lead(request, connection_id, repository, "history", {})


@old.get("/connections/{connection_id}/{view}")
def show(
    request: Request,
    connection_id: str,
    view: Literal["log", "show", "tree", "diff", "coverage"],
    repository: Text,
    version: Text = "main",
    older: Text = "main",
    newer: Text = "main",
    array: Text = "/",
) -> RedirectResponse:
    """Lead from a page of an earlier release to the view that took its place."""
    name, query = {
        "log": ("history", {}),
        "show": ("snapshot", {"version": version}),
        "tree": ("contents", {"version": version}),
        "diff": ("snapshot", {"version": newer, "against": older}),
        "coverage": ("array", {"version": version, "path": array}),
    }[view]
    return _lead(request, connection_id, repository, name, query)


def _lead(
    request: Request, connection_id: str, repository: str, view: str, query: dict[str, str]
) -> RedirectResponse:
    base = str(request.scope.get("root_path", "")).rstrip("/").removesuffix(PREFIX)
    path = "/".join(quote(one, safe="") for one in (connection_id, repository, view))
    asked = f"?{urlencode(query)}" if query else ""
    return RedirectResponse(f"{base}{page_route()}#/{path}{asked}", status_code=303)
