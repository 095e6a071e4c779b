"""What every operator on one repository has: the repository, and the connection it is below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.links.snapshot import link_snapshot

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import Repository

_TOLD = ("snapshot_id", "parent_id", "branch", "supersedes")


class RepositoryOperator(BaseOperator):
    """Keep the path of a repository and the connection until `execute` opens it.

    :param repository: path below the root of the connection. (templated)
    :param icechunk_conn_id: the connection.
    """

    ui_color = "#d5ecf7"

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

    def open_repository(self) -> Repository:
        """The repository; a missing one is a `NotFoundError`."""
        return IcechunkHook(self.icechunk_conn_id).open(self.repository)

    def link_to(self, snapshot_id: str) -> None:
        """Make the task's link lead to a snapshot of the repository."""
        link_snapshot(
            self,
            conn_id=self.icechunk_conn_id,
            repository=self.repository,
            snapshot_id=snapshot_id,
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        known = ", ".join(map(repr, choices))
        raise InvalidInputError(f"{name} is one of {known}, not {value!r}")


def report_to_outlets(
    task: BaseOperator, context: Context, committed: Mapping[str, Any], *, is_new: bool = True
) -> None:
    """Put a new snapshot into the events of the assets that a task declares as outlets.

    Consumers find `snapshot_id`, `parent_id`, `branch` and, if there is one, `supersedes` in the
    `extra` of the event. A snapshot that is not new makes no event.
    """
    from airflow.sdk import Asset

    if not is_new:
        report_nothing(task)
        return
    told = {name: committed[name] for name in _TOLD if name in committed}
    for outlet in task.outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(told)


def report_nothing(task: BaseOperator) -> None:
    """Let a running task end well without an event for its outlets, because nothing is new.

    Airflow makes an event for each outlet that a task has when it ends; aliases have events only
    where a task adds some.
    """
    from airflow.sdk import AssetAlias

    task.outlets = [outlet for outlet in task.outlets if isinstance(outlet, AssetAlias)]
