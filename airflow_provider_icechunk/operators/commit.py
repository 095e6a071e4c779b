"""Commit what the writers of a session left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.reruns import METADATA_KEY, OnRerun, find_earlier
from airflow_provider_icechunk.hooks.solvers import OnChunkConflict, solver_for
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink, link_snapshot
from airflow_provider_icechunk.operators.base import report_to_outlets
from airflow_provider_icechunk.operators.identity import attempt_of, task_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCommitOperator(BaseOperator):
    """Merge the fragments of a session and commit them once, however often the task is retried.

    Returns `snapshot_id`, `parent_id`, `branch`, `chunks` and, if a run again committed in the
    place of an earlier snapshot, `supersedes`; all but the chunks are also in the events of assets
    that the task declares as outlets.

    :param session: what IcechunkOpenSessionOperator returned. (templated)
    :param message: commit message. (templated)
    :param metadata: metadata of the commit; `airflow` is added: who committed. (templated)
    :param rebase: whether to move over commits that others made meanwhile.
    :param on_chunk_conflict: with `rebase`, what to do about a chunk that both sides wrote.
    :param fragments: writers whose fragments must be there and are merged, and no others; by
        default all that left one. (templated)
    :param on_rerun: what a task does that committed and was cleared: `replace` commits anew,
        `skip` returns the commit that is there, `always` lets retries commit anew as well.
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
        on_rerun: OnRerun = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.message = message
        self.metadata = metadata
        self.rebase = rebase
        self.on_chunk_conflict = on_chunk_conflict
        self.fragments = fragments
        self.on_rerun = on_rerun

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit, or find the commit that an earlier attempt made."""
        from airflow_provider_icechunk.hooks.transactions import (
            base_of,
            commit_session,
            replayed,
            work_of,
        )
        from airflow_provider_icechunk.spark.specification import parse_session

        session = parse_session(
            self.session if isinstance(self.session, str) else dict(self.session)
        )
        work, attempt = work_of(session), attempt_of(context, self.on_rerun)
        solver = solver_for(self.on_chunk_conflict) if self.rebase else None
        repository = IcechunkHook(session.conn_id).open(session.repository)
        earlier = find_earlier(repository, work.branch, attempt, base=base_of(work))
        if earlier is not None and earlier.answers:
            committed = replayed(repository, earlier, work.branch)
        else:
            committed = commit_session(
                repository,
                work,
                message=self.message,
                metadata={**(self.metadata or {}), METADATA_KEY: task_metadata(context)},
                attempt=attempt,
                earlier=earlier,
                solver=solver,
                writers=self.fragments,
            )
        link_snapshot(
            self,
            conn_id=session.conn_id,
            repository=session.repository,
            snapshot_id=committed["snapshot_id"],
        )
        is_new = earlier is None or not earlier.is_known
        report_to_outlets(self, context, committed, is_new=is_new)
        return dict(committed)
