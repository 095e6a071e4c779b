"""`@task.icechunk_spark`: a function with a `SparkSession` writes a job, which is committed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import TaskDecorator, task_decorator_factory

from .function import FunctionOperator, without

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.engine.pipelines.transaction import Outcome

INJECTED = ("spark", "job")
"""Parameters of a function that the task fills in: the Spark session, and the job to write with."""
WRITER = "icechunk-spark"


class _IcechunkSparkDecoratedOperator(FunctionOperator):
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
    template_fields = (*FunctionOperator.template_fields, "arrays", "master", "remote", "config")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **FunctionOperator.template_fields_renderers,
        "arrays": "json",
        "config": "json",
    }

    def __init__(
        self,
        *,
        arrays: Sequence[Mapping[str, Any]] = (),
        master: str = "local[*]",
        remote: str | None = None,
        config: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.arrays = arrays
        self.master = master
        self.remote = remote
        self.config = config
        super().__init__(**kwargs)

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
            result = self.call(context, {"spark": lambda: spark, "job": lambda: job})
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
    return without(function, INJECTED, wanted)
