"""Commit what tasks wrote to a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .base import MergingOperator, OnConflict
from .session import SessionOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCommitOperator(MergingOperator, SessionOperator):
    """Merge the fragments of a session and commit them exactly once, even if the task is retried.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
        from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator

        with DAG("write") as dag:
            opened = IcechunkOpenSessionOperator(task_id="open", repository="weather")
            IcechunkCommitOperator(task_id="commit", session=opened.output, message="new day")

    Returns `snapshot_id`, `parent_id`, `branch`, `chunks` and, if a rerun replaced an earlier
    snapshot, `supersedes`; all but `chunks` are also in the events of the task's outlets.

    :param session: what IcechunkOpenSessionOperator returned. (templated)
    :param message: commit message. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param rebase: whether to rebase onto commits that were made in the meantime.
    :param on_conflict: with `rebase`, how to resolve conflicting changes: `merge` keeps both sides
        where their order does not matter, `ours` and `theirs` choose between chunks that both
        sides wrote, `fail` resolves nothing.
    :param on_chunk_conflict: the earlier name of `on_conflict`.
    :param on_existing_label: what to do about a label that another run appended meanwhile to a
        dimension without steps: `fail` if both wrote different values there, or `replace` them.
    :param fragments: the writers whose fragments to merge, all of which must exist; by default
        every writer that left one. (templated)
    :param on_rerun: what to do if the task committed and was then cleared: `replace` commits again,
        `skip` returns the existing commit, `always` also lets retries commit again.
    :param partition_by: a growing dimension whose labels that were written become partition keys of
        the events of outlets, in Airflow 3.3 and later. Such events start only DAGs that are
        scheduled by partitions.
    """

    template_fields = ("session", "message", "metadata", "fragments")
    template_fields_renderers: ClassVar[dict[str, str]] = {"session": "json", "metadata": "json"}

    def __init__(
        self,
        *,
        message: str,
        on_chunk_conflict: OnConflict | None = None,
        fragments: Sequence[str] | None = None,
        partition_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(message=message, **kwargs)
        self.on_chunk_conflict = on_chunk_conflict
        self.fragments = fragments
        self.partition_by = partition_by

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit, or return the commit of an earlier attempt."""
        from airflow_provider_icechunk.engine.pipelines.transaction import commit_session

        options = self.commit_options(context)
        outcome = commit_session(*self.open_session(), options, writers=self.fragments)
        return self.report(context, outcome)
