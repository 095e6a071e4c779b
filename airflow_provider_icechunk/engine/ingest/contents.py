"""What a file holds, in the terms of Zarr: variables, and their chunks as byte ranges."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Json = Any
"""A value of JSON."""

DECODING = (
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
)
"""Attributes that change what stored numbers mean: files that differ in them cannot be joined."""


@dataclass(frozen=True, slots=True)
class FileVariable:
    """A variable of a file, in the terms of Zarr."""

    dtype: str
    """As NumPy spells it, with the byte order."""
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codecs: tuple[Json, ...]
    """What turns stored bytes into those of values, in the order of writing."""
    fill: str
    """The bytes of the fill value in hexadecimal digits."""
    dimensions: tuple[str | None, ...]
    attributes: Mapping[str, Json] = field(default_factory=dict)
    problem: str | None = None
    """Why its chunks cannot be referred to."""
    contiguous: bool = False
    """Stored in one piece without codecs, which can be cut anywhere along the first dimension."""

    def to_json(self) -> dict[str, Json]:
        """The variable in JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> FileVariable:
        """The inverse of `to_json`."""
        lists = {name: tuple(value[name]) for name in ("shape", "chunks", "codecs", "dimensions")}
        return cls(**{**value, **lists})


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Where the chunks of a variable are in its file."""

    index: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    inline: bytes | None = None
    """Values that HDF5 keeps in the header of the variable: there is no range to refer to."""


class Content(Protocol):
    """An open file of any kind."""

    def variables(self) -> dict[str, FileVariable]:
        """All variables by their path; dimensions that are nothing but a name are left out."""
        ...

    def groups(self) -> dict[str, dict[str, Json]]:
        """Attributes of all groups by path; the root is the empty path."""
        ...

    def values(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """The stored values of a variable, or those between two positions of its first axis."""
        ...

    def ranges(self, name: str) -> Ranges:
        """The chunks of a variable that are stored, in any order."""
        ...


def for_xarray(attributes: dict[str, Json], dtype: np.dtype[Any]) -> dict[str, Json]:
    """Fill values in the spelling that Xarray gives them in Zarr."""
    found = dict(attributes)
    if found.get("missing_value") == "NaN":
        # This adds nothing: NaN is missing anyway.
        del found["missing_value"]
    fill = found.get("_FillValue")
    if fill is not None and dtype.kind == "f":
        found["_FillValue"] = base64.b64encode(struct.pack("<d", float(fill))).decode()
    elif fill is not None and dtype.kind in "iu" and isinstance(fill, int | float):
        found["_FillValue"] = int(fill)
    return found
