"""Plan where each chunk of each file goes: many files as one, or why they do not fit. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any

from numpy.typing import NDArray

from airflow_provider_icechunk.engine.virtual.sources import ChecksumKind, ForeignFile
from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError

from .hdf5 import DECODING, FileVariable, Json


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts of the files to use."""

    along: str | int = "time"
    """The dimension along which files follow each other, by name, or by number without names."""
    variables: Mapping[str, str] | None = None
    """From paths in the files to paths of arrays; by default all, under their own paths."""
    load: tuple[str, ...] | None = None
    """Variables whose values are copied; by default those that are named like their dimension."""
    into: str = ""
    """A group for everything that has no path of its own."""
    checksum: ChecksumKind = "auto"

    def takes(self, name: str) -> bool:
        """Whether a variable is wanted."""
        return self.variables is None or name in self.variables

    def loads(self, name: str, variable: FileVariable) -> bool:
        """Whether the values of a variable are copied."""
        if self.load is not None:
            return name in self.load
        return variable.dimensions == (name.rsplit("/", 1)[-1],)

    def array(self, name: str) -> str:
        """The path of a variable."""
        return "/".join(
            filter(None, (self.into.strip("/"), (self.variables or {}).get(name, name)))
        )

    def axis(self, variable: FileVariable) -> int | None:
        """Which dimension of a variable grows, if one does."""
        if isinstance(self.along, int):
            return self.along if self.along < len(variable.shape) else None
        found = [axis for axis, name in enumerate(variable.dimensions) if name == self.along]
        return found[0] if found else None

    def to_json(self) -> dict[str, Json]:
        """The choice in JSON values."""
        return asdict(self)


def choose(
    variables: Sequence[str] | Mapping[str, str] | None,
    *,
    along: str | int,
    load: Sequence[str] | None,
    into: str,
    checksum: ChecksumKind,
) -> Choice:
    """The choice from the arguments of a call."""
    if variables is not None and not isinstance(variables, Mapping):
        variables = {name: name for name in variables}
    wanted = None
    if variables is not None:
        wanted = {name.strip("/"): path.strip("/") for name, path in variables.items()}
    copied = None if load is None else tuple(name.strip("/") for name in load)
    return Choice(along, wanted, copied, into, checksum)


@dataclass(frozen=True, slots=True, eq=False)
class FileHeader:
    """The result of the first pass over one file."""

    source: ForeignFile
    variables: Mapping[str, FileVariable]
    """The wanted ones."""
    groups: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """Attributes of groups; only of the first file."""
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Of the variables that are copied."""


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array and the variable that it is made of."""

    name: str
    """The path in the files."""
    path: str
    """The path in the repository."""
    variable: FileVariable
    """As in the first file; anything that differs between files is not used."""
    axis: int | None
    """The dimension that grows; without one the first file says all."""
    loaded: bool

    @property
    def chunk(self) -> int:
        """Cells of a chunk along the dimension that grows."""
        return 1 if self.axis is None or self.loaded else self.variable.chunks[self.axis]


@dataclass(frozen=True, slots=True)
class VirtualPlan:
    """Files one after the other."""

    arrays: tuple[PlannedArray, ...]
    sources: tuple[ForeignFile, ...]
    borders: tuple[int, ...]
    """Where each file begins along the dimension, and where the last one ends."""
    checksum: ChecksumKind

    @property
    def length(self) -> int:
        """Cells that all files together add."""
        return self.borders[-1]

    @property
    def digest(self) -> str:
        """A name for the plan: the same again for the same files in the same state."""
        contents = [[asdict(one) for one in self.arrays], [asdict(one) for one in self.sources]]
        text = json.dumps([contents, self.borders, self.checksum], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:40]


def make_plan(headers: Sequence[FileHeader], choice: Choice) -> VirtualPlan:
    """The plan of files in the order given, or an error that names the file and the reason."""
    if not headers:
        raise InvalidInputError("there are no files to ingest")
    first = headers[0]
    arrays = tuple(_planned(first, name, choice) for name in _names(first, choice))
    _check_targets(arrays)
    growing = [one for one in arrays if one.axis is not None]
    if not growing:
        raise InvalidInputError(
            f"{first.source.location}: no selected variable has the dimension {choice.along!r}; "
            f"their dimensions are {_all_dimensions(first)}"
        )
    lengths = []
    for header in headers:
        for array in arrays:
            _check_alike(header, array, first)
        lengths.append(_length(header, growing))
    borders = (0, *accumulate(lengths))
    for array in growing:
        _check_borders(array, headers, borders)
    return VirtualPlan(arrays, tuple(header.source for header in headers), borders, choice.checksum)


