"""Change a dataset over time: declare more of it, change attributes, drop old labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .base import CommittingOperator, DatasetOperator, OnConflict, RepositoryOperator
from .maintenance import read_count, read_flag

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.dataset import IcechunkDataset
    from airflow_provider_icechunk.engine.pipelines.transaction import Outcome


class _ChangingOperator(CommittingOperator):
    """The base class of the operators in this file."""

    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}

    def __init__(self, *, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dry_run = dry_run

    def _reported(
        self, context: Context, outcome: Outcome, *, dry_run: bool, done: tuple[str, str]
    ) -> dict[str, Any]:
        """The task's result, with what was done or would be."""
        self.log.info("%s: %s", done[0] if dry_run else done[1], outcome.result["result"])
        return {"dry_run": dry_run, **self.report(context, outcome)}


class IcechunkDeclareOperator(_ChangingOperator, DatasetOperator):
    """Make a repository hold at least what a dataset declares, before anything is written.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
        from airflow_provider_icechunk.operators.change import IcechunkDeclareOperator

        weather = IcechunkDataset(
            "weather",
            dims={"time": Growing(start="2026-01-01", every="1D"), "x": 180},
            variables={
                "t2m": Variable("float32", ("time", "x")),
                "rain": Variable("float32", ("time", "x")),
            },
        )
        with DAG("declare") as dag:
            IcechunkDeclareOperator(task_id="declare", dataset=weather)

    A missing repository is created, new variables are added, attributes are set. A variable along a
    growing dimension is as long as the others and holds the fill value; nothing is cut or deleted.
    Anything else that differs fails the task and is named. Returns `snapshot_id`, `parent_id`,
    `branch`, `committed`, and under `result` what was `created` and `changed`; a dry run and a
    repository that needs nothing commit nothing.

    :param dataset: what the repository has to hold at least, as an IcechunkDataset.
    :param repository: path of the repository, relative to the connection's root; the dataset's by
        default. (templated)
    :param branch: branch to commit to; the dataset's by default. (templated)
    :param dry_run: report what would change and commit nothing. (templated)
    :param message: commit message. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param rebase: whether to rebase onto commits that were made in the meantime.
    :param on_conflict: with `rebase`, how to resolve conflicting changes.
    :param on_rerun: what to do if the task committed and was then cleared.
    :param icechunk_conn_id: the Icechunk connection; the dataset's by default.
    """

    template_fields = ("repository", "branch", "dry_run", "message", "metadata")
    dataset: IcechunkDataset

    def __init__(
        self,
        *,
        dataset: IcechunkDataset,
        rebase: bool = True,
        on_conflict: OnConflict = "merge",
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset=dataset, **kwargs)
        self.rebase = rebase
        self.on_conflict = on_conflict

    def execute(self, context: Context) -> dict[str, Any]:
        """Declare what is missing, or report it."""
        from airflow_provider_icechunk.engine.pipelines.changes import change_once, declaring

        dry_run = read_flag("dry_run", self.dry_run)
        options = self.commit_options(context, "declare")
        repository = self.open_repository() if dry_run else self.open_repository_for(self.dataset)
        outcome = change_once(
            repository, declaring(self.dataset), options, branch=self.branch, dry_run=dry_run
        )
        return self._reported(context, outcome, dry_run=dry_run, done=("Would change", "Changed"))


