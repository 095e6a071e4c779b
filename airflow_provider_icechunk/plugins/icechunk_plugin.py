"""The Airflow plugin: mounts the provider's pages at `/icechunk`.

Every Airflow component imports this module, so it imports nothing but Airflow's plugin class. The
first request loads the pages and the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_icechunk.links.snapshot import PREFIX

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


class IcechunkPlugin(AirflowPlugin):
    """Read-only pages with the history, tree and diffs of a repository."""

    name = "icechunk"
    fastapi_apps = [  # noqa: RUF012
        {"app": LatePages(), "url_prefix": PREFIX, "name": "Icechunk"}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Icechunk",
            "href": urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
            + f"{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "icechunk",
        }
    ]
