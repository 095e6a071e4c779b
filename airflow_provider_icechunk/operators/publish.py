"""Publish a branch: the last step of write, audit, publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.hooks.reruns import METADATA_KEY, OnRerun
from airflow_provider_icechunk.hooks.solvers import OnChunkConflict, solver_for
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink
from airflow_provider_icechunk.operators.base import RepositoryOperator, report_to_outlets
from airflow_provider_icechunk.operators.identity import attempt_of, task_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkPublishOperator(RepositoryOperator):
    """Bring what a staging branch has to another branch, all of it at once.

    The other branch is moved forward if it stood still, so that readers get the very snapshot that
    was audited. If others committed to it meanwhile, the changes are committed on top of theirs as
    one commit. What is published already is not published again, and then there is no event for
    the outlets. Returns `snapshot_id`, `parent_id`, `branch`,
    `source_snapshot_id`, `how`: `fast_forward`, `rebase` or `already_there`, and, if a run again
    committed in the place of an earlier snapshot, `supersedes`.

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
    :param on_rerun: about that commit, for a task that was cleared: `replace` publishes what is new
        on `source`, `skip` nothing, `always` commits the changes once more even if they are there.
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
        on_rerun: OnRerun = "replace",
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
        self.on_rerun = on_rerun

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, or find that it is published."""
        from airflow_provider_icechunk.hooks.publishing import pinned_snapshot, publish

        solver = solver_for(self.on_chunk_conflict)
        attempt = attempt_of(context, self.on_rerun)
        repository = self.open_repository()
        published = publish(
            repository,
            pinned_snapshot(repository, self.source, self.snapshot_id),
            target=self.target,
            message=self.message or f"publish {self.source}",
            metadata={**(self.metadata or {}), METADATA_KEY: task_metadata(context)},
            attempt=attempt,
            solver=solver if self.rebase else None,
        )
        self.log.info(
            "%s is at %s (%s)", published["branch"], published["snapshot_id"], published["how"]
        )
        self.link_to(published["snapshot_id"])
        # A retry may find what the attempt before it published and could not tell of any more.
        is_new = published["how"] != "already_there" or not attempt.is_first
        report_to_outlets(self, context, published, is_new=is_new)
        return dict(published)