def _names(first: FileHeader, choice: Choice) -> list[str]:
    wanted = list(first.variables) if choice.variables is None else list(choice.variables)
    for name in (*wanted, *(choice.load or ())):
        if name not in first.variables:
            raise InvalidInputError(
                f"{first.source.location}: there is no variable {name!r} among those selected; "
                f"choose from {sorted(first.variables)}"
            )
    return wanted


def _planned(first: FileHeader, name: str, choice: Choice) -> PlannedArray:
    variable = first.variables[name]
    loaded = choice.loads(name, variable)
    if variable.problem is not None and not (loaded and name in first.values):
        remedy = "choose others with `variables`"
        if variable.fill:
            remedy += ", or copy its values with `load`"
        raise UnsupportedError(
            f"{first.source.location}: {name!r} cannot be referred to: {variable.problem}; {remedy}"
        )
    return PlannedArray(name, choice.array(name), variable, choice.axis(variable), loaded)


def _check_targets(arrays: Sequence[PlannedArray]) -> None:
    seen: dict[str, str] = {}
    for array in arrays:
        other = seen.setdefault(array.path.strip("/"), array.name)
        if other != array.name:
            raise InvalidInputError(f"{other!r} and {array.name!r} both go to {array.path!r}")


def _check_alike(header: FileHeader, array: PlannedArray, first: FileHeader) -> None:
    """Refuse a file in which a variable is stored or meant in another way."""
    where, there = header.source.location, first.source.location
    found = header.variables.get(array.name)
    if found is None:
        raise InvalidInputError(f"{where}: there is no variable {array.name!r}, {there} has one")
    ours, theirs = _comparable(array.variable, array), _comparable(found, array)
    for what, value in ours.items():
        if theirs[what] != value:
            raise InvalidInputError(
                f"{where}: the {what} of {array.name!r} is {theirs[what]}, in {there} it is {value}"
            )
    if array.loaded and array.axis is None:
        mine, other = header.values[array.name], first.values[array.name]
        if mine.tobytes() != other.tobytes():
            raise InvalidInputError(
                f"{where}: the values of {array.name!r} differ from those in {there}"
            )


def _comparable(variable: FileVariable, array: PlannedArray) -> dict[str, object]:
    """What all files must share."""
    found: dict[str, object] = {
        "type": variable.dtype,
        "rank": len(variable.shape),
        "dimensions": variable.dimensions,
        "fill value": variable.fill,
        "shape beside the dimension": tuple(
            length for axis, length in enumerate(variable.shape) if axis != array.axis
        ),
        **{f"attribute {name}": variable.attributes.get(name) for name in DECODING},
    }
    if not array.loaded:
        found |= {
            "chunk shape": variable.chunks,
            "filter pipeline": variable.codecs,
            "state": variable.problem,
        }
    return found


def _length(header: FileHeader, growing: Sequence[PlannedArray]) -> int:
    lengths = {
        one.name: header.variables[one.name].shape[one.axis]
        for one in growing
        if one.axis is not None
    }
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(
            f"{header.source.location}: the variables have different lengths along the dimension: "
            f"{lengths}"
        )
    return next(iter(lengths.values()))


def _check_borders(
    array: PlannedArray, headers: Sequence[FileHeader], borders: Sequence[int]
) -> None:
    for header, border in zip(headers, borders, strict=False):
        check_aligned(array, border, header.source.location)


def check_aligned(array: PlannedArray, border: int, where: str) -> None:
    """Refuse to start a file inside a chunk."""
    if border % array.chunk:
        raise InvalidInputError(
            f"{where}: {array.name!r} would begin at {border}, inside a chunk of "
            f"{array.chunk}: a chunk cannot be made of two files. Copy its values with `load`, or "
            "ingest the files with `ingest_files`"
        )


def _all_dimensions(header: FileHeader) -> list[str]:
    names = {name for one in header.variables.values() for name in one.dimensions if name}
    return sorted(names)


def without_details(variable: FileVariable) -> FileVariable:
    """A variable less the attributes that may differ between files."""
    kept = {name: variable.attributes[name] for name in DECODING if name in variable.attributes}
    return replace(variable, attributes=kept)
