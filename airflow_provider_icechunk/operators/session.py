"""Open a session that other tasks write into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.operators.identity import attempt_of, task_identity

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkOpenSessionOperator(BaseOperator):
    """Open a session on a branch and describe it for the tasks that write and commit.

    Returns `work_unit`, `place`, `fragments`, `repository` and `conn_id`: plain JSON without
    secrets. Nothing is visible on the branch before IcechunkCommitOperator has run. An attempt that
    is retried opens a new session, and what was written for the old one is never merged.

    :param repository: path below the root of the connection. (templated)
    :param branch: branch to stand on and to commit to. (templated)
    :param arrays: arrays the session has to have: `path`, `shape`, `dtype`, and as needed
        `chunks`, `dimension_names`, `fill_value`, `attributes`, `values`. Missing ones are created,
        shorter ones grow. Longer ones are refused, unless the task was cleared and runs again:
        then others may have made them longer since. (templated)
    :param job: name of the work; by default that of the task instance. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "branch", "arrays", "job")
    template_fields_renderers: ClassVar[dict[str, str]] = {"arrays": "json"}
    ui_color = "#d5ecf7"

    def __init__(
        self,
        *,
        repository: str,
        branch: str = "main",
        arrays: Sequence[Mapping[str, Any]] = (),
        job: str | None = None,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.repository = repository
        self.branch = branch
        self.arrays = arrays
        self.job = job
        self.icechunk_conn_id = icechunk_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Open the session and return its description."""
        from airflow_provider_icechunk.hooks.transactions import open_session

        hook = IcechunkHook(self.icechunk_conn_id)
        session = open_session(
            hook,
            self.repository,
            hook.open(self.repository),
            branch=self.branch,
            job=f"{self.job or task_identity(context)}/{context['ti'].try_number}",
            arrays=self.arrays,
            again=attempt_of(context).is_rerun,
        )
        work = session["work_unit"]
        self.log.info("Session on %s of %s at %s", self.branch, work["repository"], work["base"])
        return session


class IcechunkAbortSessionOperator(BaseOperator):
    """Throw away what the writers of a session left, so that it can never be committed.

    Made to be the teardown of a pipeline that failed: branches are not touched, and a session that
    was committed already loses nothing. Chunks that were written go with the garbage collection.
    Returns `fragments`, how many there were.

    :param session: what IcechunkOpenSessionOperator returned. (templated)
    """

    template_fields = ("session",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"session": "json"}
    ui_color = "#d5ecf7"

    def __init__(self, *, session: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session = session

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete the fragments."""
        del context
        from airflow_provider_icechunk.hooks.transactions import abort_session, work_of
        from airflow_provider_icechunk.spark.specification import parse_session

        session = parse_session(
            self.session if isinstance(self.session, str) else dict(self.session)
        )
        repository = IcechunkHook(session.conn_id).open(session.repository)
        fragments = abort_session(repository, work_of(session))
        self.log.info("Threw away %d fragments", fragments)
        return {"fragments": fragments}
