"""Create and delete tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_icechunk.engine.pipelines.publish import create_tag, delete_tag
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink

from .base import RepositoryOperator, check_choice

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCreateTagOperator(RepositoryOperator):
    """Create an immutable tag at a snapshot or at the head of a branch.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.tag import IcechunkCreateTagOperator

        with DAG("release") as dag:
            IcechunkCreateTagOperator(task_id="tag", repository="weather", tag="v1", branch="main")

    A rerun finds the existing tag: by default it succeeds if the tag is at the same snapshot.
    Returns `tag`, `snapshot_id` and `created`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param tag: name of the new tag; the name of a deleted tag cannot be reused. (templated)
    :param branch: branch whose head is tagged. (templated)
    :param snapshot_id: the snapshot to tag instead. (templated)
    :param if_exists: `same` accepts a tag at the same snapshot, `skip` any tag, `error` none.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "tag", "branch", "snapshot_id")
    operator_extra_links = (IcechunkSnapshotLink(),)

    def __init__(
        self,
        *,
        tag: str,
        branch: str = "main",
        snapshot_id: str | None = None,
        if_exists: Literal["same", "skip", "error"] = "same",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.branch = branch
        self.snapshot_id = snapshot_id
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the tag; returns its snapshot."""
        del context
        check_choice("if_exists", self.if_exists, ("same", "skip", "error"))
        result = create_tag(
            self.open_repository(),
            self.tag,
            branch=self.branch,
            snapshot_id=self.snapshot_id,
            if_exists=self.if_exists,
        )
        self.link_to(result["snapshot_id"])
        self.log.info("Tag %s is at %s", self.tag, result["snapshot_id"])
        return result


class IcechunkDeleteTagOperator(RepositoryOperator):
    """Delete a tag; its name cannot be reused.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.tag import IcechunkDeleteTagOperator

        with DAG("withdraw") as dag:
            IcechunkDeleteTagOperator(task_id="untag", repository="weather", tag="v1")

    Returns `tag`, `deleted` and `was`, the snapshot it was at.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param tag: the tag to delete. (templated)
    :param missing_ok: whether to succeed if the tag does not exist, as after a rerun.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "tag")

    def __init__(self, *, tag: str, missing_ok: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.missing_ok = missing_ok

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete the tag."""
        del context
        result = delete_tag(self.open_repository(), self.tag, missing_ok=self.missing_ok)
        self.log.info("Tag: %s", result)
        return result
