"""Create a tag when a DAG run succeeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

from airflow_provider_icechunk.engine.pipelines.publish import create_tag
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkTagNotifier(BaseNotifier):
    """Tag the head of a branch; use it as the `on_success_callback` of a DAG.

    An existing tag is kept, so a run that succeeds twice does not fail.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param tag: name of the new tag. (templated)
    :param branch: branch whose head is tagged. (templated)
    :param icechunk_conn_id: the Icechunk connection.
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
        result = create_tag(repository, self.tag, branch=self.branch, if_exists="skip")
        self.log.info("Tag %s is at %s", self.tag, result["snapshot_id"])
