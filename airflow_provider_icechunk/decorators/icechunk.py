"""`@task.icechunk`: run a function on a session and commit what it wrote.

The function can get a `Dataset` of one version to read, and can return a `Dataset` to be written.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import TaskDecorator, task_decorator_factory

from airflow_provider_icechunk.engine.pipelines.reading import (
    TriggeringEvent,
    parse_version,
    pinned,
)
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.operators.base import OnConflict

from .function import FunctionOperator, without

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import Repository, Session
    from airflow_provider_icechunk.dataset import IcechunkDataset
    from airflow_provider_icechunk.engine.datasets.dataset import Placement
    from airflow_provider_icechunk.engine.xarray_io.datasets import ZarrWriteModes

INJECTED = ("session", "store")
"""Function parameters that the task fills in: the writable session, and its Zarr store."""
READ = "dataset"
"""Function parameter that the task also fills in if `read` is set."""
PLACE = ("place", "placement")
"""Function parameters that the task also fills in if `dataset` is set: the run's part of it as a
`Dataset`, and its position as a `Placement`.
"""


class _IcechunkDecoratedOperator(FunctionOperator):
    """Run a function on a writable session and commit what it wrote exactly once.

    :param repository: path of the repository, relative to the connection's root; by default that
        of the dataset. (templated)
    :param dataset: the minimum content of the repository, as an IcechunkDataset. A `Dataset`
        that the function returns is written at the run's place.
    :param at: the run's place in the dataset, such as `{"time": "{{ ds }}"}`. (templated)
    :param branch: branch to start from and commit to; by default that of the dataset, or `main`.
        (templated)
    :param message: commit message; names DAG, task and run by default. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param rebase: whether to rebase onto commits that were made in the meantime.
    :param on_conflict: with `rebase`, how to resolve conflicting changes: `merge` keeps both sides
        where their order does not matter, `ours` and `theirs` choose between chunks that both
        sides wrote, `fail` resolves nothing.
    :param on_chunk_conflict: the earlier name of `on_conflict`.
    :param on_rerun: what to do if the task committed and was then cleared: `replace` calls the
        function and commits again, `skip` returns the existing commit, `always` also lets retries
        commit again.
    :param read: the version that the function gets as its parameter `dataset`: `True` for the
        snapshot of the event that started the run, else the head of `branch`; `"event"` for the
        event's snapshot only; or a mapping with `tag`, `snapshot_id`, or `branch` and `as_of`, and
        `repository` if it is not the task's. (templated)
    :param group: the group to read and write. (templated)
    :param region: where to write a returned `Dataset`, by dimension: a slice, `[start, stop]`, an
        index, a text like `3:5`, or `auto` to find it by the coordinate. (templated)
    :param append_dim: the dimension along which to append a returned `Dataset`. (templated)
    :param mode: how to write a returned `Dataset`, as in Xarray's `to_zarr`.
    :param encoding: how to store its variables, as in Xarray's `to_zarr`.
    :param partition_by: a growing dimension whose labels that were written become partition keys of
        the events of outlets, in Airflow 3.3 and later. Such events start only DAGs that are
        scheduled by partitions.
    :param on_existing_label: what to do about a label that another run appended meanwhile: `fail`
        if both wrote different values there, or `replace` the earlier ones.
    :param icechunk_conn_id: the Icechunk connection; by default that of the dataset.
    """

    custom_operator_name = "@task.icechunk"
    template_fields = (*FunctionOperator.template_fields, "read", "group", "region", "append_dim")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **FunctionOperator.template_fields_renderers,
        "read": "json",
        "region": "json",
    }

    def __init__(
        self,
        *,
        dataset: IcechunkDataset | None = None,
        on_chunk_conflict: OnConflict | None = None,
        read: bool | str | Mapping[str, Any] | None = None,
        group: str | None = None,
        region: str | Mapping[str, Any] | None = None,
        append_dim: str | None = None,
        mode: ZarrWriteModes | None = None,
        encoding: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        where = {"group": group, "region": region, "append_dim": append_dim, "mode": mode}
        for name, value in where.items():
            if dataset is not None and value is not None:
                raise TypeError(
                    f"`dataset` and `at` already say where to write: leave out `{name}`"
                )
        self.on_chunk_conflict = on_chunk_conflict
        self.read = read
        self.group = group
        self.region = region
        self.append_dim = append_dim
        self.mode = mode
        self.encoding = encoding
        super().__init__(dataset=dataset, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Call the function and commit, unless an earlier attempt already did."""
        from airflow_provider_icechunk.engine.pipelines.transaction import write_session

        options = self.commit_options(context)

        # Checked first: a run without a logical date has no place.
        if self.dataset is None and self.at is not None:
            raise InvalidInputError(
                "`at` says where in a `dataset` the run belongs: pass `dataset` as well"
            )
        place = None if self.dataset is None else self.dataset.place(self.at)
        repository = self.open_repository_for(self.dataset)
        # Decided before the function is called, so that a retry that finds no commit reads the
        # same version.
        reading = None if self.read is None else self._reading(context, repository)

        def write(session: Session) -> Any:
            placement = place and self._ensure(session, place)
            given = {
                "session": lambda: session,
                "store": lambda: session.store,
                READ: lambda: reading and self._dataset(reading),
                "place": lambda: placement and self._place(session, placement),
                "placement": lambda: placement,
            }
            return self._written(session, self.call(context, given), placement)

        return self.report(
            context,
            write_session(
                repository, self.branch, write, options, appends=self.append_dim is not None
            ),
        )

    def _reading(self, context: Context, repository: Repository) -> Session:
        """A session on the version that the function reads."""
        version = parse_version(self.read, branch=self.branch)
        version = pinned(version, _events(context), self.repository)
        if version.repository is not None:
            repository = self.icechunk_hook().open(version.repository)
        session = version.session(repository)
        self.log.info("Reading snapshot %s", session.snapshot_id)
        return session

    def _dataset(self, session: Session) -> Any:
        from airflow_provider_icechunk.engine.xarray_io.datasets import open_dataset

        return open_dataset(session, self.group or (self.dataset and self.dataset.group) or None)

    def _ensure(self, session: Session, place: Placement) -> Placement:
        """Make the session hold at least the dataset, up to the place of the run."""
        from airflow_provider_icechunk.engine.datasets.declare import ensure

        assert self.dataset is not None
        return ensure(session, self.dataset, place)

    def _place(self, session: Session, placement: Placement) -> Any:
        from airflow_provider_icechunk.engine.datasets.located import open_place

        assert self.dataset is not None
        return open_place(session, self.dataset, placement)

    def _written(self, session: Session, result: Any, placement: Placement | None) -> Any:
        """The task's result for what its function returned; a `Dataset` is written."""
        from airflow_provider_icechunk.engine.xarray_io.datasets import is_dataset, write_dataset

        if is_dataset(result) and self.dataset is not None and placement is not None:
            from airflow_provider_icechunk.engine.datasets.located import write_place

            return write_place(session, self.dataset, placement, result)
        if is_dataset(result):
            return write_dataset(
                session,
                result,
                group=self.group,
                region=self.region,
                mode=self.mode,
                append_dim=self.append_dim,
                encoding=self.encoding,
            )
        function = inspect.unwrap(self.python_callable)
        writes_itself = any(name in inspect.signature(function).parameters for name in INJECTED)
        where = (self.region, self.append_dim, self.mode)
        if any(one is not None for one in where) or (self.dataset and not writes_itself):
            raise TypeError(
                f"{self.task_id} says where a Dataset is written, and its function returned "
                f"{type(result).__name__}: return a Dataset or a DataArray"
            )
        return result