class IcechunkAttributesOperator(_ChangingOperator, RepositoryOperator):
    """Set attributes of groups and arrays, and remove some, as one commit.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.change import IcechunkAttributesOperator

        with DAG("describe") as dag:
            IcechunkAttributesOperator(
                task_id="describe",
                repository="weather",
                attributes={"/": {"title": "Weather"}, "t2m": {"units": "K"}},
                remove={"t2m": ["history"]},
            )

    Keys that are not named stay. Concurrent changes to attributes are merged key by key. Returns
    `snapshot_id`, `parent_id`, `branch`, `committed`, and under `result` what `changed`: for each
    attribute what it was and what it is.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param attributes: what to set, by path of a group or an array; `/` is the root. (templated)
    :param remove: names to remove, by path; missing ones are ignored. (templated)
    :param branch: branch to commit to. (templated)
    :param dry_run: report what would change and commit nothing. (templated)
    :param message: commit message. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param rebase: whether to rebase onto commits that were made in the meantime.
    :param on_conflict: with `rebase`, how to resolve conflicting changes.
    :param on_rerun: what to do if the task committed and was then cleared.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = (
        "repository", "attributes", "remove", "branch", "dry_run", "message", "metadata",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "attributes": "json",
        "remove": "json",
        "metadata": "json",
    }

    def __init__(
        self,
        *,
        repository: str,
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
        remove: Mapping[str, Sequence[str]] | None = None,
        branch: str | None = None,
        rebase: bool = True,
        on_conflict: OnConflict = "merge",
        **kwargs: Any,
    ) -> None:
        super().__init__(repository=repository, **kwargs)
        self.attributes = attributes
        self.remove = remove
        self.branch = branch or "main"
        self.rebase = rebase
        self.on_conflict = on_conflict

    def execute(self, context: Context) -> dict[str, Any]:
        """Change the attributes, or report what would change."""
        from airflow_provider_icechunk.engine.pipelines.changes import change_once, describing

        dry_run = read_flag("dry_run", self.dry_run)
        change = describing(self.attributes, self.remove)
        options = self.commit_options(context, "change attributes")
        outcome = change_once(
            self.open_repository(), change, options, branch=self.branch, dry_run=dry_run
        )
        return self._reported(context, outcome, dry_run=dry_run, done=("Would change", "Changed"))


class IcechunkDropLabelsOperator(_ChangingOperator, DatasetOperator):
    """Drop old labels from the front of a growing dimension: a rolling window.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
        from airflow_provider_icechunk.operators.change import IcechunkDropLabelsOperator

        weather = IcechunkDataset(
            "weather",
            dims={"time": Growing(start="2026-01-01", every="1D"), "x": 180},
            variables={"t2m": Variable("float32", ("time", "x"))},
        )
        with DAG("window") as dag:
            IcechunkDropLabelsOperator(task_id="window", dataset=weather, keep=90)

    All arrays of the group that have the dimension are cut in one commit. Where the cut falls
    between chunks, only references move; otherwise all remaining chunks of that array are written
    again, in this task: `dry_run` says how many bytes that is, and `whole_chunks` avoids it. The
    dataset keeps its `start`: later runs find their places, and one for a dropped label fails. A
    commit that others make meanwhile is kept, and the cut is made again on top of it; a run that
    began before the cut and commits after it fails with a conflict, and its retry succeeds.
    Earlier versions keep the labels until they expire. Returns `snapshot_id`, `parent_id`,
    `branch`, `committed`, and under `result` the `labels` that went, the `first` that is left, and
    for each array how many chunks were dropped, moved and rewritten.

    :param dataset: the declaration, as an IcechunkDataset.
    :param before: the first label that stays, such as `{{ macros.ds_add(ds, -90) }}`. (templated)
    :param keep: how many labels stay, in place of `before`. (templated)
    :param dim: the dimension; by default the only growing one.
    :param whole_chunks: drop fewer labels, so that no chunk of a variable is written again.
    :param repository: path of the repository, relative to the connection's root; the dataset's by
        default. (templated)
    :param branch: branch to commit to; the dataset's by default. (templated)
    :param dry_run: report what would go and commit nothing. (templated)
    :param message: commit message. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param on_rerun: what to do if the task committed and was then cleared.
    :param icechunk_conn_id: the Icechunk connection; the dataset's by default.
    """

    template_fields = (
        "repository", "before", "keep", "branch", "dry_run", "message", "metadata",
    )  # fmt: skip
    dataset: IcechunkDataset

    def __init__(
        self,
        *,
        dataset: IcechunkDataset,
        before: str | None = None,
        keep: int | str | None = None,
        dim: str | None = None,
        whole_chunks: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset=dataset, **kwargs)
        self.before = before
        self.keep = keep
        self.dim = dim
        self.whole_chunks = whole_chunks

    def execute(self, context: Context) -> dict[str, Any]:
        """Drop old labels, or report which would be dropped."""
        from airflow_provider_icechunk.engine.pipelines.window import Drop, drop_labels_once

        dry_run = read_flag("dry_run", self.dry_run)
        keep = None if self.keep is None else read_count("keep", self.keep)
        outcome = drop_labels_once(
            self.open_repository(),
            self.dataset,
            Drop(self.before, keep, self.dim, self.whole_chunks),
            self.commit_options(context, f"drop old labels of {self.dim or 'a dimension'}"),
            branch=self.branch,
            dry_run=dry_run,
        )
        return self._reported(context, outcome, dry_run=dry_run, done=("Would drop", "Dropped"))
