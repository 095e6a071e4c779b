"""From a task to the snapshot it made: a page of this provider in Airflow's own web server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PREFIX = "/icechunk"
"""Where the plugin's pages are below the address of the API server."""

_KEPT_IN = "icechunk_snapshot_page"


class IcechunkSnapshotLink(BaseOperatorLink):
    """A button on the page of a task instance that leads to the snapshot.

    The worker asks for it when the task has ended and keeps the answer in an XCom; the web server
    only reads that. A task that made no snapshot has no link.
    """

    name = "Icechunk snapshot"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address that the task left when it ran."""
        del ti_key
        page: str = getattr(operator, _KEPT_IN, "")
        return page


def link_snapshot(
    operator: BaseOperator, *, conn_id: str, repository: str, snapshot_id: str
) -> None:
    """Make the link of a running task lead to a snapshot."""
    setattr(operator, _KEPT_IN, snapshot_page(conn_id, repository, snapshot_id))


def snapshot_page(conn_id: str, repository: str, snapshot_id: str) -> str:
    """The path of the page that shows a snapshot, also where Airflow is not at the root of a host.

    A path and no whole address: which host leads to the web server is the browser's business.
    """
    base = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
    query = urlencode({"repository": repository, "version": snapshot_id})
    return f"{base}{PREFIX}/connections/{quote(conn_id, safe='')}/show?{query}"
