"""Create, reset and delete branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_icechunk.exceptions import AlreadyExistsError, Kind, NotFoundError
from airflow_provider_icechunk.operators.base import RepositoryOperator, check_choice

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import Repository


class IcechunkCreateBranchOperator(RepositoryOperator):
    """Create a branch at a snapshot, or at the head of another branch.

    Returns `branch`, `snapshot_id` and `created`.

    :param repository: path below the root of the connection. (templated)
    :param branch: the new branch. (templated)
    :param from_branch: the branch at whose head it begins. (templated)
    :param snapshot_id: the snapshot at which it begins instead. (templated)
    :param if_exists: an existing branch is an `error`, kept as it is (`skip`), or moved to where a
        new one would begin (`reset`): what was only on it is lost. Only `reset` gives every attempt
        of a task the same start.
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "branch", "from_branch", "snapshot_id")

    def __init__(
        self,
        *,
        branch: str,
        from_branch: str = "main",
        snapshot_id: str | None = None,
        if_exists: Literal["error", "skip", "reset"] = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.from_branch = from_branch
        self.snapshot_id = snapshot_id
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the branch and say where it is."""
        del context
        check_choice("if_exists", self.if_exists, ("error", "skip", "reset"))
        repository = self.open_repository()
        start = repository.read_snapshot_id(
            self.snapshot_id or repository.lookup_branch(self.from_branch)
        )
        try:
            repository.create_branch(self.branch, start)
        except AlreadyExistsError:
            if self.if_exists == "error":
                raise
            return self._keep_or_reset(repository, start)
        self.log.info("Created branch %s at %s", self.branch, start)
        return {"branch": self.branch, "snapshot_id": start, "created": True}

    def _keep_or_reset(self, repository: Repository, start: str) -> dict[str, Any]:
        head = repository.lookup_branch(self.branch)
        if self.if_exists == "reset" and head != start:
            repository.reset_branch(self.branch, start, from_snapshot_id=head)
            self.log.info("Branch %s was at %s and is at %s now", self.branch, head, start)
            head = start
        return {"branch": self.branch, "snapshot_id": head, "created": False}


class IcechunkResetBranchOperator(RepositoryOperator):
    """Move a branch to any snapshot; what only it had is lost from view.

    Returns `branch`, `snapshot_id` and `was`: where to move it back to.

    :param repository: path below the root of the connection. (templated)
    :param branch: the branch to move. (templated)
    :param snapshot_id: where to. (templated)
    :param from_snapshot_id: where it has to be now; elsewhere it stays, and `ConflictError` is
        raised, unless it is at `snapshot_id` already. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "branch", "snapshot_id", "from_snapshot_id")

    def __init__(
        self,
        *,
        branch: str,
        snapshot_id: str,
        from_snapshot_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.snapshot_id = snapshot_id
        self.from_snapshot_id = from_snapshot_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Move the branch, unless an earlier attempt did."""
        del context
        repository = self.open_repository()
        was = repository.lookup_branch(self.branch)
        target = repository.read_snapshot_id(self.snapshot_id)
        if was != target:
            expected = self.from_snapshot_id or was
            repository.reset_branch(self.branch, target, from_snapshot_id=expected)
            self.log.info("Branch %s was at %s and is at %s", self.branch, was, target)
        return {"branch": self.branch, "snapshot_id": target, "was": was}


class IcechunkDeleteBranchOperator(RepositoryOperator):
    """Delete a branch; its snapshots stay until they are collected. `main` cannot be deleted.

    Returns `branch`, `deleted` and `was`, the snapshot it was at.

    :param repository: path below the root of the connection. (templated)
    :param branch: the branch. (templated)
    :param missing_ok: whether a branch that is not there counts as deleted, as it is for a task
        that runs again.
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "branch")

    def __init__(self, *, branch: str, missing_ok: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.missing_ok = missing_ok

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete the branch."""
        del context
        repository = self.open_repository()
        try:
            was = repository.lookup_branch(self.branch)
            repository.delete_branch(self.branch)
        except NotFoundError as error:
            if error.kind is not Kind.BRANCH_NOT_FOUND or not self.missing_ok:
                raise
            return {"branch": self.branch, "deleted": False, "was": None}
        self.log.info("Deleted branch %s, which was at %s", self.branch, was)
        return {"branch": self.branch, "deleted": True, "was": was}
