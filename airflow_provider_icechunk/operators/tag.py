"""Create and delete tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_icechunk.exceptions import Kind, NotFoundError
from airflow_provider_icechunk.hooks.tagging import tag_snapshot
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink
from airflow_provider_icechunk.operators.base import RepositoryOperator, check_choice

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCreateTagOperator(RepositoryOperator):
    """Name a snapshot, or the head of a branch, for ever.

    A tag never moves, so a task that runs again finds its own tag: by default that is success if it
    names the same snapshot. Returns `tag`, `snapshot_id` and `created`.

    :param repository: path below the root of the connection. (templated)
    :param tag: the new tag; a name that was deleted once cannot be used again. (templated)
    :param branch: the branch whose head is tagged. (templated)
    :param snapshot_id: the snapshot that is tagged instead. (templated)
    :param if_exists: `same` accepts a tag that names the same snapshot, `skip` any, `error` none.
    :param icechunk_conn_id: the connection.
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
        """Create the tag and say what it names."""
        del context
        check_choice("if_exists", self.if_exists, ("same", "skip", "error"))
        repository = self.open_repository()
        wanted = self.snapshot_id or repository.lookup_branch(self.branch)
        result = tag_snapshot(repository, self.tag, wanted, if_exists=self.if_exists)
        self.link_to(result["snapshot_id"])
        self.log.info("Tag %s names %s", self.tag, result["snapshot_id"])
        return result


class IcechunkDeleteTagOperator(RepositoryOperator):
    """Delete a tag; its name is never free again.

    Returns `tag`, `deleted` and `was`, the snapshot it named.

    :param repository: path below the root of the connection. (templated)
    :param tag: the tag. (templated)
    :param missing_ok: whether a tag that is not there counts as deleted, as it is for a task that
        runs again.
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "tag")

    def __init__(self, *, tag: str, missing_ok: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.missing_ok = missing_ok

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete the tag."""
        del context
        repository = self.open_repository()
        try:
            was = repository.lookup_tag(self.tag)
            repository.delete_tag(self.tag)
        except NotFoundError as error:
            if error.kind is not Kind.TAG_NOT_FOUND or not self.missing_ok:
                raise
            return {"tag": self.tag, "deleted": False, "was": None}
        self.log.info("Deleted tag %s, which named %s", self.tag, was)
        return {"tag": self.tag, "deleted": True, "was": was}
