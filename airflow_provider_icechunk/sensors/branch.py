"""Wait for a commit on a branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.hooks.observing import Conditions, look_at_branch
from airflow_provider_icechunk.sensors.waiting import WaitingSensor
from airflow_provider_icechunk.triggers.branch import IcechunkBranchTrigger

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


class IcechunkBranchSensor(WaitingSensor):
    """Wait until a branch has moved on from a snapshot, by a commit that matters.

    Returns the first such commit: `repository`, `branch`, `snapshot_id`, `parent_id`, `message`,
    `written_at`, `metadata` and `reset`, which says that the branch no longer contains the snapshot
    it was to move on from.

    :param repository: path below the root of the connection. (templated)
    :param branch: the branch to wait for. (templated)
    :param since_snapshot_id: the snapshot after which commits count, such as the one that an
        earlier task returned; without one, every commit counts that was ever made. (templated)
    :param path: only commits count that changed something at or below this path. (templated)
    :param message_matches: only commits count in whose message this regular expression is found.
        (templated)
    :param metadata_has: only commits count whose metadata has these entries. (templated)
    :param icechunk_conn_id: the connection.
    :param deferrable: whether the triggerer waits instead of a worker.
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

    def look(self, repository: Repository) -> dict[str, Any] | None:
        """The first commit that matters."""
        seen = look_at_branch(
            repository,
            self.repository,
            self.branch,
            since=self.since_snapshot_id or None,
            conditions=Conditions(self.path, self.message_matches, self.metadata_has or {}),
        )
        return dict(seen.events[0]) if seen.events else None

    def make_trigger(self) -> IcechunkBranchTrigger:
        """The trigger that waits for the same commit."""
        return IcechunkBranchTrigger(
            repository=self.repository,
            branch=self.branch,
            icechunk_conn_id=self.icechunk_conn_id,
            start_from=self.since_snapshot_id or "beginning",
            path=self.path,
            message_matches=self.message_matches,
            metadata_has=self.metadata_has,
            poll_interval=float(self.poke_interval),
            once=True,
        )
