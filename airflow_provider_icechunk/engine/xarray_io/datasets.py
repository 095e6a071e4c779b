"""Xarray over sessions: open a snapshot as a `Dataset`, and write a `Dataset` into a session.

Xarray is an extra. It is imported by the functions that need it, which say so if it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_icechunk.engine.format.names import base_name, parent_path
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.tree.boxes import Boxes
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    Kind,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)

from .dask_writes import is_computed_elsewhere, write_by_workers

ZarrWriteModes = Literal["w", "w-", "a", "a-", "r+", "r"]
Region = Mapping[str, slice | Literal["auto"]] | Literal["auto"] | None

_RANGE = re.compile(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?")


def xarray() -> Any:
    """The module; an error that names the extra if it is not installed."""
    try:
        import xarray as module
    except ImportError as error:
        raise UnsupportedError(
            "Xarray is not installed here; install the extra: "
            "pip install 'airflow-provider-icechunk[xarray]'"
        ) from error
    return module


def is_dataset(value: object) -> bool:
    """Whether something is a `Dataset` or a `DataArray`. Does not import Xarray to find out."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__}
    return bool(kinds & {"xarray.core.dataset.Dataset", "xarray.core.dataarray.DataArray"})


def open_dataset(session: Any, group: str | None = None, **options: Any) -> Any:
    """A session's group as a `Dataset`; values are read when used.

    :param options: options of `xarray.open_zarr`. `chunks` is `None` here, so that Dask is not
        needed; `chunks={}` gives Dask arrays.
    """
    module = xarray()
    given = {"chunks": None, **options, "zarr_format": 3, "consolidated": False}
    try:
        return module.open_zarr(session.store, group=group, **given)
    except FileNotFoundError as error:
        where = f"/{(group or '').strip('/')}"
        raise NotFoundError(
            f"snapshot {session.snapshot_id} has no group {where!r}: nothing was written there "
            "yet, or the group has another name",
            kind=Kind.NODE_NOT_FOUND,
        ) from error


def to_icechunk(
    obj: Any,
    session: Any,
    *,
    group: str | None = None,
    mode: ZarrWriteModes | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Region = None,
    encoding: Mapping[Any, Any] | None = None,
    chunkmanager_store_kwargs: MutableMapping[Any, Any] | None = None,
    split_every: int | None = None,
) -> None:
    """Write a `Dataset` or `DataArray` into a session, as its `to_zarr` would. Commits nothing.

    Dask arrays are computed by Dask's scheduler. Workers in other processes write to forks of the
    session, which are merged into it before the call returns.

    :param chunkmanager_store_kwargs: options of Dask, such as another `scheduler`.
    :param split_every: how many results of such workers a task merges.
    :param mode: as in `to_zarr`: `w-` creates, `w` replaces the group, `a` replaces the variables
        that are given, `r+` changes values only. By default `r+` with `region`, `a` with
        `append_dim`, and otherwise `w-`.
    """
    xarray()
    if not is_dataset(obj):
        raise InvalidInputError(
            f"only a Dataset or a DataArray can be written, not a {type(obj).__name__}"
        )
    if session.read_only:
        raise ReadOnlyError("this session is read-only; open one with `writable_session`")
    options = dict(chunkmanager_store_kwargs or {})
    place = {
        "group": group,
        "mode": mode,
        "safe_chunks": safe_chunks,
        "align_chunks": align_chunks,
        "append_dim": append_dim,
        "zarr_format": 3,
        "consolidated": False,
    }
    codes = None if encoding is None else dict(encoding)
    where = _written(obj, session, group, append_dim, region)
    if is_computed_elsewhere(obj, options):
        write_by_workers(obj, session, place, region, codes, split_every, options)
    else:
        with session.tree.recording(where.boxes):
            obj.to_zarr(
                session.store,
                region=region,
                encoding=codes,
                chunkmanager_store_kwargs=options or {"scheduler": "threads"},
                **place,
            )
    if where.append is not None:
        session.tree.appended(*where.append)


@dataclass(frozen=True, slots=True)
class _Written:
    """Where a `Dataset` goes, as far as that is known in advance."""

    boxes: dict[str, Boxes]
    """By path of the array."""
    append: tuple[str, int, int] | None = None
    """Path of the coordinate to which it is appended, its old length, and its new end."""


def _written(
    obj: Any, session: Any, group: str | None, append_dim: Hashable | None, region: Region
) -> _Written:
    """The cells that will be written, so that a rebase can merge them with those of others."""
    path = "/" + (group or "").strip("/")
    prefix = path.rstrip("/")
    if hasattr(obj, "data_vars"):
        variables = dict(obj.variables)
    else:
        variables = {name: one.variable for name, one in obj.coords.items()}
        variables[obj.name] = obj.variable
    there = _lengths(session, path)
    places = _places(obj, session, group, region, there)
    if places is None:
        return _Written({})
    boxes: dict[str, Boxes] = {}
    for name, variable in variables.items():
        spans = []
        for dim, size in zip(variable.dims, variable.shape, strict=True):
            start = there.get((str(name), dim), 0) if dim == append_dim else 0
            spans.append(places.get(dim, (start, start + int(size))))
        boxes[f"{prefix}/{name}"] = (tuple(spans),)
    lengths = {length for (_, dim), length in there.items() if dim == append_dim}
    if append_dim is None or len(lengths) > 1:
        return _Written(boxes)
    start = max(lengths, default=0)
    return _Written(boxes, (f"{prefix}/{append_dim}", start, start + int(obj.sizes[append_dim])))


