"""Wait until labels of a dataset are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.triggers.coverage import IcechunkCoverageTrigger

from .presence import PresenceSensor

if TYPE_CHECKING:
    from airflow_provider_icechunk.dataset import IcechunkDataset


class IcechunkCoverageSensor(PresenceSensor):
    """Wait until labels of a dataset are there, such as all days of March.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
        from airflow_provider_icechunk.sensors.coverage import IcechunkCoverageSensor

        weather = IcechunkDataset(
            "weather",
            dims={"time": Growing(start="2026-01-01", every="1D")},
            variables={"t2m": Variable("float32", ("time",))},
        )

        with DAG("monthly") as dag:
            IcechunkCoverageSensor(
                task_id="march",
                dataset=weather,
                at={"time": {"from": "2026-03-01", "until": "2026-04-01"}},
            )

    Returns `snapshot_id`, `branch`, `dim`, `wanted`, how many labels were waited for, and
    `present`, the first and the last label of each run of labels.

    :param dataset: the declaration, an IcechunkDataset.
    :param at: the labels: one, a list, or `{"from": first, "until": end}` without the end.
        (templated)
    :param variables: names of the variables that must have them; by default all. (templated)
    :param repository: path below the root of the connection; by default that of the dataset.
        (templated)
    :param branch: the branch to look at; by default that of the dataset. (templated)
    :param icechunk_conn_id: the connection; by default that of the dataset.
    :param deferrable: whether the triggerer waits instead of a worker.
    """

    template_fields = ("repository", "branch", "at", "variables")
    template_fields_renderers: ClassVar[dict[str, str]] = {"at": "json"}

    def __init__(
        self,
        *,
        dataset: IcechunkDataset,
        at: Mapping[str, Any] | str,
        variables: Sequence[str] | None = None,
        repository: str | None = None,
        branch: str | None = None,
        icechunk_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            repository=dataset.repository if repository is None else repository,
            icechunk_conn_id=icechunk_conn_id or dataset.icechunk_conn_id,
            **kwargs,
        )
        self.dataset = dataset
        self.at = at
        self.variables = variables
        self.branch = branch or dataset.branch

    def make_trigger(self) -> IcechunkCoverageTrigger:
        """The trigger that waits for the same labels."""
        return IcechunkCoverageTrigger(
            dataset=self.dataset.on(coords={}).to_json(),
            at=self.at,
            variables=self.variables,
            branch=self.branch,
            **self.polling(),
        )
