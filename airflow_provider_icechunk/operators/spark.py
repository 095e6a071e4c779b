"""One task for a whole transaction with Spark: open, submit, commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_icechunk.exceptions import InvalidInputError, SessionError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.reruns import (
    METADATA_KEY,
    Attempt,
    Earlier,
    OnRerun,
    find_earlier,
)
from airflow_provider_icechunk.hooks.solvers import OnChunkConflict, solver_for
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink, link_snapshot
from airflow_provider_icechunk.operators.base import report_to_outlets
from airflow_provider_icechunk.operators.identity import attempt_of, task_metadata
from airflow_provider_icechunk.spark import APPLICATION

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import Repository

SESSION_KEY = "icechunk_session"
"""Where the task's state store keeps the session that the submitted job writes into."""
_DRIVER_STATUS_KEY = getattr(SparkSubmitOperator, "_K8S_DRIVER_STATUS_KEY", "k8s_driver_status")


@dataclass(frozen=True, slots=True)
class _Transaction:
    """What an attempt has opened."""

    repository: Repository
    attempt: Attempt
    earlier: Earlier | None
    """The commit of an earlier run of the task, whose place the one of this run takes."""
    session: dict[str, Any]


class IcechunkSparkSubmitOperator(SparkSubmitOperator):
    """Open a session, let a Spark job write into it, and commit what it wrote, once.

    A job that outlives its worker, where Spark's deploy mode allows it, is found again by the next
    attempt and its session is committed. Otherwise the next attempt begins with a new session, and
    what the lost job still writes is never merged. A task that was cleared submits its job anew.
    Takes all arguments of `SparkSubmitOperator`. Returns `snapshot_id`, `parent_id`, `branch`,
    `chunks` and, if a run again committed in the place of an earlier snapshot, `supersedes`.

    :param repository: path below the root of the connection. (templated)
    :param writes: what the application has to write. That of this provider takes a list of objects
        of three kinds: without `kind`, `array` and `generator`, which fills an array, or a `region`
        of it; `kind: files`, whose values are copied into an `array`; and `kind: virtual`, files
        whose chunks are referred to, below the URLs in `authorize`. (templated)
    :param branch: branch to stand on and to commit to. (templated)
    :param arrays: arrays the session has to have, as for IcechunkOpenSessionOperator. (templated)
    :param message: commit message; by default Dag, task and run. (templated)
    :param metadata: metadata of the commit; `airflow` is added: who committed. (templated)
    :param rebase: whether to move over commits that others made meanwhile.
    :param on_chunk_conflict: with `rebase`, what to do about a chunk that both sides wrote.
    :param on_rerun: what a task does that committed and was cleared: `replace` writes and commits
        anew, `skip` returns the commit that is there, `always` lets retries commit anew as well.
        Files that are appended, without `start`, are refused instead of being appended twice.
    :param application: the application; by default that of this provider. It gets the session and
        `writes` as a JSON text, after its own `application_args`. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = (
        *SparkSubmitOperator.template_fields,
        "repository",
        "writes",
        "branch",
        "arrays",
        "message",
        "metadata",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "writes": "json",
        "arrays": "json",
        "metadata": "json",
    }
    operator_extra_links = (*SparkSubmitOperator.operator_extra_links, IcechunkSnapshotLink())
    ui_color = "#b8dff0"

    def __init__(
        self,
        *,
        repository: str,
        writes: Sequence[Mapping[str, Any]] = (),
        branch: str = "main",
        arrays: Sequence[Mapping[str, Any]] = (),
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase: bool = True,
        on_chunk_conflict: OnChunkConflict = "fail",
        on_rerun: OnRerun = "replace",
        application: str = APPLICATION,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(application=application, **kwargs)
        self.repository = repository
        self.writes = writes
        self.branch = branch
        self.arrays = arrays
        self.message = message
        self.metadata = metadata
        self.rebase = rebase
        self.on_chunk_conflict = on_chunk_conflict
        self.on_rerun = on_rerun
        self.icechunk_conn_id = icechunk_conn_id
        self._transaction: _Transaction | None = None
        self._knows_old_job = False

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Write and commit, or find the commit that an earlier attempt made."""
        from airflow_provider_icechunk.hooks.transactions import open_session, replayed

        solver_for(self.on_chunk_conflict)
        attempt = attempt_of(context, self.on_rerun)
        self._check_spark_connection()
        hook = IcechunkHook(self.icechunk_conn_id)
        repository = hook.open(self.repository)
        earlier = find_earlier(repository, self.branch, attempt)
        if earlier is not None and earlier.answers:
            return self._report(context, earlier, dict(replayed(repository, earlier, self.branch)))
        self._refuse_second_append(earlier)
        self._forget_other_runs(context, attempt)
        session = open_session(
            hook,
            self.repository,
            repository,
            branch=self.branch,
            job=f"{attempt.identity}/{attempt.number}",
            arrays=self.arrays,
            again=attempt.is_rerun,
        )
        self._transaction = _Transaction(repository, attempt, earlier, session)
        job = json.dumps({"session": session, "writes": list(self.writes)})
        self.application_args = [*(self.application_args or []), job]
        super().execute(context)
        return self._report(context, earlier, self._commit(context))

    def submit_job(self, context: Context) -> str | None:
        """Remember the session of the job, then submit it."""
        self._knows_old_job = False
        store, made = context.get("task_state_store"), self._transaction
        if store is not None and made is not None:
            store.set(SESSION_KEY, {"token": made.attempt.token, "session": made.session})
        return super().submit_job(context)

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Ask for the job that an earlier attempt submitted."""
        self._knows_old_job = True
        return super().get_job_status(external_id, context)

    def _refuse_second_append(self, earlier: Earlier | None) -> None:
        from airflow_provider_icechunk.hooks.transactions import append_refusal
        from airflow_provider_icechunk.spark.specification import appends

        if earlier is not None and any(appends(write) for write in self.writes):
            raise append_refusal(earlier)

    def _forget_other_runs(self, context: Context, attempt: Attempt) -> None:
        """Forget the job of a run before the task was cleared, which would count as this one's.

        Airflow keeps the state of a task when it is cleared.
        """
        store = context.get("task_state_store")
        stored = None if store is None else store.get(SESSION_KEY)
        if store is None or stored is None:
            return
        if not isinstance(stored, dict) or stored.get("token") != attempt.token:
            for key in (SESSION_KEY, self.external_id_key, _DRIVER_STATUS_KEY):
                store.delete(key)

    def _commit(self, context: Context) -> dict[str, Any]:
        from airflow_provider_icechunk.hooks.transactions import commit_session, work_of
        from airflow_provider_icechunk.spark.specification import parse_session

        assert self._transaction is not None
        ti = context["ti"]
        committed = commit_session(
            self._transaction.repository,
            work_of(parse_session(self._written_session(context))),
            message=self.message or f"{ti.dag_id}.{ti.task_id} in {ti.run_id}",
            metadata={**(self.metadata or {}), METADATA_KEY: task_metadata(context)},
            attempt=self._transaction.attempt,
            earlier=self._transaction.earlier,
            solver=solver_for(self.on_chunk_conflict) if self.rebase else None,
        )
        return dict(committed)

    def _written_session(self, context: Context) -> dict[str, Any]:
        """The session of the job that ended: of this attempt's, or of the one it found running."""
        assert self._transaction is not None
        if not self._knows_old_job:
            return self._transaction.session
        store = context.get("task_state_store")
        stored = None if store is None else store.get(SESSION_KEY)
        session = stored.get("session") if isinstance(stored, dict) else None
        if not isinstance(session, dict):
            raise SessionError(
                "the job of an earlier attempt has ended, but which session it wrote into is not "
                "known any more; clear the task's state and run it again"
            )
        return session

    def _report(
        self, context: Context, earlier: Earlier | None, result: dict[str, Any]
    ) -> dict[str, Any]:
        link_snapshot(
            self,
            conn_id=self.icechunk_conn_id,
            repository=self.repository,
            snapshot_id=result["snapshot_id"],
        )
        is_new = earlier is None or not earlier.is_known
        report_to_outlets(self, context, result, is_new=is_new)
        return result

    def _check_spark_connection(self) -> None:
        """Refuse a missing connection, for which the Spark provider would silently take YARN."""
        try:
            BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            raise InvalidInputError(
                f"there is no Spark connection {self._conn_id!r}: create it, or name another with "
                "conn_id"
            ) from None
