"""Arrays as declared in a pipeline, and making a session agree with the declaration.

A declaration means *at least this*: missing arrays are created, shorter ones grow, and nothing
ever shrinks. So it can be applied repeatedly, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import numpy as np
import zarr
from pydantic import Field, JsonValue, ValidationError, model_validator
from zarr.core.dtype import parse_data_type

from airflow_provider_icechunk.engine.closed import ClosedModel
from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore
from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError, Kind

_MOST_VALUES = 1_000_000
Length = Annotated[int, Field(ge=0)]
ChunkLength = Annotated[int, Field(ge=1)]
Number = int | float


class Steps(ClosedModel):
    """Evenly spaced values."""

    start: Number
    step: Number


class DeclaredArray(ClosedModel):
    """One array: its path, its shape, and perhaps its values (for small arrays, coordinates)."""

    path: str = Field(min_length=1)
    shape: tuple[Length, ...]
    chunks: tuple[ChunkLength, ...] | None = None
    """By default one chunk holds the array."""
    shards: tuple[ChunkLength, ...] | None = None
    dtype: str
    dimension_names: tuple[str | None, ...] | None = None
    fill_value: bool | Number | str | None = None
    attributes: dict[str, JsonValue] = Field(default={})
    values: tuple[Number, ...] | Steps | None = None
    """Written when the session is opened, so that the first commit has them."""

    @model_validator(mode="after")
    def _agrees(self) -> DeclaredArray:
        parts = (self.chunks, self.shards, self.dimension_names)
        if any(len(part) != len(self.shape) for part in parts if part is not None):
            raise ValueError("shape, chunks, shards and dimension_names differ in length")
        try:
            np.dtype(self.dtype)
        except TypeError:
            raise ValueError(f"{self.dtype!r} is not a NumPy data type") from None
        if self.values is None:
            return self
        if len(self.shape) != 1 or self.shape[0] > _MOST_VALUES:
            raise ValueError(f"values are for one dimension of at most {_MOST_VALUES} cells")
        if isinstance(self.values, tuple) and len(self.values) != self.shape[0]:
            raise ValueError(f"{len(self.values)} values for {self.shape[0]} cells")
        return self

    def chunk_shape(self) -> tuple[int, ...]:
        """The chunks, with the default filled in."""
        return self.chunks or tuple(max(length, 1) for length in self.shape)


def parse_arrays(values: Sequence[Mapping[str, Any]]) -> list[DeclaredArray]:
    """The declarations in plain dictionaries; names the first that is wrong and why."""
    arrays = []
    for number, value in enumerate(values):
        try:
            arrays.append(DeclaredArray.model_validate(value))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"])) or "the declaration"
            raise InvalidInputError(
                f"arrays[{number}]: {place}: {problem['msg']}", kind=Kind.INVALID_METADATA
            ) from None
    return arrays


def apply_arrays(store: IcechunkStore, arrays: Sequence[DeclaredArray]) -> None:
    """Create the arrays that are missing, grow those that are shorter, write declared values.

    An array that is longer than declared stays as it is.
    """
    if not arrays:
        return
    root = zarr.open_group(store, mode="a")
    for declared in arrays:
        array = apply_array(root, declared)
        if declared.values is not None:
            put_values(array, 0, _values(declared))


def apply_array(root: zarr.Group, declared: DeclaredArray) -> zarr.Array[Any]:
    """An array that holds at least what is declared; an error about a mismatch names both sides."""
    path = declared.path.strip("/")
    node = root.get(path)
    if node is None:
        return _create(root, path, declared)
    if not isinstance(node, zarr.Array):
        raise AlreadyExistsError(
            f"{declared.path} is already a group; choose another path", kind=Kind.NODE_EXISTS
        )
    differences = _differences(node, declared)
    if differences:
        raise AlreadyExistsError(
            f"{declared.path} exists with {'; '.join(differences)}: correct the declaration, or "
            "delete the array",
            kind=Kind.NODE_EXISTS,
        )
    shape = tuple(map(max, declared.shape, node.shape))
    if node.shape != shape:
        node.resize(shape)
    if node.attrs.asdict() != node.attrs.asdict() | declared.attributes:
        node.attrs.update(declared.attributes)
    return node


def put_values(array: zarr.Array[Any], start: int, values: np.ndarray[Any, Any]) -> bool:
    """Write values into a one-dimensional array unless they are already there; returns whether it
    wrote.

    Concurrent runs would conflict over chunks that are rewritten unchanged.
    """
    stop = start + len(values)
    found = np.asarray(array[start:stop])
    if found.dtype.hasobject or found.dtype.kind not in "biufcmM":
        same = found.tolist() == values.tolist()
    else:
        same = found.dtype == values.dtype and found.tobytes() == values.tobytes()
    # A missing chunk reads as fill values, which for readers is the same.
    if not same:
        # Two first runs write the same labels; with a record of where, a rebase can merge them.
        tree = cast("IcechunkStore", array.store).tree
        with tree.recording({f"/{array.path}": (((start, stop),),)}):
            array[start:stop] = values
    return not same


def _create(root: zarr.Group, path: str, declared: DeclaredArray) -> zarr.Array[Any]:
    return root.create_array(
        path,
        shape=declared.shape,
        chunks=declared.chunk_shape(),
        shards=declared.shards,
        dtype=declared.dtype,
        fill_value=_fill(declared),
        dimension_names=declared.dimension_names,
        attributes={**declared.attributes},
    )


def _differences(array: zarr.Array[Any], declared: DeclaredArray) -> list[str]:
    """The properties that cannot be made as declared: what the array has, and what was declared."""
    pairs: list[tuple[str, object, object]] = [
        ("dtype", _type_name(array.metadata.dtype), _wanted_type(declared)),
        ("dimensions", array.ndim, len(declared.shape)),
    ]
    if declared.chunks is not None:
        pairs.append(("chunks", array.chunks, declared.chunks))
    if declared.shards is not None:
        pairs.append(("shards", array.shards, declared.shards))
    if declared.dimension_names is not None:
        names = getattr(array.metadata, "dimension_names", None)
        found = (None,) * array.ndim if names is None else tuple(names)
        pairs.append(("dimension_names", found, declared.dimension_names))
    differences = [
        f"{what} {found}, declared as {wanted}" for what, found, wanted in pairs if found != wanted
    ]
    if not differences and declared.fill_value is not None:
        wanted = _fill(declared)
        if not _same_fill(array.fill_value, wanted):
            differences.append(f"fill_value {array.fill_value}, declared as {wanted}")
    return differences


def _wanted_type(declared: DeclaredArray) -> str:
    return _type_name(parse_data_type(declared.dtype, zarr_format=3))


def _type_name(kind: Any) -> str:
    """A data type as the document of an array spells it; the order of bytes is the codec's."""
    name = kind.to_json(zarr_format=3)
    return name if isinstance(name, str) else json.dumps(name)


def _fill(declared: DeclaredArray) -> Any:
    """The fill value; JSON has no NaN, so it is text there, as in Zarr's documents."""
    value = declared.fill_value
    if isinstance(value, str) and np.dtype(declared.dtype).kind in "fc":
        return np.dtype(declared.dtype).type(float(value.replace("Infinity", "inf")))
    return value


def _same_fill(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) or isinstance(found, str):
        return bool(found == wanted)
    return bool(found == wanted) or (found != found and wanted != wanted)


def _values(declared: DeclaredArray) -> np.ndarray[Any, np.dtype[Any]]:
    if isinstance(declared.values, Steps):
        numbers = np.arange(declared.shape[0])
        return (declared.values.start + declared.values.step * numbers).astype(declared.dtype)
    return np.array(declared.values, dtype=declared.dtype)
