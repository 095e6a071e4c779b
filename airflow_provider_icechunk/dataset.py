"""Declare the data of a pipeline once: dimensions that grow, variables, coordinates.

Importing this loads the standard library only, so that it is safe wherever DAGs are parsed.
"""

from airflow_provider_icechunk.engine.datasets.dataset import (
    Coordinate,
    Growing,
    IcechunkDataset,
    Placement,
    Variable,
)

__all__ = ["Coordinate", "Growing", "IcechunkDataset", "Placement", "Variable"]
