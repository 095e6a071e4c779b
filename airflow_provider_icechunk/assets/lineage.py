"""What a task wrote, for OpenLineage: one dataset per repository, with arrays as fields.

The version of a dataset is a snapshot id. Only OpenLineage's provider calls this, so its packages
are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

_MOST_FIELDS = 1000
"""Arrays of an event; a repository may have many more."""


def lineage_of(hook: IcechunkHook, repository: str, snapshot_id: str | None) -> OperatorLineage:
    """The repository as input and output of the task that made a snapshot; nothing without one."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    if snapshot_id is None:
        return OperatorLineage()
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.generated import column_lineage_dataset as columns
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.output_statistics_output_dataset import (
        OutputStatisticsOutputDatasetFacet,
    )
    from openlineage.client.generated.schema_dataset import (
        SchemaDatasetFacet,
        SchemaDatasetFacetFields,
    )

    from airflow_provider_icechunk.engine.pipelines.lineage import lineage_of_commit

    facts = lineage_of_commit(hook.open(repository), snapshot_id)
    namespace, name = hook.place(repository).lineage()
    continued = set(facts.continued[:_MOST_FIELDS])
    outputs = OutputDataset(
        namespace=namespace,
        name=name,
        facets={
            "version": DatasetVersionDatasetFacet(datasetVersion=facts.snapshot_id),
            "schema": SchemaDatasetFacet(
                fields=[
                    SchemaDatasetFacetFields(
                        name=array.path,
                        type=array.data_type,
                        description=f"({', '.join(array.dimensions)})",
                    )
                    for array in facts.arrays[:_MOST_FIELDS]
                ]
            ),
            **(
                {
                    "columnLineage": columns.ColumnLineageDatasetFacet(
                        fields={
                            path: columns.Fields(
                                inputFields=[columns.InputField(namespace, name, path)]
                            )
                            for path in sorted(continued)
                        }
                    )
                }
                if continued
                else {}
            ),
        },
        outputFacets={
            "outputStatistics": OutputStatisticsOutputDatasetFacet(
                rowCount=facts.cells, size=facts.bytes, fileCount=facts.chunks
            )
        },
    )
    inputs = []
    if continued and facts.parent_id is not None:
        version = DatasetVersionDatasetFacet(datasetVersion=facts.parent_id)
        inputs = [InputDataset(namespace=namespace, name=name, facets={"version": version})]
    return OperatorLineage(inputs=inputs, outputs=[outputs])
