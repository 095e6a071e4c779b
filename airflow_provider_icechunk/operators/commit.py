"""Commit what the writers of a session left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_icechunk.hooks.solvers import OnChunkConflict, solver_for
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink, link_snapshot
from airflow_provider_icechunk.operators.base import report_to_outlets
from airflow_provider_icechunk.operators.identity import (
    earliest_start,
    task_identity,
    task_metadata,
)

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCommitOperator(BaseOperator):
    """Merge the fragments of a session and commit them once, however often the task is retried.

    Returns `snapshot_id`, `parent_id`, `branch` and `chunks`; the first three are also in the
    events of assets that the task declares as outlets.

    :param session: what IcechunkOpenSessionOperator returned. (templated)
    :param message: commit message. (templated)
    :param metadata: metadata of the commit; `airflow` is added: who committed. (templated)
    :param rebase: whether to move over commits that others made meanwhile.
    :param on_chunk_conflict: with `rebase`, what to do about a chunk that both sides wrote.
    :param fragments: writers whose fragments must be there and are merged, and no others; by
        default all that left one. (templated)
    """

    template_fields = ("session", "message", "metadata", "fragments")
    template_fields_renderers: ClassVar[dict[str, str]] = {"session": "json", "metadata": "json"}
    operator_extra_links = (IcechunkSnapshotLink(),)
    ui_color = "#b8dff0"

    def __init__(
        self,
        *,
        session: Mapping[str, Any] | str,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase: bool = True,
        on_chunk_conflict: OnChunkConflict = "fail",
        fragments: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.message = message
        self.metadata = metadata
        self.rebase = rebase
        self.on_chunk_conflict = on_chunk_conflict
        self.fragments = fragments

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit, or find the commit that an earlier attempt made."""
        from airflow_provider_icechunk.hooks.transactions import commit_session
        from airflow_provider_icechunk.spark.specification import parse_session

        session = parse_session(
            self.session if isinstance(self.session, str) else dict(self.session)
        )
        committed = commit_session(
            session,
            message=self.message,
            metadata={**(self.metadata or {}), "airflow": task_metadata(context)},
            token=task_identity(context),
            solver=solver_for(self.on_chunk_conflict) if self.rebase else None,
            writers=self.fragments,
            since=earliest_start(context),
        )
        self.log.info(
            "Committed %s to %s: %d chunks",
            committed["snapshot_id"],
            committed["branch"],
            committed["chunks"],
        )
        link_snapshot(
            self,
            conn_id=session.conn_id,
            repository=session.repository,
            snapshot_id=committed["snapshot_id"],
        )
        report_to_outlets(
            context,
            self.outlets,
            {
                "snapshot_id": committed["snapshot_id"],
                "parent_id": committed["parent_id"],
                "branch": committed["branch"],
            },
        )
        return dict(committed)
