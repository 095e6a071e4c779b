"""Publish a branch: the last step of write, audit, publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.hooks.solvers import OnChunkConflict, solver_for
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink
from airflow_provider_icechunk.operators.base import RepositoryOperator, report_to_outlets
from airflow_provider_icechunk.operators.identity import task_identity, task_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkPublishOperator(RepositoryOperator):
    """Bring what a staging branch has to another branch, all of it at once.

    The other branch is moved forward if it stood still, so that readers get the very snapshot that
    was audited. If others committed to it meanwhile, the changes are committed on top of theirs as
    one commit. Runs again without harm. Returns `snapshot_id`, `parent_id`, `branch`,
    `source_snapshot_id` and `how`: `fast_forward`, `rebase` or `already_there`.

    :param repository: path below the root of the connection. (templated)
    :param source: the branch that was written and audited. (templated)
    :param target: the branch that readers use. (templated)
    :param snapshot_id: the snapshot that was audited; later ones on `source` are not published.
        By default the head of `source`. (templated)
    :param rebase: whether a target that moved meanwhile is acceptable; otherwise that is a
        `ConflictError`, because what readers would get is not exactly what was audited.
    :param on_chunk_conflict: with `rebase`, what to do about a chunk that both sides wrote.
    :param message: message of the commit that a rebase makes. (templated)
    :param metadata: metadata of that commit. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "source", "target", "snapshot_id", "message", "metadata")
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}
    operator_extra_links = (IcechunkSnapshotLink(),)
    ui_color = "#b8dff0"

    def __init__(
        self,
        *,
        source: str,
        target: str = "main",
        snapshot_id: str | None = None,
        rebase: bool = False,
        on_chunk_conflict: OnChunkConflict = "fail",
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.target = target
        self.snapshot_id = snapshot_id
        self.rebase = rebase
        self.on_chunk_conflict = on_chunk_conflict
        self.message = message
        self.metadata = metadata

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, or find that it is published."""
        from airflow_provider_icechunk.hooks.publishing import pinned_snapshot, publish

        solver = solver_for(self.on_chunk_conflict)
        repository = self.open_repository()
        published = publish(
            repository,
            pinned_snapshot(repository, self.source, self.snapshot_id),
            target=self.target,
            message=self.message or f"publish {self.source}",
            metadata={**(self.metadata or {}), "airflow": task_metadata(context)},
            token=task_identity(context),
            solver=solver if self.rebase else None,
        )
        self.log.info(
            "%s is at %s (%s)", published["branch"], published["snapshot_id"], published["how"]
        )
        self.link_to(published["snapshot_id"])
        report_to_outlets(
            context,
            self.outlets,
            {
                "snapshot_id": published["snapshot_id"],
                "parent_id": published["parent_id"],
                "branch": published["branch"],
            },
        )
        return dict(published)
