"""The place of a run in its arrays, if its session was opened for a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_icechunk.engine.arrays.regions import Span, by_name, dimension_names
from airflow_provider_icechunk.engine.datasets.dataset import Placement
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.spark.runtime import open_array


def place_of_run(
    view: Session, arrays: Sequence[str], placement: Placement | None
) -> dict[str, Span]:
    """The run's part of some arrays; nothing means all of them."""
    if placement is None:
        return {}
    names = {name for path in arrays for name in dimension_names(open_array(view, path))}
    return {dim: span for dim, span in placement.regions.items() if dim in names}


def place_of_write(
    view: Session,
    arrays: Sequence[str],
    placement: Placement | None,
    region: Mapping[str, Span],
) -> Mapping[str, Span]:
    """A region, by name or number of dimension; along the others, the run's part."""
    place = place_of_run(view, arrays, placement)
    if not place or not region:
        return region or place
    names = [(path, dimension_names(open_array(view, path))) for path in arrays]
    return {**place, **by_name(region, names)}


def labels_of_run(placement: Placement | None) -> dict[str, tuple[str, ...]]:
    """The labels that a run writes, for the record of its commit."""
    if placement is None:
        return {}
    return {dim: tuple(map(str, labels)) for dim, labels in placement.labels.items()}
