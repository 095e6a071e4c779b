"""A whole Spark transaction in one task: open, submit, commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.engine.pipelines.reruns import OnRerun
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark import APPLICATION

from .base import OnConflict, OnExistingLabel, target_of
from .spark_transaction import SparkTransactionOperator, SparkWork

if TYPE_CHECKING:
    from airflow_provider_icechunk.dataset import IcechunkDataset


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
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase: bool = True,
        on_conflict: OnConflict = "merge",
        on_chunk_conflict: OnConflict | None = None,
        on_existing_label: OnExistingLabel = "fail",
        on_rerun: OnRerun = "replace",
        partition_by: str | None = None,
        application: str = APPLICATION,
        icechunk_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        target = target_of(dataset, repository, branch, icechunk_conn_id)
        super().__init__(
            repository=target.repository,
            branch=target.branch,
            message=message,
            metadata=metadata,
            rebase=rebase,
            on_conflict=on_conflict,
            on_chunk_conflict=on_chunk_conflict,
            on_rerun=on_rerun,
            application=application,
            icechunk_conn_id=target.icechunk_conn_id,
            **kwargs,
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
        _check_short_form(self.dataset, self.at, self.function, self.variables, self.writes)
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
    """Refuse what can never work, before anything is done."""
    if dataset is None:
        given = {"at": at, "function": function, "variables": variables}
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
    if dataset.growing and at is None:
        raise InvalidInputError(
            f"at= must say where along {', '.join(map(repr, dataset.growing))} a run belongs, such "
            f'as {{"{next(iter(dataset.growing))}": "{{{{ ds }}}}"}}'
        )
    unknown = [name for name in variables or () if name not in dataset.variables]
    if unknown:
        raise InvalidInputError(
            f"variables= names {unknown[0]!r}; the dataset has "
            f"{', '.join(map(repr, dataset.variables))}"
        )