def _lengths(session: Any, group: str) -> dict[tuple[str, str | None], int]:
    """How long the arrays of a group are, by name and dimension."""
    found: dict[tuple[str, str | None], int] = {}
    for node in session.tree.nodes(group):
        if node.array is not None and parent_path(node.path) == group:
            document = array_document(node)
            names = document.dimension_names or ()
            pairs = zip(names, document.shape, strict=False)
            found |= {(base_name(node.path), dim): length for dim, length in pairs}
    return found


def _places(
    obj: Any,
    session: Any,
    group: str | None,
    region: Region,
    there: Mapping[tuple[str, str | None], int],
) -> dict[Hashable, tuple[int, int]] | None:
    """The positions of a region; `None` if they cannot be found, which Xarray refuses."""
    if region is None:
        return {}
    given: Mapping[Any, Any] = dict.fromkeys(obj.dims, "auto") if region == "auto" else region
    lengths = {dim: length for (_, dim), length in there.items()}
    stored = open_dataset(session, group) if "auto" in given.values() else None
    places: dict[Hashable, tuple[int, int]] = {}
    for dim, part in given.items():
        if isinstance(part, slice):
            if dim not in lengths:
                return None
            start, stop, _ = part.indices(lengths[dim])
            places[dim] = (start, max(start, stop))
        elif stored is not None and dim in obj.indexes and dim in stored.indexes:
            index = stored.indexes[dim]
            if not index.is_unique:
                return None
            found = index.get_indexer(obj.indexes[dim]).tolist()
            if not found or found[0] < 0 or found != list(range(found[0], found[0] + len(found))):
                return None
            places[dim] = (found[0], found[-1] + 1)
    return places


def parse_region(region: object) -> Region:
    """A region as written in a DAG: slices, pairs, numbers or texts such as `3:5`, `auto`.

    A number is one position; texts come from templates.
    """
    if region is None or region == "":
        return None
    if region == "auto":
        return "auto"
    if not isinstance(region, Mapping):
        raise InvalidInputError(
            f"region must be 'auto' or a mapping from dimensions to positions, not {region!r}"
        )
    return {str(name): _place(str(name), value) for name, value in region.items()}


def _place(name: str, value: object) -> slice | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, slice):
        if value.step in (None, 1):
            return value
    elif isinstance(value, bool):
        pass
    elif isinstance(value, int):
        if value >= 0:
            return slice(value, value + 1)
    elif isinstance(value, str):
        found = _RANGE.fullmatch(value)
        if found is not None:
            start = int(found[1])
            return slice(start, start + 1 if found[2] is None else int(found[2]))
    elif isinstance(value, list | tuple) and len(value) == 2:
        start, stop = value
        if all(type(one) is int and one >= 0 for one in (start, stop)) and start <= stop:
            return slice(start, stop)
    raise InvalidInputError(
        f"region[{name!r}] is {value!r}: give a slice, [start, stop], one position, a string such "
        "as '3:5', or 'auto' to find the position by the coordinate"
    )


def write_dataset(
    session: Any,
    obj: Any,
    *,
    group: str | None = None,
    region: object = None,
    mode: ZarrWriteModes | None = None,
    append_dim: str | None = None,
    encoding: Mapping[Any, Any] | None = None,
) -> dict[str, Any]:
    """Write a `Dataset` that a task returned; returns what was written, as small JSON.

    With a region, variables without any of its dimensions are left as stored. Without a region and
    a mode, variables are created or replaced, and others stay, so repeating it changes nothing.
    """
    dataset = as_dataset(obj)
    where = parse_region(region)
    if where is not None and append_dim is not None:
        raise InvalidInputError("give region or append_dim, not both")
    if where is not None:
        # To Xarray, `auto` alone means all dimensions; those without an index are selected in
        # full.
        names = set(dataset.dims) if where == "auto" else set(where)
        unknown = sorted(map(str, names - set(dataset.dims)))
        if unknown:
            raise InvalidInputError(
                f"region names {', '.join(unknown)}, but the dimensions are: "
                f"{', '.join(map(str, dataset.dims))}"
            )
        dataset = dataset.drop_vars(
            [name for name, one in dataset.variables.items() if not names & set(one.dims)]
        )
    elif mode is None and append_dim is None:
        mode = "a"
    to_icechunk(
        dataset,
        session,
        group=group,
        mode=mode,
        append_dim=append_dim,
        region=where,
        encoding=encoding,
    )
    return {
        "variables": sorted(map(str, dataset.data_vars)),
        "sizes": {str(name): int(size) for name, size in dataset.sizes.items()},
    }


def as_dataset(obj: Any) -> Any:
    """A `Dataset` as it is, or one of a single `DataArray`, which needs a name."""
    if hasattr(obj, "data_vars"):
        return obj
    if obj.name is None:
        raise InvalidInputError(
            "the DataArray has no name, so it has no path: name it with `.rename('...')`"
        )
    return obj.to_dataset()
