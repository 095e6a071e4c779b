"""`@task.icechunk_spark`: a function with a `SparkSession` writes a job, which is committed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_icechunk.engine.pipelines.reruns import OnRerun
from airflow_provider_icechunk.operators.base import (
    CommittingOperator,
    OnConflict,
    OnExistingLabel,
    RepositoryOperator,
    target_of,
)

from .icechunk import by_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.dataset import IcechunkDataset
    from airflow_provider_icechunk.engine.pipelines.transaction import Outcome

INJECTED = ("spark", "job")
"""Parameters of a function that the task fills in: the Spark session, and the job to write with."""
WRITER = "icechunk-spark"

_given: ContextVar[dict[str, Any]] = ContextVar("icechunk_spark_job")


class _IcechunkSparkDecoratedOperator(
    CommittingOperator, RepositoryOperator, DecoratedOperator, PythonOperator
):
    """Run a function with Spark and commit what its job wrote, once.

    :param repository: path below the root of the connection; by default that of the dataset.
        (templated)
    :param dataset: the minimum content of the session, as an IcechunkDataset.
    :param at: the run's place in the dataset, such as `{"time": "{{ ds }}"}`. (templated)
    :param arrays: arrays that the session must have, as for IcechunkOpenSessionOperator.
        (templated)
    :param branch: branch to start from and commit to; by default that of the dataset, or `main`.
        (templated)
    :param master: the master of a Spark that the task starts for itself. (templated)
    :param remote: the address of a Spark Connect server, such as `sc://host:15002`, instead.
        (templated)
    :param config: settings of Spark. (templated)
    :param message: commit message; by default Dag, task and run. (templated)
    :param metadata: metadata of the commit; `airflow` is added: who committed. (templated)
    :param rebase: whether to move over commits that others made meanwhile.
    :param on_conflict: with `rebase`, how to resolve conflicting changes: `merge` keeps both sides
        where their order does not matter, `ours` and `theirs` choose between chunks that both
        sides wrote, `fail` resolves nothing.
    :param on_existing_label: what to do about a label that another run appended meanwhile to a
        dimension without steps: `fail` if both wrote different values there, or `replace` them.
    :param on_rerun: what a task does that committed and was cleared: `replace` calls the function
        and commits again, `skip` returns the commit that is there, `always` lets retries commit
        again as well.
    :param partition_by: a growing dimension whose labels that were written become partition keys of
        the events of outlets, in Airflow 3.3 and later. Such events start only DAGs that are
        scheduled by partitions.
    :param icechunk_conn_id: the connection; by default that of the dataset, or `icechunk_default`.
    """

    custom_operator_name = "@task.icechunk_spark"
    template_fields = (
        *DecoratedOperator.template_fields,
        "repository",
        "at",
        "arrays",
        "branch",
        "master",
        "remote",
        "config",
        "message",
        "metadata",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        "at": "json",
        "arrays": "json",
        "config": "json",
        "metadata": "json",
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Any = None,
        op_kwargs: Any = None,
        repository: str | None = None,
        dataset: IcechunkDataset | None = None,
        at: Mapping[str, Any] | str | None = None,
        arrays: Sequence[Mapping[str, Any]] = (),
        branch: str | None = None,
        master: str = "local[*]",
        remote: str | None = None,
        config: Mapping[str, str] | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase: bool = True,
        on_conflict: OnConflict = "merge",
        on_existing_label: OnExistingLabel = "fail",
        on_rerun: OnRerun = "replace",
        partition_by: str | None = None,
        icechunk_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        target = target_of(dataset, repository, branch, icechunk_conn_id)
        self.dataset = dataset
        self.at = at
        self.arrays = arrays
        self.branch = target.branch
        self.master = master
        self.remote = remote
        self.config = config
        self.message = message
        self.metadata = metadata
        self.rebase = rebase
        self.on_conflict = on_conflict
        self.on_existing_label = on_existing_label
        self.on_rerun = on_rerun
        self.partition_by = partition_by
        function = {
            "python_callable": python_callable,
            "op_args": op_args,
            "op_kwargs": op_kwargs,
        }
        super().__init__(
            kwargs_to_upstream=function,
            repository=target.repository,
            icechunk_conn_id=target.icechunk_conn_id,
            **function,
            **kwargs,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Call the function and commit, unless an earlier attempt of this run did."""
        from airflow_provider_icechunk.engine.pipelines.description import parse_session
        from airflow_provider_icechunk.engine.pipelines.transaction import (
            Outcome,
            begin,
            commit_transaction,
        )
        from airflow_provider_icechunk.spark.runtime import start_for_task
        from airflow_provider_icechunk.spark.script import adopted_job

        options = self.commit_options(context)
        repository = self.open_repository_for(self.dataset)
        begun = begin(
            repository,
            options.attempt,
            branch=self.branch,
            arrays=self.arrays,
            dataset=self.dataset,
            at=self.at,
        )
        if isinstance(begun, Outcome):
            return self._returned(context, begun)
        session = self.icechunk_hook().describe_session(
            self.repository, begun.work, dataset=self.dataset, placement=begun.placement
        )
        name = f"{self.dag_id}.{self.task_id}"
        with (
            start_for_task(
                name, master=self.master, remote=self.remote, config=self.config or {}
            ) as spark,
            adopted_job(spark, parse_session(session), WRITER) as job,
        ):
            given = _given.set({"spark": spark, "job": job})
            try:
                result = super().execute(context)
            finally:
                _given.reset(given)
        outcome = commit_transaction(repository, begun, options, returned=result)
        return self._returned(context, outcome)

    def _returned(self, context: Context, outcome: Outcome) -> dict[str, Any]:
        """The task's result: the same keys whether it committed or found its commit."""
        return {"result": None, **self.report(context, outcome)}


def icechunk_spark_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Turn a function that writes to an Icechunk session with Spark into a task.

    The function gets a `SparkSession` as its parameter `spark`, on this machine or, with `remote=`,
    of a Spark Connect server, and as `job` what it writes with: `job.write_regions(array, fn)`,
    `job.write_dataframe(df, ...)`, `job.ingest(files, ...)`. All of it is one commit when the
    function returns; an exception leaves nothing behind. The task returns `snapshot_id`,
    `parent_id`, `branch`, `chunks`, and as `result` what the function returned. A retry of a task
    that committed does not call the function again and returns the same, if the result is small
    JSON.
    """
    if python_callable is None:
        return functools.partial(icechunk_spark_task, multiple_outputs=multiple_outputs, **kwargs)
    decorator: TaskDecorator = task_decorator_factory(
        python_callable=with_job(python_callable),
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_IcechunkSparkDecoratedOperator,
        **kwargs,
    )
    return decorator


def with_job(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without the parameters that the task fills in, as Airflow checks calls."""
    signature = inspect.signature(function)
    wanted = [name for name in INJECTED if name in signature.parameters]
    if "job" not in wanted:
        raise TypeError(
            f"{getattr(function, '__name__', function)} has no parameter `job`, so it could not "
            "write anything: add the parameter"
        )
    kept = [one for name, one in signature.parameters.items() if name not in INJECTED]
    reduced = signature.replace(parameters=kept)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = _given.get()
        bound = reduced.bind(*args, **kwargs)
        return function(**{name: given[name] for name in wanted}, **by_name(bound))

    call.__signature__ = reduced  # type: ignore[attr-defined]
    return call
