"""`@task.icechunk`: a function writes into a session, and what it wrote is committed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.reruns import (
    METADATA_KEY,
    Attempt,
    Earlier,
    OnRerun,
    attempt_that_made,
    find_earlier,
    kept_result,
)
from airflow_provider_icechunk.hooks.solvers import OnChunkConflict, solver_for
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink, link_snapshot
from airflow_provider_icechunk.operators.base import report_to_outlets
from airflow_provider_icechunk.operators.identity import attempt_of, task_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import Repository, Session, SnapshotInfo

INJECTED = ("session", "store")
"""Parameters of a function that the task fills in: the writable session, and its Zarr store."""

_session: ContextVar[Session] = ContextVar("icechunk_session")


class _IcechunkDecoratedOperator(DecoratedOperator, PythonOperator):
    """Run a function on a writable session and commit what it wrote, once.

    :param repository: path below the root of the connection. (templated)
    :param branch: branch to stand on and to commit to. (templated)
    :param message: commit message; by default Dag, task and run. (templated)
    :param metadata: metadata of the commit; `airflow` is added: who committed. (templated)
    :param rebase: whether to move over commits that others made meanwhile.
    :param on_chunk_conflict: with `rebase`, what to do about a chunk that both sides wrote.
    :param on_rerun: what a task does that committed and was cleared: `replace` calls the function
        and commits again, `skip` returns the commit that is there, `always` lets retries commit
        anew as well.
    :param icechunk_conn_id: the connection.
    """

    custom_operator_name = "@task.icechunk"
    template_fields = (
        *DecoratedOperator.template_fields,
        "repository",
        "branch",
        "message",
        "metadata",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        "metadata": "json",
    }
    operator_extra_links = (IcechunkSnapshotLink(),)
    ui_color = "#b8dff0"

    def __init__(
        self,
        *,
        repository: str,
        python_callable: Callable[..., Any],
        op_args: Any = None,
        op_kwargs: Any = None,
        branch: str = "main",
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        rebase: bool = True,
        on_chunk_conflict: OnChunkConflict = "fail",
        on_rerun: OnRerun = "replace",
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        self.repository = repository
        self.branch = branch
        self.message = message
        self.metadata = metadata
        self.rebase = rebase
        self.on_chunk_conflict = on_chunk_conflict
        self.on_rerun = on_rerun
        self.icechunk_conn_id = icechunk_conn_id
        function = {
            "python_callable": python_callable,
            "op_args": op_args,
            "op_kwargs": op_kwargs,
        }
        super().__init__(kwargs_to_upstream=function, **function, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Call the function and commit, unless an earlier attempt of this run did."""
        attempt = attempt_of(context, self.on_rerun)
        repository = IcechunkHook(self.icechunk_conn_id).open(self.repository)
        # Opened before the look back: the commit itself looks no further back than its base.
        session = repository.writable_session(self.branch)
        earlier = find_earlier(repository, self.branch, attempt)
        if earlier is not None and earlier.answers:
            return self._replay(context, earlier)
        given = _session.set(session)
        try:
            result = super().execute(context)
        finally:
            _session.reset(given)
        if not session.has_uncommitted_changes:
            head = repository.lookup_snapshot(session.snapshot_id)
            self.log.info("The function wrote nothing: there is nothing to commit")
            report_to_outlets(self, context, {}, is_new=False)
            return self._answer(head, committed=False, result=result)
        info = self._commit(repository, session, context, attempt, earlier, result)
        if attempt_that_made(info) != attempt.number:
            # Another attempt was faster, and its commit is the one that counts.
            return self._replay(context, Earlier.of_this_run(info))
        superseded = None if earlier is None else earlier.info.id
        answer = self._answer(info, committed=True, result=result, supersedes=superseded)
        report_to_outlets(self, context, answer)
        return answer

    def _commit(
        self,
        repository: Repository,
        session: Session,
        context: Context,
        attempt: Attempt,
        earlier: Earlier | None,
        result: Any,
    ) -> SnapshotInfo:
        from airflow_provider_icechunk.hooks.transactions import commit_attempt

        ti, task = context["ti"], {**task_metadata(context), **kept_result(result)}
        return commit_attempt(
            repository,
            session,
            message=self.message or f"{ti.dag_id}.{ti.task_id} in {ti.run_id}",
            metadata={**(self.metadata or {}), METADATA_KEY: task},
            attempt=attempt,
            earlier=earlier,
            solver=solver_for(self.on_chunk_conflict) if self.rebase else None,
        )

    def _replay(self, context: Context, earlier: Earlier) -> dict[str, Any]:
        """What the attempt returned that committed; one of an earlier run is nothing new."""
        answer = self._answer(
            earlier.info,
            committed=not earlier.is_known,
            result=earlier.result,
            supersedes=earlier.supersedes,
        )
        report_to_outlets(self, context, answer, is_new=not earlier.is_known)
        return answer

    def _answer(
        self, info: SnapshotInfo, *, committed: bool, result: Any, supersedes: str | None = None
    ) -> dict[str, Any]:
        link_snapshot(
            self,
            conn_id=self.icechunk_conn_id,
            repository=self.repository,
            snapshot_id=info.id,
        )
        return {
            "snapshot_id": info.id,
            "parent_id": info.parent_id,
            "branch": self.branch,
            "committed": committed,
            "result": result,
            **({} if supersedes is None else {"supersedes": supersedes}),
        }


def icechunk_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Make a task of a function that writes into an Icechunk session.

    The function gets the writable session as its parameter `session`, or the Zarr store of it as
    `store`, which Zarr and Xarray open; its other parameters come from the call. When it returns,
    what it wrote is committed, over commits that others made meanwhile; an exception leaves nothing
    behind. The task returns `snapshot_id`, `parent_id`, `branch`, `committed`, and as `result` what
    the function returned. A retry of a task that committed does not call the function again and
    returns the same, if the result is small JSON. A task that was cleared calls it again, and also
    returns as `supersedes` which snapshot it committed before.
    """
    if python_callable is None:
        return functools.partial(icechunk_task, multiple_outputs=multiple_outputs, **kwargs)
    decorator: TaskDecorator = task_decorator_factory(
        python_callable=with_session(python_callable),
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_IcechunkDecoratedOperator,
        **kwargs,
    )
    return decorator


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without the parameters that the task fills in, as Airflow checks calls."""
    signature = inspect.signature(function)
    wanted = [name for name in INJECTED if name in signature.parameters]
    if not wanted:
        raise TypeError(
            f"{getattr(function, '__name__', function)} has neither a parameter `session` nor "
            "`store`, so it could write nothing"
        )
    kept = [one for name, one in signature.parameters.items() if name not in INJECTED]
    reduced = signature.replace(parameters=kept)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        session = _session.get()
        given = {"session": session, "store": session.store}
        bound = reduced.bind(*args, **kwargs)
        return function(**{name: given[name] for name in wanted}, **_by_name(bound))

    call.__signature__ = reduced  # type: ignore[attr-defined]
    return call


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return named
