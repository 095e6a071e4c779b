"""Wait until labels of a dataset are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset
from airflow_provider_icechunk.engine.pipelines.observe import poll_labels

from .base import PollingTrigger

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

    arguments: ClassVar[tuple[str, ...]] = ("dataset", "at", "variables", "branch")

    def __init__(
        self,
        *,
        dataset: IcechunkDataset | Mapping[str, Any],
        at: Mapping[str, Any] | str,
        variables: Sequence[str] | None = None,
        branch: str = "main",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset.to_json() if isinstance(dataset, IcechunkDataset) else dict(dataset)
        self.at = at
        self.variables = variables
        self.branch = branch

    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The labels, if all of them are there."""
        return poll_labels(
            repository,
            IcechunkDataset.from_json(self.dataset),
            self.at,
            variables=self.variables,
            branch=self.branch,
        )
