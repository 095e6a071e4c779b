"""What operators share: the repository, the connection and the identity of the task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

from airflow.sdk import Asset, AssetAlias, BaseOperator

from airflow_provider_icechunk.engine.datasets.growing import no_label
from airflow_provider_icechunk.engine.pipelines.reruns import (
    METADATA_KEY,
    Attempt,
    OnRerun,
)
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.links.snapshot import (
    IcechunkRepositoryLink,
    IcechunkSnapshotLink,
    link_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperatorLink, Context
    from jinja2 import Environment

    from airflow_provider_icechunk.api import Repository
    from airflow_provider_icechunk.dataset import IcechunkDataset
    from airflow_provider_icechunk.engine.pipelines.transaction import CommitOptions, Outcome


OnConflict = Literal["merge", "fail", "ours", "theirs"]
"""How to handle changes by both sides: merge them if possible, refuse, or choose one side."""
OnExistingLabel = Literal["fail", "replace"]
"""How to handle a label that another run appended in the meantime."""
_Value = TypeVar("_Value")


class _Choice(Generic[_Value]):
    """An argument with few possible values, which are checked when the DAG is parsed."""

    def __init__(self, default: _Value, choices: Iterable[_Value]) -> None:
        self.default = default
        self.choices = tuple(choices)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, operator: object | None, owner: type | None = None) -> _Value:
        return self.default if operator is None else vars(operator).get(self.name, self.default)

    def __set__(self, operator: object, value: _Value) -> None:
        check_choice(self.name, value, self.choices)
        vars(operator)[self.name] = value


_DATE_NAMES = re.compile(r"'(ds|ts|logical_date|data_interval|prev_)\w*' is undefined")
_REPORTED = ("snapshot_id", "parent_id", "branch", "supersedes", "labels")


class IcechunkOperator(BaseOperator):
    """Open a repository and report the changes.

    `execute` of a subclass calls one function of the engine, which makes every decision that
    depends on the state of the repository.
    """

    ui_color = "#d5ecf7"
    repository: str
    """Path of the repository, relative to the connection's root."""
    icechunk_conn_id: str
    # Shadows `BaseOperator.dry_run`, which Airflow 3 never calls.
    dry_run: bool | str  # type: ignore[assignment]
    _snapshot_id: str | None = None
    """The snapshot that the task made, if any."""

    def icechunk_hook(self) -> IcechunkHook:
        """The hook of the connection."""
        return IcechunkHook(self.icechunk_conn_id)

    def open_repository(self) -> Repository:
        """Open the repository; raises `NotFoundError` if there is none. Call it once."""
        return self.icechunk_hook().open(self.repository)

    def open_repository_for(self, dataset: IcechunkDataset | None) -> Repository:
        """The repository; if a dataset is declared, it is created if missing."""
        if dataset is None:
            return self.open_repository()
        repository, is_new = self.icechunk_hook().create_or_find(self.repository)
        if is_new:
            self.log.info("Created the repository %s", self.repository)
        return repository

    def render_template_fields(
        self, context: Context, jinja_env: Environment | None = None
    ) -> None:
        """Render templates; explains how to pass `at` in a run without a logical date."""
        from jinja2.exceptions import UndefinedError

        try:
            super().render_template_fields(context, jinja_env)
        except UndefinedError as error:
            # Airflow omits the names, and with its strict templates they are not even empty.
            if getattr(self, "at", None) and _DATE_NAMES.search(str(error)):
                raise no_label("at") from error
            raise

    def link_to(self, snapshot_id: str) -> None:
        """Point the task's link to a snapshot of the repository."""
        link_snapshot(
            self,
            conn_id=self.icechunk_conn_id,
            repository=self.repository,
            snapshot_id=snapshot_id,
        )

    def report(self, context: Context, outcome: Outcome) -> dict[str, Any]:
        """Log the outcome, link to it and emit asset events; returns the task's result.

        The `extra` of an asset event holds `snapshot_id`, `parent_id`, `branch` and, if there are
        any, `supersedes`, the written `labels` of a dataset and the `partition_key` of the run.
        With `partition_by` the labels of that dimension are the event's partition keys. An outcome
        that is not new emits no event.
        """
        result = outcome.result
        self.log.info("Result: %s", {name: result[name] for name in _REPORTED if name in result})
        if result["snapshot_id"] is not None:
            self.link_to(result["snapshot_id"])
        if outcome.is_new:
            self._snapshot_id = result["snapshot_id"]
            reported = {name: result[name] for name in _REPORTED if name in result}
            key = context.get("partition_key")
            if key:
                reported["partition_key"] = key
            for outlet in self.outlets:
                if isinstance(outlet, Asset):
                    event = context["outlet_events"][outlet]
                    event.extra.update(reported)
                    self._add_partitions(event, result)
        else:
            # Airflow emits an event for each outlet a task has when it ends, but for an alias only
            # if the task added one.
            self.outlets = [outlet for outlet in self.outlets if isinstance(outlet, AssetAlias)]
        return result

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage:
        """What the task wrote; OpenLineage's provider calls this in the task's process."""
        del task_instance
        from airflow_provider_icechunk.assets.lineage import lineage_of

        return lineage_of(self.icechunk_hook(), self.repository, self._snapshot_id)

    def _add_partitions(self, event: Any, result: Mapping[str, Any]) -> None:
        """Make the written labels partition keys of an event, if requested."""
        dim = getattr(self, "partition_by", None)
        labels = result.get("labels", {}).get(dim, ()) if dim else ()
        if not labels:
            return
        add = getattr(event, "add_partitions", None)
        if add is None:
            raise InvalidInputError(
                "partition_by needs an Airflow whose events have partition keys, 3.3 or later: "
                "leave it out, and use the labels in the event's extra"
            )
        add(list(labels))


