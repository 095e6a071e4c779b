"""The place of a run in a dataset, as Xarray: its current values, and what a run writes there.

The result is checked against the declaration before anything is written, because a field that is
upside down or a day late would fit just as well as the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.xarray_io.datasets import (
    as_dataset,
    open_dataset,
    to_icechunk,
    xarray,
)
from airflow_provider_icechunk.exceptions import InvalidInputError

from .dataset import IcechunkDataset, Placement, Variable

_SHOWN = 5
_PACKING = ("scale_factor", "add_offset")


def open_place(session: Session, dataset: IcechunkDataset, placement: Placement) -> Any:
    """The part of the declared variables that belongs to a run, as a `Dataset`.

    It has the labels and the values stored there now, which are read when used.
    """
    found = open_dataset(session, dataset.group or None)
    part = found[[name for name in dataset.variables if name in found.variables]]
    return part.isel({dim: slice(*span) for dim, span in placement.regions.items()})


def write_place(
    session: Session, dataset: IcechunkDataset, placement: Placement, obj: Any
) -> dict[str, Any]:
    """Write a `Dataset` at the place of a run; returns what was written, as small JSON.

    It may contain only some of the declared variables, and omit a dimension along which the run has
    one label. Its labels must be those of the place.
    """
    given = as_dataset(obj)
    if not given.data_vars:
        raise InvalidInputError(
            f"the Dataset for {dataset.repository!r} has no variables: return at least one of "
            f"{_listed(list(dataset.variables))}"
        )
    place = open_place(session, dataset, placement)
    variables = {
        str(name): _fitting(str(name), found, dataset, place)
        for name, found in given.data_vars.items()
    }
    whole = xarray().Dataset(variables)
    spans = {dim: placement.regions.get(str(dim), (0, size)) for dim, size in whole.sizes.items()}
    region = {dim: slice(*span) for dim, span in spans.items()}
    to_icechunk(whole, session, group=dataset.group or None, region=region)
    return {
        "variables": sorted(variables),
        "sizes": {str(name): int(size) for name, size in whole.sizes.items()},
    }


def _fitting(name: str, found: Any, dataset: IcechunkDataset, place: Any) -> Any:
    """A variable as declared, without labels; refuses one for another place."""
    declared = dataset.variables.get(name)
    if declared is None:
        raise InvalidInputError(
            f"{name!r} is not a variable of {dataset.repository!r}, which has "
            f"{_listed(list(dataset.variables))}: declare it, or leave it out"
        )
    for dim in declared.dims:
        if dim not in found.dims and place.sizes[dim] == 1:
            found = found.drop_vars(dim, errors="ignore").expand_dims(dim)
    if set(found.dims) != set(declared.dims):
        raise InvalidInputError(
            f"{name!r} has the dimensions {_listed(found.dims)}, declared are "
            f"{_listed(declared.dims)}"
        )
    for dim in declared.dims:
        _check_labels(name, dim, found, place)
    return xarray().Variable(declared.dims, _cast(name, found.transpose(*declared.dims), declared))


def _check_labels(name: str, dim: str, found: Any, place: Any) -> None:
    wanted = int(place.sizes[dim])
    if int(found.sizes[dim]) != wanted:
        raise InvalidInputError(
            f"{name!r} has {found.sizes[dim]} steps along {dim!r}, but this run has {wanted}"
            + (f": {_shown(place.indexes[dim])}" if dim in place.indexes else "")
        )
    if dim not in found.indexes or dim not in place.indexes:
        return
    own, stored = found.indexes[dim], place.indexes[dim]
    if list(own) == list(stored):
        return
    numbers = np.asarray(own), np.asarray(stored)
    if all(one.dtype.kind in "fiu" for one in numbers) and np.allclose(*numbers, rtol=1e-6, atol=0):
        return
    raise InvalidInputError(
        f"{name!r} has the labels {_shown(own)} along {dim!r}, but this run belongs at "
        f"{_shown(stored)}: select or sort the data first"
    )


def _cast(name: str, found: Any, declared: Variable) -> Any:
    """The values in the declared type, unless Xarray has to pack them first."""
    wanted = np.dtype(declared.dtype)
    if any(key in declared.attrs for key in _PACKING) or wanted.kind in "MmUST":
        return found.data
    if not np.can_cast(found.dtype, wanted, casting="same_kind"):
        raise InvalidInputError(
            f"{name!r} holds {found.dtype}, declared as {declared.dtype}: convert it with "
            f"`.astype({declared.dtype!r})`"
        )
    return found.astype(wanted, copy=False).data


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _shown(labels: Any) -> str:
    texts = [str(label) for label in labels[:_SHOWN]]
    return ", ".join(texts) + (f", ... ({len(labels)})" if len(labels) > _SHOWN else "")
