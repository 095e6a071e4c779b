"""What operators share that write on Spark: open a session, submit a job, commit what it wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("airflow.providers"):
        raise
    raise ModuleNotFoundError(
        "operators that submit Spark jobs need Airflow's Spark provider, which is not installed "
        "here: pip install apache-airflow-providers-apache-spark",
        name=error.name,
    ) from None

from airflow_provider_icechunk import exceptions
from airflow_provider_icechunk.compat import AirflowNotFoundException, BaseHook
from airflow_provider_icechunk.engine.pipelines.reruns import OnRerun
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    InvalidInputError,
    SessionError,
    TaskError,
)
from airflow_provider_icechunk.links.snapshot import IcechunkRepositoryLink, IcechunkSnapshotLink
from airflow_provider_icechunk.spark import APPLICATION

from .base import CommittingOperator, OnConflict, RepositoryOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import Repository
    from airflow_provider_icechunk.dataset import IcechunkDataset
    from airflow_provider_icechunk.engine.pipelines.transaction import OpenTransaction

SESSION_KEY = "icechunk_session"
"""Key of the submitted job's session in the task's state store."""
_DRIVER_STATUS_KEY = getattr(SparkSubmitOperator, "_K8S_DRIVER_STATUS_KEY", "k8s_driver_status")


@dataclass(frozen=True, slots=True)
class SparkWork:
    """What a job writes, and what its session needs for that."""

    writes: Sequence[Mapping[str, Any]]
    arguments: Mapping[str, Any] | None = None
    """Of the user's own script."""
    dataset: IcechunkDataset | None = None
    at: Mapping[str, Any] | str | None = None
    arrays: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> dict[str, Any]:
        """What the application gets beside the session."""
        given = {} if self.arguments is None else {"arguments": dict(self.arguments)}
        return {"writes": list(self.writes), **given}


