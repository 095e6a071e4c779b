"""The Airflow plugin: the repository browser, with its answers at `/icechunk`, and metrics.

Every Airflow component imports this module, so it imports little of Airflow and no engine. The
first request loads the pages and the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_icechunk.compat import has_react_apps
from airflow_provider_icechunk.links.snapshot import PREFIX

from . import metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class LatePages:
    """The ASGI application with the pages, built by its first request."""

    def __init__(self) -> None:
        self._pages: Application | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if self._pages is None:
            from .pages import build_pages

            self._pages = build_pages()
        await self._pages(scope, receive, send)


_BASE = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
_FILES = f"{_BASE}{PREFIX}/static"


def _is_on() -> bool:
    return conf.getboolean("icechunk", "repository_pages", fallback=True)


def _apps() -> list[dict[str, Any]]:
    """The browser in Airflow's navigation, and on runs and task instances what they wrote."""
    if not _is_on():
        return []
    bundle = {"name": "Icechunk", "bundle_url": f"{_FILES}/plugin.js"}
    icons = {"icon": f"{_FILES}/icon.svg", "icon_dark_mode": f"{_FILES}/icon-dark.svg"}
    return [
        {**bundle, **icons, "destination": "nav", "category": "browse", "url_route": "icechunk"},
        {**bundle, **icons, "destination": "dag_run", "url_route": "icechunk-run"},
        {**bundle, **icons, "destination": "task_instance", "url_route": "icechunk-task"},
    ]


def _menu() -> list[dict[str, Any]]:
    """An entry in the navigation of Airflow 3.0, which has no pages of plugins."""
    if has_react_apps() or not _is_on():
        return []
    return [{"name": "Icechunk", "href": f"{_BASE}{PREFIX}/"}]


class IcechunkPlugin(AirflowPlugin):
    """The repository browser: history, differences, chunk maps and pictures. Read-only."""

    name = "icechunk"
    fastapi_apps = [  # noqa: RUF012
        {"app": LatePages(), "url_prefix": PREFIX, "name": "Icechunk"}
    ]
    react_apps = _apps()
    appbuilder_menu_items = _menu()
    listeners = [metrics]  # noqa: RUF012
