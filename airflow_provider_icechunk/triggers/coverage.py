"""Wait until labels of a dataset are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset
from airflow_provider_icechunk.engine.pipelines.observe import poll_labels
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

from .base import STAMP, PollingTrigger

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


class IcechunkCoverageTrigger(PollingTrigger):
    """Wait until labels of a dataset are there; the deferred half of IcechunkCoverageSensor.

    :param repository: path below the root of the connection.
    :param dataset: the declaration, or what `IcechunkDataset.to_json` made of it.
    :param at: the labels.
    :param variables: names of the variables that must have them; by default all.
    :param branch: the branch to poll.
    :param icechunk_conn_id: the connection.
    :param poll_interval: seconds between two polls.
    """

    def __init__(
        self,
        *,
        repository: str,
        dataset: IcechunkDataset | Mapping[str, Any],
        at: Mapping[str, Any] | str,
        variables: Sequence[str] | None = None,
        branch: str = "main",
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        poll_interval: float = 60.0,
        **stamp: Any,
    ) -> None:
        super().__init__(
            repository=repository,
            icechunk_conn_id=icechunk_conn_id,
            poll_interval=poll_interval,
            **stamp,
        )
        self.dataset = dataset.to_json() if isinstance(dataset, IcechunkDataset) else dict(dataset)
        self.at = at
        self.variables = variables
        self.branch = branch

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, for the triggerer."""
        return (
            "airflow_provider_icechunk.triggers.coverage.IcechunkCoverageTrigger",
            {
                "repository": self.repository,
                "dataset": self.dataset,
                "at": self.at,
                "variables": self.variables,
                "branch": self.branch,
                "icechunk_conn_id": self.icechunk_conn_id,
                "poll_interval": self.poll_interval,
                **STAMP,
            },
        )

    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The labels, if all of them are there."""
        return poll_labels(
            repository,
            IcechunkDataset.from_json(self.dataset),
            self.at,
            variables=self.variables,
            branch=self.branch,
        )