class SparkTransactionOperator(CommittingOperator, RepositoryOperator, SparkSubmitOperator):
    """Open a session, run a Spark job that writes to it, and commit exactly once.

    A subclass says in `_planned` what the job writes.
    """

    template_fields = (
        *SparkSubmitOperator.template_fields,
        "repository",
        "branch",
        "message",
        "metadata",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}
    operator_extra_links = (
        *SparkSubmitOperator.operator_extra_links,
        IcechunkSnapshotLink(),
        IcechunkRepositoryLink(),
    )

    def __init__(
        self,
        *,
        repository: str,
        branch: str = "main",
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase: bool = True,
        on_conflict: OnConflict = "merge",
        on_chunk_conflict: OnConflict | None = None,
        on_rerun: OnRerun = "replace",
        application: str = APPLICATION,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "{{ dag.dag_id }}.{{ task.task_id }}")
        super().__init__(application=application, repository=repository, **kwargs)
        self.branch = branch
        self.message = message
        self.metadata = metadata
        self.rebase = rebase
        self.on_conflict = on_conflict
        self.on_chunk_conflict = on_chunk_conflict
        self.on_rerun = on_rerun
        self._submitted: dict[str, Any] | None = None
        self._knows_old_job = False

    def _planned(self) -> SparkWork:
        """What the job writes; raises if the arguments can never work."""
        raise NotImplementedError

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Write and commit, or return the commit of an earlier attempt."""
        from airflow_provider_icechunk.engine.pipelines.reruns import appends
        from airflow_provider_icechunk.engine.pipelines.transaction import (
            Outcome,
            begin,
            commit_transaction,
        )

        options = self.commit_options(context)
        work = self._planned()
        self._check_spark_connection()
        hook = self.icechunk_hook()
        repository = self.open_repository_for(work.dataset)
        begun = begin(
            repository,
            options.attempt,
            branch=self.branch,
            arrays=work.arrays,
            appends=any(appends(write) for write in work.writes),
            dataset=work.dataset,
            at=work.at,
        )
        if isinstance(begun, Outcome):
            return self.report(context, begun)
        session = hook.describe_session(
            self.repository, begun.work, dataset=work.dataset, placement=begun.placement
        )
        try:
            self._submit(context, options.attempt.token, session, work)
        except Exception as error:
            own = job_error(repository, begun.work.job, error)
            if own is None:
                raise
            raise own from error
        outcome = commit_transaction(repository, self._as_written(context, begun), options)
        return self.report(context, outcome)

    def submit_job(self, context: Context) -> str | None:
        """Store the session of the job, then submit it."""
        self._knows_old_job = False
        store = context.get("task_state_store")
        if store is not None and self._submitted is not None:
            store.set(SESSION_KEY, self._submitted)
        return super().submit_job(context)

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Get the status of the job that an earlier attempt submitted."""
        self._knows_old_job = True
        return super().get_job_status(external_id, context)

    def _submit(
        self, context: Context, token: str, session: dict[str, Any], work: SparkWork
    ) -> None:
        """Submit the job and wait for it, or for the job of an earlier attempt."""
        self._forget_other_runs(context, token)
        self._submitted = {"token": token, "session": session}
        job = json.dumps({"session": session, **work.to_json()})
        self.application_args = [*(self.application_args or []), job]
        super().execute(context)

    def _forget_other_runs(self, context: Context, token: str) -> None:
        """Drop the job of a previous run: clearing a task does not clear its state."""
        store = context.get("task_state_store")
        stored = None if store is None else store.get(SESSION_KEY)
        if store is None or stored is None:
            return
        if not isinstance(stored, dict) or stored.get("token") != token:
            for key in (SESSION_KEY, self.external_id_key, _DRIVER_STATUS_KEY):
                store.delete(key)

    def _fill_in(self, connection: Any) -> None:
        """Settings that nobody should have to know; whoever gives them knows better."""
        quiet = {"spark.log.level": "WARN", "spark.ui.showConsoleProgress": "false"}
        if (connection.host or "").startswith("local"):
            # Each driver would look for a port of its own, and gives up after sixteen.
            quiet["spark.ui.enabled"] = "false"
        self.conf = {**quiet, **(self.conf or {})}
        if not _is_cluster_mode(connection, getattr(self, "_deploy_mode", None)):
            self.env_vars = {"PYSPARK_DRIVER_PYTHON": sys.executable, **(self.env_vars or {})}

    def _as_written(self, context: Context, begun: OpenTransaction) -> OpenTransaction:
        """The session of the finished job: this attempt's, or the one it found running."""
        from airflow_provider_icechunk.engine.pipelines.description import parse_session
        from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit

        if not self._knows_old_job:
            return begun
        store = context.get("task_state_store")
        stored = None if store is None else store.get(SESSION_KEY)
        session = stored.get("session") if isinstance(stored, dict) else None
        if not isinstance(session, dict):
            raise SessionError(
                "the job of an earlier attempt finished, but its session is no longer known; clear "
                "the task's state and run it again"
            )
        return replace(begun, work=WorkUnit.from_json(parse_session(session).work_unit))

    def _check_spark_connection(self) -> None:
        """Refuse a missing connection, because the Spark provider would silently use YARN."""
        try:
            self._fill_in(BaseHook.get_connection(self._conn_id))
        except AirflowNotFoundException:
            raise InvalidInputError(
                f"no Spark connection {self._conn_id!r}: create it, or pass another one as conn_id"
            ) from None


def _is_cluster_mode(connection: Any, chosen: str | None) -> bool:
    """Whether the driver runs somewhere else, where there may be another Python."""
    mode = chosen or connection.extra_dejson.get("deploy-mode")
    return bool(mode == "cluster")


def job_error(repository: Repository, job: str, error: Exception) -> IcechunkError | None:
    """The job's own account of why it failed, and what Spark said after it; `None` without one."""
    from airflow_provider_icechunk.engine.workers.jobs import JobFolder

    folder = JobFolder(repository.storage, job)
    reports = (folder.result(writer) or {} for writer in folder.reporters())
    said = next((text for report in reports if isinstance(text := report.get("error"), str)), None)
    if said is None:
        return None
    name, _, message = said.partition(": ")
    kind = getattr(exceptions, name, None)
    if not (isinstance(kind, type) and issubclass(kind, IcechunkError)):
        kind, message = TaskError, said
    text = f"{message}\nSpark says: {error}"
    try:
        return kind(text)
    except TypeError:
        # Some errors carry more than a message, which has not come along.
        return TaskError(text)