class CommittingOperator(IcechunkOperator):
    """An operator that commits as its arguments specify."""

    operator_extra_links: tuple[BaseOperatorLink, ...] = (
        IcechunkSnapshotLink(),
        IcechunkRepositoryLink(),
    )
    ui_color = "#b8dff0"
    on_rerun = _Choice[OnRerun]("replace", get_args(OnRerun))
    rebase: bool = False
    on_conflict = _Choice[OnConflict]("merge", get_args(OnConflict))
    on_chunk_conflict = _Choice[OnConflict | None](None, (*get_args(OnConflict), None))
    """The earlier name of `on_conflict`; takes precedence if given."""
    on_existing_label = _Choice[OnExistingLabel]("fail", get_args(OnExistingLabel))
    partition_by: str | None = None
    """A growing dimension whose written labels become partition keys of events."""

    def __init__(
        self,
        *,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_rerun: OnRerun = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.message = message
        self.metadata = metadata
        self.on_rerun = on_rerun

    def commit_options(self, context: Context, message: str | None = None) -> CommitOptions:
        """How the current attempt commits; without a message it names the DAG, task and run."""
        from airflow_provider_icechunk.engine.commit.merge import solver_for
        from airflow_provider_icechunk.engine.pipelines.transaction import CommitOptions

        ti = context["ti"]
        solver = solver_for(self.on_chunk_conflict or self.on_conflict, self.on_existing_label)
        return CommitOptions(
            attempt_of(context, self.on_rerun),
            self.message or message or f"{ti.dag_id}.{ti.task_id} in {ti.run_id}",
            {**(self.metadata or {}), METADATA_KEY: task_metadata(context)},
            solver if self.rebase else None,
        )


class MergingOperator(CommittingOperator):
    """A committing operator that merges its changes with what others committed meanwhile.

    :param rebase: whether to rebase onto commits that were made in the meantime.
    :param on_conflict: with `rebase`, how to resolve conflicting changes.
    :param on_existing_label: what to do about a label that another run appended meanwhile.
    """

    def __init__(
        self,
        *,
        rebase: bool = True,
        on_conflict: OnConflict = "merge",
        on_existing_label: OnExistingLabel = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rebase = rebase
        self.on_conflict = on_conflict
        self.on_existing_label = on_existing_label


class RepositoryOperator(IcechunkOperator):
    """An operator whose arguments name its repository.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    """

    def __init__(
        self,
        *,
        repository: str,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.repository = repository
        self.icechunk_conn_id = icechunk_conn_id


@dataclass(frozen=True, slots=True)
class Target:
    """Where an operator works."""

    repository: str
    branch: str
    icechunk_conn_id: str


def target_of(
    dataset: IcechunkDataset | None,
    repository: str | None,
    branch: str | None,
    icechunk_conn_id: str | None,
) -> Target:
    """The given values; the dataset's, or the defaults, for the others."""
    if dataset is None and repository is None:
        raise InvalidInputError("an operator needs a `repository`, or a `dataset` that names one")
    return Target(
        repository if repository is not None else cast("IcechunkDataset", dataset).repository,
        branch or ("main" if dataset is None else dataset.branch),
        icechunk_conn_id
        or (IcechunkHook.default_conn_name if dataset is None else dataset.icechunk_conn_id),
    )


class DatasetOperator(RepositoryOperator):
    """An operator whose repository, branch and connection are by default those of a dataset."""

    def __init__(
        self,
        *,
        dataset: IcechunkDataset | None = None,
        repository: str | None = None,
        branch: str | None = None,
        icechunk_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        target = target_of(dataset, repository, branch, icechunk_conn_id)
        super().__init__(
            repository=target.repository, icechunk_conn_id=target.icechunk_conn_id, **kwargs
        )
        self.dataset = dataset
        self.branch = target.branch


def check_place(dataset: IcechunkDataset | None, at: object) -> None:
    """Refuse an `at` that cannot be a place in the dataset, whatever templates will fill in."""
    if dataset is None:
        if at is not None:
            raise InvalidInputError("at= is a place in a dataset: give dataset= as well")
        return
    growing = dataset.growing
    given = list(at) if isinstance(at, dict) else [] if at is None else list(growing)
    unknown = [name for name in given if name not in growing]
    if unknown:
        raise InvalidInputError(
            f"at= names {unknown[0]!r}; the growing dimensions of {dataset.repository!r} are "
            f"{', '.join(map(repr, growing)) or 'none'}"
        )
    missing = [name for name in growing if name not in given]
    if missing:
        raise InvalidInputError(
            f"at= must say where along {', '.join(map(repr, missing))} a run belongs, such as "
            f'{{"{missing[0]}": "{{{{ ds }}}}"}}'
        )


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices if choice is not None)
        raise InvalidInputError(f"{name} must be one of {known}, not {value!r}")


_CLOCKS_DIFFER = timedelta(hours=1)


def task_identity(context: Context) -> str:
    """DAG, run, task and map index: the same for every attempt of a task instance."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{index}"


def attempt_of(context: Context, on_rerun: OnRerun = "replace") -> Attempt:
    """The attempt that runs in this context."""
    check_choice("on_rerun", on_rerun, get_args(OnRerun))
    ti = context["ti"]
    retries = getattr(getattr(ti, "task", None), "retries", None) or 0
    most = getattr(ti, "max_tries", None) or 0
    return Attempt(
        task_identity(context),
        run=most,
        number=ti.try_number,
        is_rerun=most > retries,
        is_first=ti.try_number <= most - retries + 1,
        since=_earliest_start(context),
        on_rerun=on_rerun,
    )


def task_metadata(context: Context) -> dict[str, Any]:
    """The committing task, for a snapshot's metadata; `logical_date` only if the run has one."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    date = context.get("logical_date")
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": index,
        "try_number": ti.try_number,
        **({} if date is None else {"logical_date": date.isoformat()}),
    }


def _earliest_start(context: Context) -> datetime | None:
    """The time before which the task cannot have committed, if known.

    For a first attempt that is its own start. Later ones use the time after which the run may
    start, minus possible clock skew: clearing a run moves its actual start.
    """
    ti, run = context["ti"], context.get("dag_run")
    if ti.try_number <= 1 and getattr(ti, "start_date", None) is not None:
        start: datetime = ti.start_date
        return start
    return None if run is None else run.run_after - _CLOCKS_DIFFER
