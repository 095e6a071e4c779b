"""What Airflow loads by entry point: the pages of this provider below `/icechunk`.

Every component of Airflow imports this module, so it imports nothing but Airflow's plugin class.
The pages and the engine behind them are loaded when somebody asks for the first page.
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
    """The ASGI application with the pages, built at its first request."""

    def __init__(self) -> None:
        self._pages: Application | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self._pages is None:
            from airflow_provider_icechunk.plugins.pages import build_pages

            self._pages = build_pages()
        await self._pages(scope, receive, send)


class IcechunkPlugin(AirflowPlugin):
    """Pages that show the history, the tree and the differences of a repository. They read only."""

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
