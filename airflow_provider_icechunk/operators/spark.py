"""A whole Spark transaction in one task: open a session, submit a job, commit what it wrote."""

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
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    InvalidInputError,
    SessionError,
    TaskError,
)
from airflow_provider_icechunk.links.snapshot import IcechunkRepositoryLink, IcechunkSnapshotLink
from airflow_provider_icechunk.spark import APPLICATION

from .base import (
    CommittingOperator,
    OnConflict,
    OnExistingLabel,
    RepositoryOperator,
    check_place,
    target_of,
)

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
        rebase: bool = True,
        on_conflict: OnConflict = "merge",
        on_chunk_conflict: OnConflict | None = None,
        application: str = APPLICATION,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "{{ dag.dag_id }}.{{ task.task_id }}")
        super().__init__(application=application, repository=repository, **kwargs)
        self.branch = branch
        self.rebase = rebase
        self.on_conflict = on_conflict
        self.on_chunk_conflict = on_chunk_conflict
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
        from airflow_provider_icechunk.spark.specification import check_writes

        options = self.commit_options(context)
        work = self._planned()
        if self.application == APPLICATION:
            check_writes(work.writes)
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


class IcechunkSparkSubmitOperator(SparkTransactionOperator):
    """Open a session, run a Spark job that writes to it, and commit exactly once.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

        with DAG("fill") as dag:
            IcechunkSparkSubmitOperator(
                task_id="fill",
                repository="weather",
                arrays=[{"path": "t2m", "shape": [365, 90, 180], "dtype": "float32"}],
                writes=[{"array": "t2m", "generator": "temperature"}],
                message="a year",
            )

    The user's own function, one day for each run, in any order and at the same time:

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
        from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

        weather = IcechunkDataset(
            "weather",
            dims={"time": Growing(start="2026-01-01", every="1D"), "x": 180},
            variables={"t2m": Variable("float32", ("time", "x"))},
        )
        with DAG("weather") as dag:
            IcechunkSparkSubmitOperator(
                task_id="write",
                dataset=weather,
                at={"time": "{{ ds }}"},
                function="weather_jobs.t2m:field",
                arguments={"model": "ifs"},
                py_files="weather_jobs.zip",
            )

    If Spark's deploy mode lets a job outlive its worker, the next attempt finds the job again and
    commits its session. Otherwise the next attempt opens a new session, and what the lost job still
    writes is never merged. A cleared task submits its job again. Takes all arguments of
    `SparkSubmitOperator`. Returns `snapshot_id`, `parent_id`, `branch`, `chunks` and, if a rerun
    replaced an earlier snapshot, `supersedes`.

    :param repository: path of the repository, relative to the connection's root; the dataset's by
        default. (templated)
    :param dataset: what the session needs at least, as an IcechunkDataset. A missing repository is
        created.
    :param at: where in the dataset the run belongs, such as `{"time": "{{ ds }}"}`; also a list of
        labels, or `{"from": first, "until": end}` without the end. (templated)
    :param function: `package.module:name` of a function that executors call as
        `name(region, **arguments)` for the run's part of the dataset; it returns the values.
        (templated)
    :param arguments: arguments of the function, or of your own script. (templated)
    :param variables: what the function fills, by default all variables of the dataset.
    :param writes: what the application writes. This provider's application takes four kinds of
        objects: without `kind`, `function` and `array` or `variables`, or `generator` and `array`,
        fill arrays or a `region` of them; `kind: files` copies values of files into an `array`;
        `kind: virtual` references chunks of files under the URLs in `authorize`. (templated)
    :param branch: branch to start from and commit to; the dataset's by default, or `main`.
        (templated)
    :param arrays: arrays the session needs, as for IcechunkOpenSessionOperator. (templated)
    :param message: commit message; names DAG, task and run by default. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param rebase: whether to rebase onto commits that were made in the meantime.
    :param on_conflict: with `rebase`, how to resolve conflicting changes: `merge` keeps both sides
        where their order does not matter, `ours` and `theirs` choose between chunks that both
        sides wrote, `fail` resolves nothing.
    :param on_chunk_conflict: the earlier name of `on_conflict`.
    :param on_existing_label: what to do about a label that another run appended meanwhile to a
        dimension without steps: `fail` if both wrote different values there, or `replace` them.
    :param on_rerun: what to do if the task committed and was then cleared: `replace` writes and
        commits again, `skip` returns the existing commit, `always` also lets retries commit again.
        Files to append, which have no `start`, are refused rather than appended twice.
    :param partition_by: a growing dimension whose labels that were written become partition keys of
        the events of outlets, in Airflow 3.3 and later. Such events start only DAGs that are
        scheduled by partitions.
    :param application: the application, by default this provider's. It gets the session and
        `writes` as one JSON argument after `application_args`. (templated)
    :param icechunk_conn_id: the Icechunk connection; the dataset's by default.
    """

    template_fields = (
        *SparkTransactionOperator.template_fields,
        "at",
        "function",
        "arguments",
        "writes",
        "arrays",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **SparkTransactionOperator.template_fields_renderers,
        "at": "json",
        "arguments": "json",
        "writes": "json",
        "arrays": "json",
    }

    def __init__(
        self,
        *,
        repository: str | None = None,
        dataset: IcechunkDataset | None = None,
        at: Mapping[str, Any] | str | None = None,
        function: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        variables: Sequence[str] | None = None,
        writes: Sequence[Mapping[str, Any]] = (),
        branch: str | None = None,
        arrays: Sequence[Mapping[str, Any]] = (),
        on_existing_label: OnExistingLabel = "fail",
        partition_by: str | None = None,
        icechunk_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        target = target_of(dataset, repository, branch, icechunk_conn_id)
        _check_short_form(dataset, at, function, variables, writes)
        super().__init__(
            repository=target.repository,
            branch=target.branch,
            icechunk_conn_id=target.icechunk_conn_id,
            **kwargs,
        )
        if self.application == APPLICATION and function is None and not writes:
            raise InvalidInputError(
                "nothing to write: give function= with a dataset, writes=, or an application of "
                "your own"
            )
        self.dataset = dataset
        self.at = at
        self.function = function
        self.arguments = arguments
        self.variables = variables
        self.writes = writes
        self.arrays = arrays
        self.on_existing_label = on_existing_label
        self.partition_by = partition_by

    def _planned(self) -> SparkWork:
        if self.function is None:
            return SparkWork(self.writes, self.arguments, self.dataset, self.at, self.arrays)
        assert self.dataset is not None
        names = self.dataset.variables if self.variables is None else self.variables
        write = {
            "variables": [self.dataset.path(name) for name in names],
            "function": self.function,
            "arguments": dict(self.arguments or {}),
        }
        return SparkWork([write], None, self.dataset, self.at, self.arrays)


def _check_short_form(
    dataset: IcechunkDataset | None,
    at: Mapping[str, Any] | str | None,
    function: str | None,
    variables: Sequence[str] | None,
    writes: Sequence[Mapping[str, Any]],
) -> None:
    """Refuse what can never work, where the DAG is parsed."""
    check_place(dataset, at)
    if dataset is None:
        given = {"function": function, "variables": variables}
        wrong = [name for name, value in given.items() if value is not None]
        if wrong:
            raise InvalidInputError(
                f"{wrong[0]}= needs a dataset: pass dataset= as well, or name functions and "
                "regions in writes="
            )
        return
    if function is not None and writes:
        raise InvalidInputError(
            "pass either function= or writes=, whose entries may each name a function"
        )
    if isinstance(function, str) and "{" not in function and function.count(":") != 1:
        raise InvalidInputError(
            f"function={function!r} must be 'package.module:name', with one colon"
        )
    unknown = [name for name in variables or () if name not in dataset.variables]
    if unknown:
        raise InvalidInputError(
            f"variables= names {unknown[0]!r}; the dataset has "
            f"{', '.join(map(repr, dataset.variables))}"
        )


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
