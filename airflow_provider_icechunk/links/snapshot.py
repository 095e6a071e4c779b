"""The link from a task to its snapshot, a page of this provider in Airflow's web interface."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_provider_icechunk.compat import conf, has_react_apps

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PREFIX = "/icechunk"
"""Path of the plugin's files and answers on the API server."""
ROUTE = "/plugin/icechunk"
"""Path of the repository browser in Airflow's own page, which keeps its navigation."""

_KEPT_IN = "icechunk_snapshot_page"


class IcechunkSnapshotLink(BaseOperatorLink):
    """A button on a task instance's page that opens its snapshot.

    The worker computes the link when the task ends and stores it in an XCom, which the web server
    reads. A task without a snapshot has no link.
    """

    name = "Icechunk snapshot"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The path that the task recorded."""
        del ti_key
        page: str = getattr(operator, _KEPT_IN, "")
        return page


class IcechunkRepositoryLink(BaseOperatorLink):
    """A button on a task instance's page that opens the repository it worked on.

    Tasks that failed have it too. The repository browser finds the maintenance of a repository and
    writes that failed by these links.
    """

    name = "Icechunk repository"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The view of the repository that fits the task."""
        del ti_key
        conn_id, repository = (
            getattr(operator, name, None) for name in ("icechunk_conn_id", "repository")
        )
        if not isinstance(conn_id, str) or not isinstance(repository, str):
            return ""
        return repository_page(conn_id, repository, getattr(operator, "icechunk_view", "history"))


def link_snapshot(
    operator: BaseOperator, *, conn_id: str, repository: str, snapshot_id: str
) -> None:
    """Point the link of a running task to a snapshot."""
    setattr(operator, _KEPT_IN, snapshot_page(conn_id, repository, snapshot_id))


def snapshot_page(conn_id: str, repository: str, snapshot_id: str) -> str:
    """The path of a snapshot's view."""
    query = urlencode({"version": snapshot_id})
    return f"{repository_page(conn_id, repository, 'snapshot')}?{query}"


def repository_page(conn_id: str, repository: str, view: str) -> str:
    """The path of a view, including the path under which Airflow is served.

    It names no host: only the browser knows under which one it reaches the web server.
    """
    base = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
    path = "/".join(quote(one, safe="") for one in (conn_id, repository, view))
    return f"{base}{page_route()}#/{path}"


def page_route() -> str:
    """Where the browser is: in Airflow's own page, or as a page of its own before Airflow 3.1."""
    return ROUTE if has_react_apps() else f"{PREFIX}/"
