"""Arrays as they are declared in a pipeline, and making a session agree with the declaration.

Declaring is repeatable: what is there already is kept if it fits, and nothing is ever shrunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import zarr
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError, Kind
from airflow_provider_icechunk.zarr_store.store import IcechunkStore

_MOST_VALUES = 1_000_000
Length = Annotated[int, Field(ge=0)]
ChunkLength = Annotated[int, Field(ge=1)]
Number = int | float


class Steps(BaseModel):
    """Evenly spaced values."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: Number
    step: Number


class DeclaredArray(BaseModel):
    """One array: where it is, its shape, and perhaps its values (for small arrays, coordinates)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1)
    shape: tuple[Length, ...]
    chunks: tuple[ChunkLength, ...] | None = None
    """By default one chunk holds the array."""
    dtype: str
    dimension_names: tuple[str | None, ...] | None = None
    fill_value: bool | Number | str | None = None
    attributes: dict[str, JsonValue] = {}
    values: tuple[Number, ...] | Steps | None = None
    """Written when the session is opened, so that the first commit has them."""

    @model_validator(mode="after")
    def _agrees(self) -> DeclaredArray:
        ranks = [len(part) for part in (self.chunks, self.dimension_names) if part is not None]
        if any(rank != len(self.shape) for rank in ranks):
            raise ValueError("shape, chunks and dimension_names differ in length")
        try:
            np.dtype(self.dtype)
        except TypeError:
            raise ValueError(f"{self.dtype!r} is no data type of NumPy") from None
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


def apply_arrays(
    store: IcechunkStore, arrays: Sequence[DeclaredArray], *, may_be_longer: bool = False
) -> None:
    """Create the arrays that are missing, grow those that are shorter, write declared values.

    An array that is longer than declared is refused, or with `may_be_longer` kept as it is.
    """
    if not arrays:
        return
    root = zarr.open_group(store, mode="a")
    for declared in arrays:
        path = declared.path.strip("/")
        node = root.get(path)
        if node is None:
            array = _create(root, path, declared)
        elif isinstance(node, zarr.Array):
            array = _adopt(node, declared, may_be_longer=may_be_longer)
        else:
            raise AlreadyExistsError(
                f"{declared.path} is a group already; choose another path", kind=Kind.NODE_EXISTS
            )
        if declared.values is not None:
            array[: declared.shape[0]] = _values(declared)


def _create(root: zarr.Group, path: str, declared: DeclaredArray) -> zarr.Array[Any]:
    return root.create_array(
        path,
        shape=declared.shape,
        chunks=declared.chunk_shape(),
        dtype=declared.dtype,
        fill_value=declared.fill_value,
        dimension_names=declared.dimension_names,
        attributes={**declared.attributes},
    )


def _adopt(
    array: zarr.Array[Any], declared: DeclaredArray, *, may_be_longer: bool
) -> zarr.Array[Any]:
    found = (np.dtype(array.dtype), array.ndim)
    wanted = (np.dtype(declared.dtype), len(declared.shape))
    if found != wanted or (declared.chunks is not None and array.chunks != declared.chunks):
        raise AlreadyExistsError(
            f"{declared.path} exists with dtype {array.dtype}, shape {array.shape} and chunks "
            f"{array.chunks}, declared are {declared.dtype}, {declared.shape} and "
            f"{declared.chunk_shape()}: correct the declaration or delete the array",
            kind=Kind.NODE_EXISTS,
        )
    shape = tuple(max(pair) for pair in zip(declared.shape, array.shape, strict=True))
    if shape != declared.shape and not may_be_longer:
        raise AlreadyExistsError(
            f"{declared.path} has shape {array.shape}; the declared {declared.shape} would cut "
            "data off, which a declaration never does",
            kind=Kind.NODE_EXISTS,
        )
    if array.shape != shape:
        array.resize(shape)
    if declared.attributes and dict(array.attrs) != array.attrs.asdict() | declared.attributes:
        array.attrs.update(declared.attributes)
    return array


def _values(declared: DeclaredArray) -> np.ndarray[Any, np.dtype[Any]]:
    if isinstance(declared.values, Steps):
        numbers = np.arange(declared.shape[0])
        return (declared.values.start + declared.values.step * numbers).astype(declared.dtype)
    return np.array(declared.values, dtype=declared.dtype)
