"""A declaration as stored in a session: how many steps were dropped from the front of its growing
dimensions.

`start` of a dimension never moves. The number is an attribute of the stored coordinate, set in the
same commit as the cut, so a position always fits the version it is computed for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.exceptions import AlreadyExistsError, FormatError, Kind

from .dataset import IcechunkDataset, Placement
from .growing import FIRST_STEP, MOST_STEPS, Growing

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.format.model import Node
    from airflow_provider_icechunk.engine.sessions.session import Session

DROPPED_KEY = "airflow_provider_icechunk.dropped"
"""Snapshot metadata of a commit that shifted arrays: by how many positions, along which axis."""
_VERSION = 1
Drops = dict[str, tuple[int, int]]
"""By path of the array: the number of the dimension, and how many positions were dropped from its
front.
"""


def as_stored(session: Session, dataset: IcechunkDataset) -> IcechunkDataset:
    """The dataset, with positions counted from the first label that the session still has."""
    moved = {}
    for name, dim in dataset.growing.items():
        first = _checked_first_step(session, f"/{dataset.path(name)}", dim) if dim.is_regular else 0
        if first != dim.first_step:
            moved[name] = replace(dim, first_step=first)
    return dataset.on(dims={**dataset.dims, **moved}) if moved else dataset


def placed_as_stored(dataset: IcechunkDataset, placement: Placement) -> Placement:
    """Where the labels of a placement are in a dataset that `as_stored` made."""
    regions, lengths = dict(placement.regions), dict(placement.lengths)
    for name, dim in dataset.growing.items():
        labels = placement.labels.get(name)
        if dim.is_regular and labels:
            start = dim.position(labels[0], name)
            regions[name] = (start, start + len(labels))
            lengths[name] = start + len(labels)
    return replace(placement, regions=regions, lengths=lengths)


def first_step(coordinate: Node | None) -> int:
    """How many steps were dropped from the front of the dimension of a stored coordinate, if it
    exists.
    """
    found = _attributes(coordinate).get(FIRST_STEP, 0)
    if type(found) is not int or not 0 <= found < MOST_STEPS:
        path = "" if coordinate is None else coordinate.path
        raise FormatError(f"{path}: the attribute {FIRST_STEP} is {found!r}, not a number of steps")
    return found


def _attributes(node: Node | None) -> Mapping[str, Any]:
    if node is None or node.is_group:
        return {}
    return json.loads(node.user_data).get("attributes") or {}


def _checked_first_step(session: Session, path: str, dim: Growing) -> int:
    """Where the axis begins, if the stored coordinate counts the same steps."""
    node = session.tree.node(path)
    found = first_step(node)
    units, declared = _attributes(node).get("units"), dim.cf_attrs()["units"]
    if found and units != declared:
        raise AlreadyExistsError(
            f"{path} counts {units}, declared as {declared}: `start` stays what it was when labels "
            f"are dropped, and the {found} steps that were are known from {path}",
            kind=Kind.NODE_EXISTS,
        )
    return found


def drops_to_json(drops: Drops) -> dict[str, Any]:
    """For the metadata of a snapshot."""
    return {"version": _VERSION, "arrays": {path: list(one) for path, one in drops.items()}}


def read_drops(metadata: Mapping[str, Any]) -> Drops:
    """By how much a commit shifted arrays; unreadable metadata counts as nothing."""
    value = metadata.get(DROPPED_KEY)
    if not isinstance(value, Mapping) or value.get("version") != _VERSION:
        return {}
    arrays = value.get("arrays")
    if not isinstance(arrays, Mapping):
        return {}
    return {
        str(path): (one[0], one[1])
        for path, one in arrays.items()
        if isinstance(one, list | tuple) and len(one) == 2 and all(type(n) is int for n in one)
    }


def joined_drops(commits: Iterable[Mapping[str, Any]]) -> Drops:
    """By how much several commits shifted arrays together, by their metadata."""
    total: Drops = {}
    for metadata in commits:
        for path, (axis, count) in read_drops(metadata).items():
            total[path] = (axis, total.get(path, (axis, 0))[1] + count)
    return {path: one for path, one in total.items() if one[1]}


def reverted_drops(metadata: Mapping[str, Any]) -> Drops:
    """By how much positions shift when a commit is reverted."""
    return {path: (axis, -count) for path, (axis, count) in read_drops(metadata).items()}
