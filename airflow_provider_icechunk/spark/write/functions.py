"""Arrays filled by a user's function, region by region, on executors.

The function is named `package.module:name`, or is a callable that Spark sends along. It is looked
up on the driver first, so that a wrong name fails before any task runs. Its result is checked for
all arrays of a region before the first chunk of that region is stored.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.blocks import chunk_grid, fit_values, write_block
from airflow_provider_icechunk.engine.arrays.regions import (
    Parts,
    by_name,
    dimension_names,
    extent,
    plan_box,
    plan_parts,
    span_of,
)
from airflow_provider_icechunk.engine.arrays.regions import Region as Box
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError, TaskError
from airflow_provider_icechunk.spark.runtime import one_line, open_array

from .coordinates import labels_of
from .regions import region_name

Function = Callable[..., Any]
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Region:
    """The part of the arrays that one call of a function fills."""

    dims: tuple[str, ...]
    """Names of the dimensions: of the array, or of all variables together."""
    slices: tuple[slice, ...]
    """Positions in each dimension, in the order of `dims`."""
    labels: Mapping[str, NDArray[Any]] = field(repr=False)
    """Values of the coordinate of each dimension that has one, as long as the slice; times are
    decoded to `datetime64`."""
    array: str | None
    """Path of the array; `None` if the function fills several variables at once."""
    dtype: np.dtype[Any] | None
    """Type of the array; `None` if the function fills several variables at once."""
    variables: tuple[str, ...]
    """Paths of everything to fill."""

    @property
    def sel(self) -> dict[str, slice]:
        """The slices by name of dimension, as `Dataset.isel` takes them."""
        return dict(zip(self.dims, self.slices, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of positions in each dimension."""
        return tuple(part.stop - part.start for part in self.slices)


def find_function(name: str) -> Function:
    """The function with a name like `package.module:name`; the error says why there is none."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} does not name a function: write it as 'package.module:name'"
        )
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:  # a module may raise anything while it is imported
        raise InvalidInputError(
            f"the function {name!r} cannot be imported: {one_line(error)}. Ship its module with "
            "`py_files`, or install it where the driver and the executors run"
        ) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidInputError(f"the module {module!r} has no function {attribute!r}")
    return found  # type: ignore[no-any-return]


def function_name(function: str | Function) -> str:
    """The name of a function in errors and messages."""
    if isinstance(function, str):
        return function
    module = getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', repr(function))}"


@dataclass(frozen=True, slots=True)
class FunctionWork:
    """Arrays to fill by a function, all of them or a part, in one or more tasks."""

    arrays: tuple[str, ...]
    function: str | Function
    arguments: Mapping[str, Any]
    region: Parts
    tasks: int | None

    def prepare(self, session: Session) -> None:
        """Refuse missing arrays and functions that cannot be called."""
        for path in self.arrays:
            open_array(session, path)
        if not self.arrays or len(set(self.arrays)) != len(self.arrays):
            raise InvalidInputError(
                f"{function_name(self.function)} needs different arrays to fill, not "
                f"{list(self.arrays)}"
            )
        function = find_function(self.function) if isinstance(self.function, str) else self.function
        _check_call(function, function_name(self.function), self.arguments)

    def writer(self, view: Session, at_once: int) -> FunctionWriter:
        """Tasks that share no chunk of any of the arrays."""
        opened = [open_array(view, path) for path in self.arrays]
        dims, box, grid = _common_box(opened, self.region)
        size = math.prod(extent(box)) * sum(array.dtype.itemsize for array in opened)
        boxes = plan_box(box, grid, self.tasks or plan_parts(size, at_once))
        return FunctionWriter(self.arrays, self.function, self.arguments, dims, tuple(boxes))


@dataclass(frozen=True, slots=True)
class FunctionWriter:
    """Calls a function for each planned region and writes what it returns."""

    arrays: tuple[str, ...]
    function: str | Function
    arguments: Mapping[str, Any]
    dims: tuple[str, ...]
    boxes: tuple[Box, ...]

    @property
    def names(self) -> list[str]:
        """The name of what each task writes."""
        given = json.dumps([self.arguments, self.dims], sort_keys=True, default=repr)
        digest = sha256(given.encode()).hexdigest()
        what = f"{' '.join(self.arrays)} {function_name(self.function)} {digest}"
        return [region_name(what, box) for box in self.boxes]

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Write the region of a task; values that do not fit are refused before storing any."""
        box = self.boxes[number]
        opened = [open_array(fork, path) for path in self.arrays]
        region = self._region(fork, opened, box)
        where = self._where(number, region)
        try:
            function = self._function()
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: {error}") from error
        try:
            returned = function(region, **self.arguments)
        except Exception as error:  # the user's own code may raise anything
            raise TaskError(f"{where} raised {one_line(error)}") from error
        parts = [self._fitting(array, returned, region, where) for array in opened]
        return sum(
            write_block(fork, array, own, values)
            for array, (own, values) in zip(opened, parts, strict=True)
        )

    def _function(self) -> Function:
        return find_function(self.function) if isinstance(self.function, str) else self.function

    def _region(self, fork: ForkSession, opened: Sequence[zarr.Array[Any]], box: Box) -> Region:
        slices = tuple(slice(start, stop) for start, stop in box)
        labels: dict[str, NDArray[Any]] = {}
        root = zarr.open_group(fork.store, mode="r")
        for array in opened:
            mine = [name for name in dimension_names(array) if name not in labels]
            parts = {name: slices[self.dims.index(name)] for name in mine}
            labels |= labels_of(root, array, parts)
        single = opened[0] if len(opened) == 1 else None
        return Region(
            dims=self.dims,
            slices=slices,
            labels={name: labels[name] for name in self.dims if name in labels},
            array=self.arrays[0] if single is not None else None,
            dtype=None if single is None else single.dtype,
            variables=self.arrays,
        )

    def _where(self, number: int, region: Region) -> str:
        parts = ", ".join(_spoken(name, part, region.labels) for name, part in region.sel.items())
        return (
            f"task {number + 1} of {len(self.boxes)}: {function_name(self.function)} for "
            f"{', '.join(map(repr, self.arrays))} at {parts or 'its only cell'}"
        )

    def _fitting(
        self, array: zarr.Array[Any], returned: Any, region: Region, where: str
    ) -> tuple[Box, NDArray[Any]]:
        """The values for one array, and their position in it."""
        names = dimension_names(array)
        box = tuple((part.start, part.stop) for part in (region.sel[name] for name in names))
        given = self._chosen(array, returned, where)
        dims = getattr(given, "dims", None)
        if dims is not None and tuple(dims) != names and set(dims) == set(names):
            given = given.transpose(*names)
        if np.ma.isMaskedArray(given):
            given = given.filled(array.fill_value)
        try:
            values = np.asarray(given)
        except Exception as error:  # a lazy array computes its values here
            raise TaskError(f"{where} raised {one_line(error)}") from error
        expected = f"an array of shape {extent(box)} and type {array.dtype}"
        what = (
            f"{where} returned for {array.path!r}" if len(self.arrays) > 1 else f"{where} returned"
        )
        if values.dtype.kind == "O" and array.dtype.kind != "O":
            raise InvalidInputError(f"{what} {type(given).__name__}, expected {expected}")
        try:
            values = np.broadcast_to(values, extent(box))
            return box, fit_values(array, box, values)
        except (ValueError, IcechunkError):
            got = f"shape {np.shape(given)} and type {values.dtype}"
            raise InvalidInputError(f"{what} {got}, expected {expected}") from None

    def _chosen(self, array: zarr.Array[Any], returned: Any, where: str) -> Any:
        """The result for one array: all of it, or an item of a mapping or `Dataset`."""
        if not isinstance(returned, Mapping):
            if len(self.arrays) == 1:
                return returned
            raise InvalidInputError(
                f"{where} returned {type(returned).__name__}, expected a Dataset or a mapping with "
                f"the variables {', '.join(map(repr, self.arrays))}"
            )
        mapped: Mapping[Any, Any] = getattr(returned, "data_vars", returned)
        wanted = {path: {path, path.strip("/"), path.rpartition("/")[2]} for path in self.arrays}
        known = {str(name) for name in mapped}
        unknown = known - set().union(*wanted.values()) - set(self.dims)
        (path,) = (path for path in self.arrays if path.strip("/") == array.path)
        found = [name for name in (path, path.strip("/"), path.rpartition("/")[2]) if name in known]
        if not found or unknown:
            wrong = f"not {sorted(unknown)}" if unknown else f"{path!r} is missing"
            raise InvalidInputError(
                f"{where} returned the variables {sorted(known)}, expected "
                f"{list(self.arrays)}: {wrong}"
            )
        return mapped[found[0]]


