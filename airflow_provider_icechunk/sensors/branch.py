"""Wait for a commit on a branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.engine.pipelines.observe import CommitFilter, poll_branch
from airflow_provider_icechunk.triggers.branch import IcechunkBranchTrigger

from .base import WaitingSensor

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


class IcechunkBranchSensor(WaitingSensor):
    """Wait for a matching commit on a branch after a given snapshot.

    Returns the first such commit: `repository`, `branch`, `snapshot_id`, `parent_id`, `message`,
    `written_at`, `metadata` and `reset`, which is true if the branch no longer contains the given
    snapshot.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param branch: the branch to follow. (templated)
    :param since_snapshot_id: only commits after this snapshot match, such as one that an earlier
        task returned; by default every existing commit matches. (templated)
    :param path: only commits that changed something at or under this path match. (templated)
    :param message_matches: only commits whose message contains a match of this regular expression
        match. (templated)
    :param metadata_has: only commits whose metadata has these entries match. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    :param deferrable: whether to wait in the triggerer instead of a worker.
    """

    template_fields = (
        "repository",
        "branch",
        "since_snapshot_id",
        "path",
        "message_matches",
        "metadata_has",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata_has": "json"}

    def __init__(
        self,
        *,
        branch: str = "main",
        since_snapshot_id: str | None = None,
        path: str | None = None,
        message_matches: str | None = None,
        metadata_has: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.since_snapshot_id = since_snapshot_id
        self.path = path
        self.message_matches = message_matches
        self.metadata_has = metadata_has

    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The first matching commit."""
        seen = poll_branch(
            repository,
            self.repository,
            self.branch,
            since=self.since_snapshot_id or None,
            conditions=CommitFilter(self.path, self.message_matches, self.metadata_has or {}),
        )
        return dict(seen.events[0]) if seen.events else None

    def make_trigger(self) -> IcechunkBranchTrigger:
        """The trigger that waits for the same commit."""
        return IcechunkBranchTrigger(
            branch=self.branch,
            start_from=self.since_snapshot_id or "beginning",
            path=self.path,
            message_matches=self.message_matches,
            metadata_has=self.metadata_has,
            once=True,
            **self.polling(),
        )
