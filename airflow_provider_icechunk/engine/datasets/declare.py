"""Make a session hold at least what a dataset declares, up to the place of a run.

Created if missing, extended if short, never cut. All arrays along a growing dimension are kept at
one length, because Xarray cannot open a group in which they differ, and the coordinate is filled
up to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import zarr
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.declared import DeclaredArray, apply_array, put_values
from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError, Kind

from .dataset import Coordinate, IcechunkDataset, Placement
from .growing import Growing, Label
from .stored import as_stored, placed_as_stored

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.sessions.session import Session

Array: TypeAlias = "zarr.Array[Any]"
_SHOWN = 10


def ensure(session: Session, dataset: IcechunkDataset, placement: Placement) -> Placement:
    """Make the session hold at least the dataset, as long as the placement needs.

    Returns the placement, including the positions of labels without steps: found in the stored
    coordinate, or appended to it. If labels were dropped from the front of a dimension, its
    positions count from the rest. A mismatch is an error that names both sides, and then nothing
    may be committed from this session.
    """
    dataset = as_stored(session, dataset)
    placement = placed_as_stored(dataset, placement)
    root = zarr.open_group(session.store, mode="a")
    group = root.require_group(dataset.group) if dataset.group else root
    _put_attributes(group, dataset)
    for name, dim in dataset.growing.items():
        if not dim.is_regular:
            placement = _place_labels(session, group, name, dim, placement)
    lengths = _lengths(group, dataset, placement)
    for name, variable in dataset.variables.items():
        declared = DeclaredArray(
            path=name,
            shape=tuple(lengths[dim] for dim in variable.dims),
            chunks=dataset.chunks_of(variable),
            shards=variable.shards,
            dtype=variable.dtype,
            dimension_names=variable.dims,
            fill_value=variable.fill_value,
            attributes=dict(variable.attrs),
        )
        _refuse_other_lengths(group, dataset, declared)
        apply_array(group, declared)
    for name, coordinate in dataset.coordinates.items():
        _put_coordinate(group, dataset, name, coordinate, lengths[name])
    for name, dim in dataset.growing.items():
        if dim.is_regular:
            _fill_steps(group, name, dim, placement.regions[name], lengths[name])
    _grow_others(group, dataset, lengths)
    labels = {
        name: [str(label) for label in found] for name, found in placement.labels.items() if found
    }
    with session.recording({}, labels=labels):
        pass  # The commit of this session records its labels.
    return replace(placement, lengths=lengths)


def coordinate_values(dim: Growing, start: int, stop: int) -> NDArray[np.int64]:
    """The stored values of the coordinate of a dimension with steps at some positions."""
    step = dim.fixed_offset()
    if step is not None:
        return np.arange(start + dim.first_step, stop + dim.first_step, dtype=np.int64) * step
    return np.array([dim.offset(place) for place in range(start, stop)], np.int64)


def stored_labels(array: Array, dim: Growing) -> list[Label]:
    """The labels that the coordinate of a dimension without steps holds, in order."""
    values = array[:]
    if dim.dtype == "datetime64[s]":
        times = np.asarray(values, np.int64).astype("M8[s]")
        return [str(text) for text in np.datetime_as_string(times)]
    found: list[Label] = np.asarray(values).tolist()
    return found


def _lengths(group: zarr.Group, dataset: IcechunkDataset, placement: Placement) -> dict[str, int]:
    """The required length of every dimension; never less than the current one."""
    lengths = dict(placement.lengths)
    for array in _arrays(group).values():
        for dim, length in zip(_dims(array), array.shape, strict=True):
            if isinstance(dim, str) and isinstance(dataset.dims.get(dim), Growing):
                lengths[dim] = max(lengths[dim], length)
    return lengths


def _put_attributes(group: zarr.Group, dataset: IcechunkDataset) -> None:
    found = group.attrs.asdict()
    if found != found | dict(dataset.attrs):
        group.attrs.update(dict(dataset.attrs))


def _refuse_other_lengths(
    group: zarr.Group, dataset: IcechunkDataset, declared: DeclaredArray
) -> None:
    """Only growing dimensions may differ from the declaration."""
    node = group.get(declared.path)
    if not isinstance(node, zarr.Array) or _dims(node) != declared.dimension_names:
        return  # Missing, or refused by `apply_array`.
    for dim, found, wanted in zip(_dims(node), node.shape, declared.shape, strict=True):
        if found != wanted and not isinstance(dataset.dims[str(dim)], Growing):
            raise AlreadyExistsError(
                f"{_shown(group, declared.path)} exists with length {found} along {dim!r}, "
                f"declared as {wanted}: correct the declaration, or delete the array",
                kind=Kind.NODE_EXISTS,
            )


def _put_coordinate(
    group: zarr.Group, dataset: IcechunkDataset, name: str, coordinate: Coordinate, length: int
) -> None:
    declared = DeclaredArray(
        path=name,
        shape=(length,),
        dtype=str(coordinate.dtype),
        dimension_names=(name,),
        attributes=dict(coordinate.attrs),
    )
    _refuse_other_lengths(group, dataset, declared)
    is_new = group.get(name) is None
    array = apply_array(group, declared)
    if coordinate.values is None:
        numbers = np.arange(length) * coordinate.step + coordinate.start  # type: ignore[operator]
        values = numbers.astype(array.dtype)
    else:
        values = np.array(coordinate.values, dtype=array.dtype)
    if is_new:
        put_values(array, 0, values)
        return
    found = np.asarray(array[:])
    different = np.flatnonzero(found != values)
    if len(different):
        place = int(different[0])
        raise AlreadyExistsError(
            f"{_shown(group, name)} holds {found[place]} at position {place}, declared as "
            f"{values[place]}: correct the declaration, or delete the array",
            kind=Kind.NODE_EXISTS,
        )


def _fill_steps(
    group: zarr.Group, name: str, dim: Growing, region: tuple[int, int], length: int
) -> None:
    """The labels of a dimension with steps, up to its whole length."""
    before = group.get(name)
    had = before.shape[0] if isinstance(before, zarr.Array) and before.ndim == 1 else 0
    array = _axis(group, name, dim, length)
    if had < length:
        put_values(array, had, coordinate_values(dim, had, length))
    # Existing labels may come from a writer that counts differently, or be missing.
    start, stop = region[0], min(region[1], had)
    found, wanted = np.asarray(array[start:stop]), coordinate_values(dim, start, stop)
    different = np.flatnonzero(found != wanted)
    if not len(different):
        return
    place = start + int(different[0])
    if np.any(found[different] != array.fill_value):
        raise AlreadyExistsError(
            f"{_shown(group, name)} holds {found[place - start]} at place {place}, and by the "
            f"declaration {dim.text(dim.label(place))} belongs there, which is "
            f"{wanted[place - start]} {dim.cf_attrs()['units']}: correct `start` and `every`",
            kind=Kind.NODE_EXISTS,
        )
    put_values(array, 0, coordinate_values(dim, 0, length))


def _axis(group: zarr.Group, name: str, dim: Growing, length: int) -> Array:
    """The coordinate of a growing dimension, at least as long as needed."""
    wanted = dim.cf_attrs()
    node = group.get(name)
    if isinstance(node, zarr.Array):
        found = node.attrs.asdict()
        for key in ("units", "calendar"):
            if key in wanted and found.get(key) != wanted[key]:
                raise AlreadyExistsError(
                    f"{_shown(group, name)} counts {key} {found.get(key)!r}, declared as "
                    f"{wanted[key]!r}: correct the declaration, or delete the array",
                    kind=Kind.NODE_EXISTS,
                )
    is_time = dim.is_regular or dim.dtype == "datetime64[s]"
    declared = DeclaredArray(
        path=name,
        shape=(length,),
        # An existing coordinate keeps its chunks.
        chunks=None if node is not None else (dim.coordinate_chunk,),
        dtype="int64" if is_time else str(dim.dtype),
        dimension_names=(name,),
        attributes=wanted,
    )
    return apply_array(group, declared)


def _place_labels(
    session: Session, group: zarr.Group, name: str, dim: Growing, placement: Placement
) -> Placement:
    """Find labels in the stored coordinate, and append new ones."""
    wanted = placement.labels[name]
    node = group.get(name)
    stored = stored_labels(node, dim) if isinstance(node, zarr.Array) else []
    _refuse_unlabelled(group, name, len(stored))
    known: dict[Label, int] = {}
    for place, label in enumerate(stored):
        known.setdefault(label, place)
    missing = [label for label in wanted if label not in known]
    known |= {label: place for place, label in enumerate(missing, len(stored))}
    places = [known[label] for label in wanted] or [len(stored)]
    if places != list(range(places[0], places[0] + len(places))):
        raise InvalidInputError(
            f"the labels {wanted[:_SHOWN]} of {name!r} belong at the places {places[:_SHOWN]}, "
            "which are not one block: write each block in a run of its own"
        )
    length = len(stored) + len(missing)
    array = _axis(group, name, dim, length)
    if missing:
        put_values(array, len(stored), _encoded(missing, dim))
        # Others may append at the same time: then a rebase finds another position for these.
        session.tree.appended(_shown(group, name), len(stored), length)
    return replace(
        placement,
        regions=placement.regions | {name: (places[0], places[0] + len(wanted))},
        lengths=placement.lengths | {name: length},
    )


def _refuse_unlabelled(group: zarr.Group, name: str, length: int) -> None:
    for path, array in _arrays(group).items():
        for dim, found in zip(_dims(array), array.shape, strict=True):
            if dim == name and found > length:
                raise AlreadyExistsError(
                    f"{_shown(group, path)} is {found} long along {name!r}, and there are "
                    f"{length} labels: somebody made it longer without labels",
                    kind=Kind.NODE_EXISTS,
                )


def _encoded(labels: Iterable[Label], dim: Growing) -> NDArray[Any]:
    if dim.dtype == "datetime64[s]":
        return np.array(list(labels), "M8[s]").astype(np.int64)
    if dim.dtype == "str":
        return np.array(list(labels), np.dtypes.StringDType())
    return np.array(list(labels), dim.dtype)


def _grow_others(group: zarr.Group, dataset: IcechunkDataset, lengths: dict[str, int]) -> None:
    """Undeclared arrays along the same dimensions keep the same length."""
    for array in _arrays(group).values():
        shape = tuple(
            max(length, lengths[dim])
            if isinstance(dim, str) and isinstance(dataset.dims.get(dim), Growing)
            else length
            for dim, length in zip(_dims(array), array.shape, strict=True)
        )
        if shape != array.shape:
            array.resize(shape)


def _arrays(group: zarr.Group) -> dict[str, Array]:
    return dict(group.arrays())


def _dims(array: Array) -> tuple[str | None, ...]:
    names = getattr(array.metadata, "dimension_names", None)
    return (None,) * array.ndim if names is None else tuple(names)


def _shown(group: zarr.Group, name: str) -> str:
    return f"{group.name.rstrip('/')}/{name}"