def _common_box(
    arrays: Sequence[zarr.Array[Any]], chosen: Parts
) -> tuple[tuple[str, ...], Box, tuple[int, ...]]:
    """The dimensions of some arrays, the part of them to fill, and where tasks may cut it.

    A dimension that not all arrays have is never cut: two tasks would write the same cells.
    """
    lengths: dict[str, int] = {}
    chunks: dict[str, list[int]] = {}
    for array in arrays:
        names = dimension_names(array)
        if len(set(names)) != len(names):
            raise InvalidInputError(f"{array.path!r} has two dimensions of the same name: {names}")
        for name, length, chunk in zip(names, array.shape, chunk_grid(array), strict=True):
            if lengths.setdefault(name, length) != length:
                raise InvalidInputError(
                    f"dimension {name!r} has {length} positions in {array.path!r} but "
                    f"{lengths[name]} in {arrays[0].path!r}: write these arrays one after the other"
                )
            chunks.setdefault(name, []).append(chunk)
    dims = tuple(lengths)
    parts = by_name(chosen, [(array.path, dimension_names(array)) for array in arrays])
    box = tuple(span_of(parts.get(name, (0, lengths[name])), name, lengths[name]) for name in dims)
    grid = tuple(
        math.lcm(*chunks[name]) if len(chunks[name]) == len(arrays) else max(1, lengths[name])
        for name in dims
    )
    return dims, box, grid


def _check_call(function: Function, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the function does not accept, if that can be known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        raise InvalidInputError(
            f"the function {name!r} cannot be called as {name.rpartition(':')[2]}(region"
            f"{''.join(f', {key}=...' for key in arguments)}): {error}"
        ) from None


def _spoken(name: str, part: slice, labels: Mapping[str, NDArray[Any]]) -> str:
    text = f"{name} {part.start}:{part.stop}"
    values = labels.get(name)
    if values is None or not len(values) or values.dtype.kind != "M":
        return text
    first, last = str(values[0]), str(values[-1])
    return f"{text} ({first})" if len(values) == 1 else f"{text} ({first} to {last})"
