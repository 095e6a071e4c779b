"""Create, reset and delete branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_icechunk.engine.pipelines.publish import (
    create_branch,
    delete_branch,
    reset_branch,
)

from .base import RepositoryOperator, check_choice

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCreateBranchOperator(RepositoryOperator):
    """Create a branch at a snapshot, or at the head of another branch.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.branch import IcechunkCreateBranchOperator

        with DAG("branches") as dag:
            IcechunkCreateBranchOperator(task_id="stage", repository="weather", branch="staging")

    Returns `branch`, `snapshot_id` and `created`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param branch: name of the new branch. (templated)
    :param from_branch: branch at whose head it starts. (templated)
    :param snapshot_id: the snapshot at which it starts instead. (templated)
    :param if_exists: an existing branch is an `error`, kept (`skip`), or moved to where a new one
        would start (`reset`), which drops the commits that only it has. Only with `reset` does
        every attempt of a task start from the same state.
    :param icechunk_conn_id: the Icechunk connection.
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
        """Create the branch; returns its snapshot."""
        del context
        check_choice("if_exists", self.if_exists, ("error", "skip", "reset"))
        result = create_branch(
            self.open_repository(),
            self.branch,
            from_branch=self.from_branch,
            snapshot_id=self.snapshot_id,
            if_exists=self.if_exists,
        )
        self.log.info("Branch: %s", result)
        return result


class IcechunkResetBranchOperator(RepositoryOperator):
    """Move a branch to any snapshot; commits that only it had become unreachable.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.branch import IcechunkResetBranchOperator

        with DAG("roll_back", params={"snapshot_id": ""}) as dag:
            IcechunkResetBranchOperator(
                task_id="reset",
                repository="weather",
                branch="main",
                snapshot_id="{{ params.snapshot_id }}",
            )

    Returns `branch`, `snapshot_id` and `was`, the snapshot it was at.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param branch: the branch to move. (templated)
    :param snapshot_id: the new head. (templated)
    :param from_snapshot_id: the expected current head; any other one, except `snapshot_id`, is a
        `ConflictError`. (templated)
    :param icechunk_conn_id: the Icechunk connection.
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
        """Move the branch, unless an earlier attempt already did."""
        del context
        result = reset_branch(
            self.open_repository(),
            self.branch,
            self.snapshot_id,
            from_snapshot_id=self.from_snapshot_id,
        )
        self.log.info("Branch: %s", result)
        return result


class IcechunkDeleteBranchOperator(RepositoryOperator):
    """Delete a branch; its snapshots remain until collected. `main` cannot be deleted.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.branch import IcechunkDeleteBranchOperator

        with DAG("clean_up") as dag:
            IcechunkDeleteBranchOperator(task_id="drop", repository="weather", branch="staging")

    Returns `branch`, `deleted` and `was`, the snapshot it was at.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param branch: the branch to delete. (templated)
    :param missing_ok: whether to succeed if the branch does not exist, as after a rerun.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "branch")

    def __init__(self, *, branch: str, missing_ok: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.missing_ok = missing_ok

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete the branch."""
        del context
        result = delete_branch(self.open_repository(), self.branch, missing_ok=self.missing_ok)
        self.log.info("Branch: %s", result)
        return result