def _events(context: Context) -> Iterator[TriggeringEvent]:
    """The events that started the run."""
    for asset, events in (context.get("triggering_asset_events") or {}).items():
        for event in events:
            uri = getattr(asset, "uri", None) or asset.name
            yield TriggeringEvent(uri, event.extra or {}, getattr(event, "timestamp", None))


def icechunk_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Turn a function that writes to an Icechunk session into a task.

    The function gets the writable session as its parameter `session`, or the session's Zarr store
    as `store`, which Zarr and Xarray can open; its other parameters come from the call. When it
    returns, its changes are committed and, if necessary, rebased onto commits made in the meantime;
    if it raises, nothing is committed. The task returns `snapshot_id`, `parent_id`, `branch`,
    `committed`, and the function's return value as `result`. A retry of a task that committed does
    not call the function again and returns the same, if the result is small JSON. A cleared task
    calls it again and also returns `supersedes`, the snapshot it committed before.

    With `read` it gets one version of the repository as its parameter `dataset`: a read-only, lazy
    Xarray `Dataset`. A `Dataset` or `DataArray` that it returns is written before the commit: to
    `region`, to the end of `append_dim`, or as a whole; `result` then has the names of its
    variables and its sizes.

    With `dataset` and `at` the repository holds at least what is declared, and the function gets
    the part that belongs to the run as its parameter `place`: an Xarray `Dataset` with its labels
    and what is stored there now. A `Dataset` that it returns is written there. `placement` has the
    positions, for functions that write into `store` themselves.
    """
    if python_callable is None:
        return functools.partial(icechunk_task, multiple_outputs=multiple_outputs, **kwargs)
    reads, places = (kwargs.get(name) is not None for name in ("read", "dataset"))
    returns = _returns_dataset(python_callable)
    writes = returns or any(kwargs.get(name) is not None for name in _WHERE)
    if multiple_outputs is None and returns:
        # A `Dataset` is a mapping, and Airflow would make an XCom of each variable.
        multiple_outputs = False
    decorator: TaskDecorator = task_decorator_factory(
        python_callable=with_session(python_callable, reads=reads, writes=writes, places=places),
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_IcechunkDecoratedOperator,
        **kwargs,
    )
    return decorator


_WHERE = ("dataset", "region", "append_dim", "mode")
"""Arguments that say where to write a `Dataset` that the function returns."""


def with_session(
    function: Callable[..., Any],
    *,
    reads: bool = False,
    writes: bool = False,
    places: bool = False,
) -> Callable[..., Any]:
    """Wrap the function, hiding the parameters that the task fills in from Airflow's checks.

    :param reads: whether the task also fills in `dataset`, otherwise an ordinary parameter.
    :param writes: whether it is known to return a `Dataset`, so that it needs no session.
    :param places: whether the task also fills in `place` and `placement`.
    """
    signature = inspect.signature(function)
    injected = (*INJECTED, *((READ,) if reads else ()), *(PLACE if places else ()))
    wanted = [name for name in injected if name in signature.parameters]
    called = getattr(function, "__name__", function)
    if reads and READ not in wanted:
        raise TypeError(f"{called} has no parameter `{READ}`, but `read` is set: add the parameter")
    if not wanted and not writes:
        raise TypeError(
            f"{called} has no parameter `session` or `store` to write to: add one or, to return a "
            "Dataset, annotate its return type or set region, append_dim or mode"
        )
    return without(function, injected, wanted)


def _returns_dataset(function: Callable[..., Any]) -> bool:
    """Whether the return type is one of Xarray's, by its name: Dags need not import it."""
    annotation = getattr(function, "__annotations__", {}).get("return")
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2] in ("Dataset", "DataArray")
