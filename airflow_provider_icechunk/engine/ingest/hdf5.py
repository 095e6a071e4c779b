"""What an HDF5 or NetCDF4 file holds: variables as Zarr describes them, chunks as byte ranges.

Only headers and the index of chunks are read. What HDF5 can express and Zarr cannot is not an error
here but a `problem` of the variable: it matters only to those who want to refer to its chunks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import UnsupportedError

from .contents import FileVariable, Json, Ranges, for_xarray

_INTERNAL = frozenset(
    (
        "CLASS",
        "NAME",
        "DIMENSION_LIST",
        "DIMENSION_LABELS",
        "REFERENCE_LIST",
        "_Netcdf4Coordinates",
        "_Netcdf4Dimid",
        "_NCProperties",
        "_nc3_strict",
    )
)
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_FILTERS = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32004: "lz4", 32008: "bitshuffle"}


def load_h5py() -> Any:
    """The library `h5py`, or how to get it."""
    try:
        import h5py
    except ImportError:
        raise UnsupportedError(
            'HDF5 and NetCDF4 files need h5py: pip install "airflow-provider-icechunk[hdf5]"'
        ) from None
    return h5py


class Hdf5Content:
    """An open HDF5 file."""

    def __init__(self, file: Any, where: str) -> None:
        if file.userblock_size:
            raise UnsupportedError(f"{where}: files with a user block are not known")
        self._file = file
        self._where = where

    def variables(self) -> dict[str, FileVariable]:
        """All variables by their path; dimensions that are nothing but a name are left out."""
        found = _datasets(self._file)
        named = {
            int(dataset.attrs["_Netcdf4Dimid"]): _last(name)
            for name, dataset in found.items()
            # Variables may also have the number of their first dimension.
            if dataset.is_scale and "_Netcdf4Dimid" in dataset.attrs
        }
        return {
            name: _variable(dataset, named)
            for name, dataset in found.items()
            if not _is_only_dimension(dataset)
        }

    def groups(self) -> dict[str, dict[str, Json]]:
        """Attributes of all groups by path; the root is the empty path."""
        import h5py

        found = {"": attributes_of(self._file)}
        self._file.visititems(
            lambda name, node: (
                found.update({name: attributes_of(node)}) if isinstance(node, h5py.Group) else None
            )
        )
        return found

    def values(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """The stored values of a variable, or those between two positions of its first axis."""
        dataset = self._file[name]
        return np.asarray(dataset[start:stop] if dataset.ndim else dataset[()])

    def ranges(self, name: str) -> Ranges:
        """The chunks of a variable that are stored, in any order."""
        return _ranges(self._file[name], f"{self._where}: {name!r}")


def _ranges(dataset: Any, where: str) -> Ranges:
    import h5py

    layout = dataset.id.get_create_plist().get_layout()
    rank = dataset.ndim
    if layout == h5py.h5d.CHUNKED:
        return _chunked(dataset, where)
    single = np.zeros((1, rank), np.uint32)
    size = np.array([dataset.size * dataset.dtype.itemsize], np.uint64)
    nothing = Ranges(single[:0], size[:0], size[:0])
    if layout == h5py.h5d.COMPACT and size[0]:
        data = np.asarray(dataset[()]).astype(dataset.dtype).tobytes()
        return Ranges(single[:0], size[:0], size[:0], inline=data)
    offset = dataset.id.get_offset()
    if offset is None or not size[0]:
        return nothing
    return Ranges(single, np.array([offset], np.uint64), size)


def attributes_of(node: Any) -> dict[str, Json]:
    """Attributes as JSON, without those for the internal use of HDF5 and NetCDF."""
    found: dict[str, Json] = {}
    for name in node.attrs:
        if name not in _INTERNAL:
            try:
                found[name] = _plain(node.attrs[name])
            except (OSError, RuntimeError, TypeError, ValueError):
                # An attribute of a type that NumPy does not have.
                continue
    return {name: value for name, value in found.items() if value is not None}


def _datasets(file: Any) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {}
    file.visititems(
        lambda name, node: found.update({name: node}) if isinstance(node, h5py.Dataset) else None
    )
    return found


def _variable(dataset: Any, named: Mapping[int, str]) -> FileVariable:
    problem = _type_problem(dataset)
    codecs: tuple[Json, ...] = ()
    if problem is None:
        try:
            codecs = _codecs(dataset)
        except UnsupportedError as error:
            problem = error.message
    shape = tuple(int(length) for length in dataset.shape or ())
    known = problem is None or dataset.dtype.kind in "biufc"
    fill = np.asarray(dataset.fillvalue, dataset.dtype).tobytes().hex() if known else ""
    attributes = attributes_of(dataset)
    if known:
        attributes = for_xarray(attributes, dataset.dtype)
    return FileVariable(
        dtype=dataset.dtype.str if known else str(dataset.dtype),
        shape=shape,
        chunks=tuple(dataset.chunks or (max(1, length) for length in shape)),
        codecs=codecs,
        fill=fill,
        dimensions=_dimensions(dataset, named),
        attributes=attributes,
        problem=problem,
        contiguous=_is_contiguous(dataset),
    )


def _is_contiguous(dataset: Any) -> bool:
    import h5py

    layout = dataset.id.get_create_plist().get_layout()
    return bool(layout == h5py.h5d.CONTIGUOUS) and dataset.id.get_offset() is not None


def _type_problem(dataset: Any) -> str | None:
    import h5py

    if dataset.shape is None:
        return "it has no values (a null space)"
    if dataset.is_virtual:
        return "it is a virtual dataset, made of parts of other files"
    if dataset.external:
        return "its values are in other files"
    if h5py.check_string_dtype(dataset.dtype) or dataset.dtype.kind not in "biufc":
        return f"values of type {dataset.dtype} have no counterpart in Zarr"
    if dataset.dtype.itemsize > 16 or dataset.dtype.str[1:] in ("f16", "c32"):
        return f"values of type {dataset.dtype} have no counterpart in Zarr"
    return None


def _codecs(dataset: Any) -> tuple[Json, ...]:
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    return tuple(_codec(code, values, dataset.dtype.itemsize) for code, _, values, _ in filters)


def _codec(code: int, values: tuple[int, ...], itemsize: int) -> Json:
    """The codec of Zarr that undoes a filter of HDF5."""
    match code:
        case 1:
            return _named("numcodecs.zlib", level=int(values[0]) if values else 1)
        case 2:
            return _named("numcodecs.shuffle", elementsize=int(values[0]) if values else itemsize)
        case 3:
            return _named("numcodecs.fletcher32")
        case 307:
            return _named("numcodecs.bz2", level=int(values[0]) if values else 9)
        case 32001:
            return _named("numcodecs.blosc", cname="lz4", clevel=5, shuffle=1, blocksize=0)
        case 32015:
            return _named("zstd", level=int(values[0]) if values else 0, checksum=False)
    name = _FILTERS.get(code, "unknown")
    raise UnsupportedError(f"its filter {code} ({name}) is none that Zarr can undo")


def _named(name: str, **configuration: Json) -> Json:
    return {"name": name, "configuration": configuration}


def _dimensions(dataset: Any, named: Mapping[int, str]) -> tuple[str | None, ...]:
    rank = len(dataset.shape or ())
    if dataset.is_scale:
        own = dataset.attrs.get("_Netcdf4Coordinates")
        if own is not None and len(own) == rank and all(int(one) in named for one in own):
            return tuple(named[int(one)] for one in own)
        return (_last(dataset.name),) if rank == 1 else (None,) * rank
    return tuple(
        _last(dataset.dims[axis][0].name)
        if len(dataset.dims[axis])
        else (dataset.dims[axis].label or None)
        for axis in range(rank)
    )


def _is_only_dimension(dataset: Any) -> bool:
    name = dataset.attrs.get("NAME", b"")
    text = name.encode() if isinstance(name, str) else bytes(name)
    return bool(dataset.is_scale) and text.startswith(_NO_VARIABLE)


def _chunked(dataset: Any, where: str) -> Ranges:
    rows: list[tuple[int, ...]] = []
    masks: set[int] = set()

    def keep(chunk: Any) -> None:
        masks.add(chunk.filter_mask)
        rows.append((*chunk.chunk_offset, chunk.byte_offset, chunk.size))

    dataset.id.chunk_iter(keep)
    if masks - {0}:
        raise UnsupportedError(
            f"{where}: some chunks were stored without all of the filters, which Zarr cannot "
            "express; copy its values instead"
        )
    table = np.array(rows, np.uint64).reshape(len(rows), dataset.ndim + 2)
    index = table[:, : dataset.ndim] // np.array(dataset.chunks, np.uint64)
    return Ranges(index.astype(np.uint32), table[:, -2], table[:, -1])


def _plain(value: Any) -> Json:
    """A value of an attribute as JSON; `None` if there is none."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _SPECIAL.get(value, "NaN")
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufSUO" or not value.size:
            return None
        items = [_plain(item) for item in value.reshape(-1)]
        return items[0] if len(items) == 1 else items
    if isinstance(value, np.generic) and value.dtype.kind in "biufSU":
        return _plain(value.item())
    return None


_SPECIAL = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _last(name: str | None) -> str:
    return (name or "").rsplit("/", 1)[-1]
