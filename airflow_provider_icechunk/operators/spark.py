"""One task for a whole transaction with Spark: open, submit, commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_icechunk.exceptions import InvalidInputError, SessionError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.solvers import OnChunkConflict, solver_for
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink, link_snapshot
from airflow_provider_icechunk.operators.base import report_to_outlets
from airflow_provider_icechunk.operators.identity import (
    earliest_start,
    task_identity,
    task_metadata,
)
from airflow_provider_icechunk.spark import APPLICATION

if TYPE_CHECKING:
    from airflow.sdk import Context

SESSION_KEY = "icechunk_session"
"""Where the task's state store keeps the session that the submitted job writes into."""


class IcechunkSparkSubmitOperator(SparkSubmitOperator):
    """Open a session, let a Spark job write into it, and commit what it wrote, once.

    A job that outlives its worker, where Spark's deploy mode allows it, is found again by the next
    attempt and its session is committed. Otherwise the next attempt begins with a new session, and
    what the lost job still writes is never merged. Takes all arguments of `SparkSubmitOperator`.
    Returns `snapshot_id`, `parent_id`, `branch` and `chunks`.

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
        self.icechunk_conn_id = icechunk_conn_id
        self._session: dict[str, Any] | None = None
        self._knows_old_job = False

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Write and commit, or find the commit that an earlier attempt made."""
        from airflow_provider_icechunk.hooks.transactions import find_commit

        solver_for(self.on_chunk_conflict)
        self._check_spark_connection()
        repository = IcechunkHook(self.icechunk_conn_id).open(self.repository)
        earlier = find_commit(
            repository, self.branch, task_identity(context), since=earliest_start(context)
        )
        if earlier is not None:
            self.log.info("An earlier attempt committed %s already", earlier.id)
            snapshot = {"snapshot_id": earlier.id, "parent_id": earlier.parent_id}
            return self._report(context, {**snapshot, "branch": self.branch, "chunks": None})
        self._session = self._open_session(context)
        job = json.dumps({"session": self._session, "writes": list(self.writes)})
        self.application_args = [*(self.application_args or []), job]
        super().execute(context)
        return self._report(context, self._commit(context))

    def submit_job(self, context: Context) -> str | None:
        """Remember the session of the job, then submit it."""
        self._knows_old_job = False
        store = context.get("task_state_store")
        if store is not None:
            store.set(SESSION_KEY, self._session)
        return super().submit_job(context)

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Ask for the job that an earlier attempt submitted."""
        self._knows_old_job = True
        return super().get_job_status(external_id, context)

    def _open_session(self, context: Context) -> dict[str, Any]:
        from airflow_provider_icechunk.hooks.transactions import open_session

        return open_session(
            IcechunkHook(self.icechunk_conn_id),
            self.repository,
            branch=self.branch,
            job=f"{task_identity(context)}/{context['ti'].try_number}",
            arrays=self.arrays,
        )

    def _commit(self, context: Context) -> dict[str, Any]:
        from airflow_provider_icechunk.hooks.transactions import commit_session
        from airflow_provider_icechunk.spark.specification import parse_session

        ti = context["ti"]
        solver = solver_for(self.on_chunk_conflict) if self.rebase else None
        committed = commit_session(
            parse_session(self._written_session(context)),
            message=self.message or f"{ti.dag_id}.{ti.task_id} in {ti.run_id}",
            metadata={**(self.metadata or {}), "airflow": task_metadata(context)},
            token=task_identity(context),
            solver=solver,
        )
        return dict(committed)

    def _written_session(self, context: Context) -> dict[str, Any]:
        """The session of the job that ended: of this attempt's, or of the one it found running."""
        assert self._session is not None
        if not self._knows_old_job:
            return self._session
        store = context.get("task_state_store")
        stored = None if store is None else store.get(SESSION_KEY)
        if not isinstance(stored, dict):
            raise SessionError(
                "the job of an earlier attempt has ended, but which session it wrote into is not "
                "known any more; clear the task's state and run it again"
            )
        return stored

    def _report(self, context: Context, result: dict[str, Any]) -> dict[str, Any]:
        snapshot = {name: result[name] for name in ("snapshot_id", "parent_id", "branch")}
        link_snapshot(
            self,
            conn_id=self.icechunk_conn_id,
            repository=self.repository,
            snapshot_id=result["snapshot_id"],
        )
        report_to_outlets(context, self.outlets, snapshot)
        self.log.info("%s is at %s", result["branch"], result["snapshot_id"])
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
