"""Open a session that other tasks write to, or abort it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .base import DatasetOperator, IcechunkOperator, check_place, task_identity

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import Repository, WorkUnit


class IcechunkOpenSessionOperator(DatasetOperator):
    """Open a session on a branch and return a description for the tasks that write and commit.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
        from airflow_provider_icechunk.operators.session import IcechunkOpenSessionOperator

        with DAG("write") as dag:
            opened = IcechunkOpenSessionOperator(task_id="open", repository="weather")
            IcechunkCommitOperator(task_id="commit", session=opened.output, message="new day")

    Returns `work_unit`, `place`, `fragments`, `repository` and `conn_id`: plain JSON without
    secrets; with a dataset also `dataset` and `placement`, from which writers know their region.
    Nothing is visible on the branch until IcechunkCommitOperator has run. A retry opens a new
    session; what was written to the old one is never merged.

    :param repository: path of the repository, relative to the connection's root; by default that of
        the dataset. (templated)
    :param branch: branch to start from and commit to; by default that of the dataset, or `main`.
        (templated)
    :param arrays: arrays the session needs at least: `path`, `shape`, `dtype`, and optionally
        `chunks`, `shards`, `dimension_names`, `fill_value`, `attributes`, `values`. Missing arrays
        are created, shorter ones grow, longer ones stay. (templated)
    :param dataset: what the session must contain at least, as an IcechunkDataset. A missing
        repository is created.
    :param at: the position of the run in the dataset, such as `{"time": "{{ ds }}"}`; also a list
        of labels, or `{"from": first, "until": end}`, end excluded. (templated)
    :param job: name of the job; identifies the task instance by default. (templated)
    :param icechunk_conn_id: the Icechunk connection; by default that of the dataset, or
        `icechunk_default`.
    """

    template_fields = ("repository", "branch", "arrays", "at", "job")
    template_fields_renderers: ClassVar[dict[str, str]] = {"arrays": "json", "at": "json"}

    def __init__(
        self,
        *,
        arrays: Sequence[Mapping[str, Any]] = (),
        at: Mapping[str, Any] | str | None = None,
        job: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_place(self.dataset, at)
        self.arrays = arrays
        self.at = at
        self.job = job

    def execute(self, context: Context) -> dict[str, Any]:
        """Open the session and return its description."""
        from airflow_provider_icechunk.engine.pipelines.transaction import open_for

        hook = self.icechunk_hook()
        opened = open_for(
            self.open_repository_for(self.dataset),
            branch=self.branch,
            job=f"{self.job or task_identity(context)}/{context['ti'].try_number}",
            arrays=self.arrays,
            dataset=self.dataset,
            at=self.at,
        )
        session = hook.describe_session(
            self.repository, opened.work, dataset=self.dataset, placement=opened.placement
        )
        unit = session["work_unit"]
        self.log.info("Session on %s of %s at %s", self.branch, unit["repository"], unit["base"])
        if opened.placement is not None:
            self.log.info("Labels: %s", opened.placement.labels)
        return session


class SessionOperator(IcechunkOperator):
    """An operator on a session that another task opened; the session names the repository.

    :param session: what IcechunkOpenSessionOperator returned. (templated)
    """

    def __init__(self, *, session: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session = session

    def open_session(self) -> tuple[Repository, WorkUnit]:
        """The repository and the work unit of the session. Call it once."""
        from airflow_provider_icechunk.engine.pipelines.description import parse_session
        from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit

        session = parse_session(
            self.session if isinstance(self.session, str) else dict(self.session)
        )
        work = WorkUnit.from_json(session.work_unit)
        self.repository, self.icechunk_conn_id = session.repository, session.conn_id
        return self.open_repository(), work


class IcechunkAbortSessionOperator(SessionOperator):
    """Discard what was written to a session, so that it can never be committed.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.session import (
            IcechunkAbortSessionOperator,
            IcechunkOpenSessionOperator,
        )

        with DAG("write") as dag:
            opened = IcechunkOpenSessionOperator(task_id="open", repository="weather")
            abort = IcechunkAbortSessionOperator(task_id="abort", session=opened.output)
            opened >> abort.as_teardown(setups=opened)

    Use it as the teardown of a pipeline: branches are not touched, and a committed session loses
    nothing. Garbage collection deletes the chunks later. Returns `fragments`, the number deleted.

    :param session: what IcechunkOpenSessionOperator returned. (templated)
    """

    template_fields = ("session",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"session": "json"}

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete the fragments."""
        del context
        from airflow_provider_icechunk.engine.pipelines.transaction import abort_session

        fragments = abort_session(*self.open_session())
        self.log.info("Discarded %d fragments", fragments)
        return {"fragments": fragments}
