"""Tag what a Dag run made when it has succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.tagging import tag_snapshot

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkTagNotifier(BaseNotifier):
    """Tag the head of a branch; made for the `on_success_callback` of a Dag.

    A tag that is there already stays, so that a run that succeeds twice is no failure.

    :param repository: path below the root of the connection. (templated)
    :param tag: the new tag. (templated)
    :param branch: the branch whose head is tagged. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "tag", "branch")

    def __init__(
        self,
        *,
        repository: str,
        tag: str,
        branch: str = "main",
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
    ) -> None:
        super().__init__()
        self.repository = repository
        self.tag = tag
        self.branch = branch
        self.icechunk_conn_id = icechunk_conn_id

    def notify(self, context: Context) -> None:
        """Tag the head."""
        del context
        repository = IcechunkHook(self.icechunk_conn_id).open(self.repository)
        head = repository.lookup_branch(self.branch)
        result = tag_snapshot(repository, self.tag, head, if_exists="skip")
        self.log.info("Tag %s names %s", self.tag, result["snapshot_id"])
