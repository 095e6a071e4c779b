"""Publish a branch: the last step of write-audit-publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from .base import MergingOperator, OnConflict, RepositoryOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkPublishOperator(MergingOperator, RepositoryOperator):
    """Publish the changes of a staging branch to another branch in one step.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.publish import IcechunkPublishOperator

        with DAG("publish") as dag:
            IcechunkPublishOperator(
                task_id="publish", repository="weather", source="staging", target="main"
            )

    If the target did not move, it is fast-forwarded, so that readers get exactly the audited
    snapshot. Otherwise, with `rebase`, the changes are committed on top of it as one commit.
    Changes that are already published are not published again and emit no asset event. Returns
    `snapshot_id`, `parent_id`, `branch`, `source_snapshot_id`, `how` (`fast_forward`, `commit`,
    `rebase` or `already_there`) and, if a rerun replaced an earlier snapshot, `supersedes`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param source: the branch that was written and audited. (templated)
    :param target: the branch that readers use. (templated)
    :param snapshot_id: the audited snapshot, by default the head of `source`; later ones on
        `source` are not published. (templated)
    :param checks: what `IcechunkCheckOperator` returned for that snapshot. Only checked data is
        published, as one commit with the report in its metadata. (templated)
    :param rebase: whether to rebase onto commits that were made in the meantime; by default they
        are a `ConflictError`, because readers would get something that was not audited.
    :param on_conflict: with `rebase`, how to resolve conflicting changes: `merge` keeps both sides
        where their order does not matter, `ours` and `theirs` choose between chunks that both
        sides wrote, `fail` resolves nothing.
    :param on_chunk_conflict: the earlier name of `on_conflict`.
    :param on_existing_label: what to do about a label that another run appended meanwhile to a
        dimension without steps: `fail` if both wrote different values there, or `replace` them.
    :param message: message of the commit that a rebase makes. (templated)
    :param metadata: metadata of that commit. (templated)
    :param on_rerun: what to do if the task made that commit and was then cleared: `replace`
        publishes what is new on `source`, `skip` nothing, `always` commits the changes again.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = (
        "repository",
        "source",
        "target",
        "snapshot_id",
        "checks",
        "message",
        "metadata",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"checks": "json", "metadata": "json"}

    def __init__(
        self,
        *,
        source: str,
        target: str = "main",
        snapshot_id: str | None = None,
        checks: Mapping[str, Any] | str | None = None,
        rebase: bool = False,
        on_chunk_conflict: OnConflict | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rebase=rebase, **kwargs)
        self.source = source
        self.target = target
        self.snapshot_id = snapshot_id
        self.checks = checks
        self.on_chunk_conflict = on_chunk_conflict

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish, unless it is already published."""
        from airflow_provider_icechunk.engine.pipelines.publish import publish

        options = self.commit_options(context, f"publish {self.source}")
        outcome = publish(
            self.open_repository(),
            self.source,
            options,
            target=self.target,
            audited=self.snapshot_id,
            checks=self.checks,
        )
        self.log.info("Published by %s", outcome.result["how"])
        return self.report(context, outcome)
