"""Which chunk of which file goes where: many files as one, or why they do not fit. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.epochs import counting, finest
from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.virtual.sources import ChecksumKind, ForeignFile
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError, UnsupportedError

from .choice import Choice, bounds_of, times_of
from .comparing import PlannedArray, meaning_of, storage_difference
from .contents import FileVariable, Json, for_xarray

_MOST_PROBLEMS = 100
_RAGGED = ("chunk shape", "length")


@dataclass(frozen=True, slots=True, eq=False)
class FileHeader:
    """What the first pass found in one file."""

    source: ForeignFile
    variables: Mapping[str, FileVariable]
    """The wanted ones."""
    groups: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """Attributes of groups; only of the first file."""
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Of the variables that are copied."""


@dataclass(frozen=True, slots=True)
class KnownArray:
    """An array that the repository has."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    attributes: Mapping[str, Json]
    dtype: str
    dimensions: tuple[str | None, ...] | None = None
    tells_missing: bool = False
    """Whether unwritten cells look like missing ones."""


@dataclass(frozen=True, slots=True)
class Series:
    """Files one after the other, as the variables of one group see them."""

    first: int
    """Where the first file begins along the dimension."""
    borders: tuple[int, ...]
    """Where each file begins after that, and where the last one ends."""

    @property
    def end(self) -> int:
        """Where the last file ends."""
        return self.first + self.borders[-1]

    def place(self, number: int) -> tuple[int, int]:
        """Where a file begins and ends."""
        return self.first + self.borders[number], self.first + self.borders[number + 1]


@dataclass(frozen=True, slots=True, repr=False)
class VirtualPlan(Shown):
    """What files become, before anything is written: show it, or look at `rows()`."""

    arrays: tuple[PlannedArray, ...]
    sources: tuple[ForeignFile, ...]
    series: Mapping[str, Series]
    """By the group in the files."""
    checksum: ChecksumKind
    grown: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Other arrays beside these that grow with them, and their new shapes."""
    problems: tuple[IcechunkError, ...] = ()
    """Why the files do not fit together, if they do not."""

    @property
    def digest(self) -> str:
        """A name for the plan: always the same for the same files in the same state."""
        parts = (self.arrays, self.sources, tuple(self.series.values()))
        contents = [[asdict(one) for one in part] for part in parts]
        text = json.dumps([contents, self.checksum], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def checked(self) -> VirtualPlan:
        """The plan, unless it has problems; then the first is raised."""
        if self.problems:
            first = self.problems[0]
            if len(self.problems) > 1:
                first.add_note(f"and {len(self.problems) - 1} more; a plan of these files has all")
            raise first
        return self

    def rows(self) -> list[dict[str, Json]]:
        """Each array as plain values: what it is made of, and what becomes of it."""
        return [self._row(one) for one in self.arrays]

    def _row(self, one: PlannedArray) -> dict[str, Json]:
        files = [source.location for source in self.sources]
        shape = list(one.variable.shape)
        if one.axis is not None:
            # An array of the repository never becomes shorter.
            shape[one.axis] = max(shape[one.axis], self.series[one.series].end)
        values = "copied" if one.loaded else "referred to"
        return {
            "array": one.path,
            "variable": one.name,
            "shape": shape,
            "chunks": list(one.variable.chunks),
            "dtype": one.variable.dtype,
            "values": values,
            "created": one.created,
            "units": one.variable.attributes.get("units", one.units),
            "missing_in": [files[number] for number in one.absent],
            "copied_from": [files[number] for number in one.copied],
        }

    def shown_name(self) -> str:
        """Its own name: the official package has none."""
        return "VirtualPlan"

    def shown_facts(self) -> Mapping[str, object]:
        """Files, arrays, problems."""
        facts: dict[str, object] = {"files": len(self.sources)}
        for group, one in self.series.items():
            facts[f"positions of /{group}"] = f"{one.first} to {one.end}"
        for row in self.rows():
            lists = {key: len(row.pop(key)) for key in ("missing_in", "copied_from")}
            words = f"{row['shape']} in chunks {row['chunks']}, {row['dtype']}, {row['values']}"
            words += ", new" if row["created"] else ""
            words += "".join(
                f", {key.replace('_', ' ')} {count} files" for key, count in lists.items() if count
            )
            facts[str(row["array"])] = words
        for path, shape in self.grown.items():
            facts[path] = f"{list(shape)}, grows with the others, no file has it"
        if self.problems:
            facts["problems"] = "\n".join(one.message for one in self.problems)
        return facts


def make_plan(
    headers: Sequence[FileHeader],
    choice: Choice,
    known: Mapping[str, KnownArray] | None = None,
    *,
    start: int | None = None,
) -> VirtualPlan:
    """The plan for files in the order given, with any reasons why they do not fit.

    :param known: arrays of the repository, by path.
    :param start: where the first file begins; by default where the arrays end.
    """
    if not headers:
        raise InvalidInputError("there are no files to ingest")
    return _Planner(headers, choice, known or {}, start).plan()


def names_of(headers: Sequence[FileHeader], choice: Choice) -> list[str]:
    """The variables that become arrays."""
    found = dict.fromkeys(name for header in headers for name in header.variables)
    wanted = list(found) if choice.variables is None else list(choice.variables)
    for name in (*wanted, *(choice.load or ())):
        if name not in found:
            raise InvalidInputError(
                f"{headers[0].source.location}: there is no variable {name!r} among those that are "
                f"wanted; there are {sorted(found)}"
            )
    return wanted


class _Planner:
    """Makes one plan, and collects what prevents it."""

    def __init__(
        self,
        headers: Sequence[FileHeader],
        choice: Choice,
        known: Mapping[str, KnownArray],
        start: int | None,
    ) -> None:
        self._headers, self._choice, self._start = headers, choice, start
        self._known = {path.strip("/"): one for path, one in known.items()}
        self._names = names_of(headers, choice)
        self._problems: dict[str, IcechunkError] = {}

    def plan(self) -> VirtualPlan:
        arrays = [self._planned(name) for name in self._names]
        self._check_targets(arrays)
        if all(one.axis is None for one in arrays):
            first = self._headers[0]
            raise InvalidInputError(
                f"{first.source.location}: no selected variable has the dimension "
                f"{self._choice.along!r}; there are {_all_dimensions(first)}"
            )
        for array in arrays:
            for problem in self._differences(array):
                self._refuse(problem)
        groups = dict.fromkeys(one.series for one in arrays if one.axis is not None)
        if self._start is not None and len(groups) > 1:
            raise InvalidInputError(
                f"`start` is one position, and the groups {sorted(groups)} count by themselves: "
                "choose the variables of one with `variables`"
            )
        series = {group: self._series(group, arrays) for group in groups}
        arrays = [self._stored(one, series.get(one.series)) for one in arrays]
        return VirtualPlan(
            tuple(arrays),
            tuple(header.source for header in self._headers),
            series,
            self._choice.checksum,
            self._grown(arrays, series) if self._choice.missing == "fill" else {},
            tuple(self._problems.values()),
        )

    def _refuse(self, problem: str) -> None:
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.setdefault(problem, InvalidInputError(problem))

    def _planned(self, name: str) -> PlannedArray:
        absent = tuple(n for n, one in enumerate(self._headers) if name not in one.variables)
        origin = next(one for one in self._headers if name in one.variables)
        variable = origin.variables[name]
        loaded = name in self._choice.loaded(origin.variables)
        if variable.problem is not None and not (loaded and name in origin.values):
            remedy = "choose others with `variables`"
            if variable.fill:
                remedy += ", or copy its values with `load`"
            raise UnsupportedError(
                f"{origin.source.location}: {name!r} cannot be referred to: {variable.problem}; "
                f"{remedy}"
            )
        path = self._choice.array(name)
        made = PlannedArray(
            name,
            path,
            variable,
            self._choice.axis(variable),
            loaded,
            self._choice.series(name, self._names),
            path.strip("/") not in self._known,
            absent,
        )
        if absent and self._choice.missing == "error":
            has, lacks = origin.source.location, self._headers[absent[0]].source.location
            self._refuse(
                f"{lacks}: there is no variable {name!r}, {has} has one: choose others with "
                '`variables`, or leave its cells empty there with `missing="fill"`'
            )
        return self._counted(made)

    def _counted(self, array: PlannedArray) -> PlannedArray:
        """The array with the units that its times will have."""
        ways = [way for one in self._headers if (way := times_of(one.variables, array.name))]
        if not ways:
            return array
        units, calendar = ways[0]
        known = self._known.get(array.path.strip("/"))
        is_bounds = "units" not in array.variable.attributes
        if known is not None and not is_bounds:
            units = str(known.attributes.get("units", units))
            calendar = known.attributes.get("calendar", calendar)
        elif known is not None or is_bounds:
            of = self._parent(array)
            units = of or units
        elif array.loaded and np.dtype(array.variable.dtype).kind in "iu":
            units = finest(way[0] for way in ways)
        variable = array.variable
        if not is_bounds and array.loaded:
            variable = replace(variable, attributes={**variable.attributes, "units": units})
        if known is not None and array.loaded and known.dtype != variable.dtype:
            nothing = np.zeros((), known.dtype).tobytes().hex()
            variable = replace(variable, dtype=known.dtype, fill=nothing)
        return replace(array, variable=variable, units=units, calendar=calendar)

    def _parent(self, array: PlannedArray) -> str | None:
        """The units of the times whose bounds an array holds."""
        for header in self._headers:
            of = bounds_of(header.variables).get(array.name)
            if of is not None and of in self._names:
                return self._planned(of).units
        return None

    def _check_targets(self, arrays: Sequence[PlannedArray]) -> None:
        seen: dict[str, str] = {}
        for array in arrays:
            other = seen.setdefault(array.path.strip("/"), array.name)
            if other != array.name:
                raise InvalidInputError(f"{other!r} and {array.name!r} both go to {array.path!r}")

    def _differences(self, array: PlannedArray) -> Iterator[str]:
        """In which files a variable has another meaning."""
        origin = self._headers[array.origin]
        ours = meaning_of(origin.variables[array.name], array)
        for header in self._headers:
            found = header.variables.get(array.name)
            if found is None or (header is origin and array.units is None):
                continue
            where = f"{header.source.location}: the"
            for what, value in meaning_of(found, array).items():
                if ours[what] != value:
                    yield (
                        f"{where} {what} of {array.name!r} is {value}, in "
                        f"{origin.source.location} it is {ours[what]}"
                    )
            if array.units is not None:
                yield from self._other_times(header, array, where)
            elif array.loaded and array.axis is None:
                mine, other = header.values[array.name], origin.values[array.name]
                if mine.tobytes() != other.tobytes():
                    yield f"{where} values of {array.name!r} are others than in " + (
                        origin.source.location
                    )

    def _other_times(self, header: FileHeader, array: PlannedArray, where: str) -> Iterator[str]:
        way = times_of(header.variables, array.name)
        if way is None:
            yield f"{where} values of {array.name!r} are no times, as those of other files are"
            return
        if array.name not in header.values:
            if counting(*way) != counting(array.units, array.calendar):
                yield (
                    f"{where} times of {array.name!r} count {way[0]!r} ({way[1] or 'standard'}), "
                    f"the array {array.units!r}, and references cannot be counted again: copy "
                    "its values with `load`"
                )
            return
        if recounted(header, array) is None:
            yield (
                f"{where} times of {array.name!r} ({way[0]!r}, calendar {way[1] or 'standard'}) "
                f"cannot be counted as {array.units!r} ({array.calendar or 'standard'}) in "
                f"{array.variable.dtype}: create the array with finer units, or ingest this file "
                "into another group"
            )

    def _series(self, group: str, arrays: Sequence[PlannedArray]) -> Series:
        members = [one for one in arrays if one.series == group and one.axis is not None]
        lengths = [self._length(header, members) for header in self._headers]
        return Series(self._first(members), (0, *accumulate(lengths)))

    def _length(self, header: FileHeader, members: Sequence[PlannedArray]) -> int:
        lengths = {
            one.name: header.variables[one.name].shape[one.axis]
            for one in members
            if one.axis is not None and one.name in header.variables
        }
        if len(set(lengths.values())) > 1:
            self._refuse(
                f"{header.source.location}: the variables have different lengths along the "
                f"dimension: {lengths}"
            )
        return next(iter(lengths.values()), 0)

    def _first(self, members: Sequence[PlannedArray]) -> int:
        """Where the arrays end along the dimension, which they have to share."""
        if self._start is not None:
            if self._start < 0:
                raise InvalidInputError(f"files cannot begin at {self._start}")
            return self._start
        ends = {}
        for one in members:
            known = self._known.get(one.path.strip("/"))
            if known is not None and one.axis is not None and one.axis < len(known.shape):
                ends[one.path] = known.shape[one.axis]
            elif self._choice.missing == "error" or not self._known:
                ends[one.path] = 0
        # Arrays that are new begin where those beside them end.
        ends = ends or dict(self._beside(members))
        if len(set(ends.values())) > 1:
            raise InvalidInputError(
                f"the arrays end at different places along the dimension: {ends}; say where the "
                "files go with `start`, or leave cells empty where a variable is missing with "
                '`missing="fill"`'
            )
        return next(iter(ends.values()), 0)

    def _beside(self, members: Sequence[PlannedArray]) -> Iterator[tuple[str, int]]:
        """Arrays that share groups and the dimension with planned ones, and where they end."""
        groups = {one.path.strip("/").rpartition("/")[0] for one in members}
        planned = {one.path.strip("/") for one in members}
        for path, one in self._known.items():
            if path not in planned and path.rpartition("/")[0] in groups:
                axis = _axis(one, self._choice.along)
                if axis is not None:
                    yield path, one.shape[axis]

    def _grown(
        self, arrays: Sequence[PlannedArray], series: Mapping[str, Series]
    ) -> dict[str, tuple[int, ...]]:
        """Arrays that no file has this time, and that have to stay as long as the others."""
        found = {}
        for group, one in series.items():
            members = [array for array in arrays if array.series == group]
            for path, length in self._beside(members):
                known = self._known[path]
                axis = _axis(known, self._choice.along)
                if length == one.first < one.end and not any(a.path == path for a in arrays):
                    found[path] = tuple(
                        one.end if n == axis else size for n, size in enumerate(known.shape)
                    )
                    if not known.tells_missing:
                        self._refuse(_no_marker(path))
        return found

    def _stored(self, array: PlannedArray, series: Series | None) -> PlannedArray:
        """The array with its chunks, and with the files that do not have them."""
        if array.axis is None or series is None:
            return array
        array = self._marked(array, series)
        if array.loaded:
            return array
        array = self._cut(array, series)
        known = self._known.get(array.path.strip("/"))
        if known is not None and len(known.chunks) == len(array.variable.chunks):
            array = replace(array, variable=replace(array.variable, chunks=known.chunks))
        copied = []
        last = max(n for n in range(len(self._headers)) if n not in array.absent)
        for number, header in enumerate(self._headers):
            found = header.variables.get(array.name)
            if found is None:
                continue
            begin, end = series.place(number)
            where = header.source.location
            if begin % array.chunk:
                self._refuse(
                    f"{where}: {array.name!r} would begin at {begin}, inside of a chunk of "
                    f"{array.chunk}: a chunk cannot be made of two files. Copy its values with "
                    "`load`, or ingest the files with `ingest_files`"
                )
            difference = storage_difference(found, array)
            if difference is None:
                continue
            what, mine, theirs = difference
            is_ragged = number == last and (end - begin) % array.chunk and what in _RAGGED
            if is_ragged or self._choice.differing == "copy":
                copied.append(number)
                continue
            origin = self._headers[array.origin].source.location
            than = f"in {origin}" if array.created else f"in the array {array.path!r}"
            self._refuse(
                f"{where}: the {what} of {array.name!r} is {mine}, {than} it is {theirs}; copy "
                'the values of such files with `differing="copy"`'
            )
        return replace(array, copied=tuple(copied))

    @staticmethod
    def _cut(array: PlannedArray, series: Series) -> PlannedArray:
        """Chunks of what is contiguous in the files: whatever divides their lengths."""
        variable = array.variable
        if not (variable.contiguous and array.axis == 0 and array.created):
            return array
        # The last file may be shorter: its values are copied then.
        starts = [begin for begin in series.borders[1:-1] if begin] or [series.borders[-1]]
        piece = math.gcd(series.first, *starts) or 1
        return replace(array, variable=replace(variable, chunks=(piece, *variable.chunks[1:])))

    def _marked(self, array: PlannedArray, series: Series) -> PlannedArray:
        """The array with a value for cells that no file has, if there will be such cells."""
        begins_late = array.created and series.first > 0 and self._start is None
        gone = [n for n in array.absent if series.borders[n] < series.borders[n + 1]]
        if not (gone or begins_late):
            return array
        if array.loaded:
            where = self._headers[(gone or [0])[0]].source.location
            self._refuse(
                f"{where}: {array.name!r} is copied, and would have missing cells: leave it out "
                "with `variables`"
            )
            return array
        known, variable = self._known.get(array.path.strip("/")), array.variable
        if known is not None:
            if not known.tells_missing:
                self._refuse(_no_marker(array.path))
            return array
        dtype = np.dtype(variable.dtype)
        fill = np.frombuffer(bytes.fromhex(variable.fill), dtype)[0]
        if fill != fill or {"_FillValue", "missing_value"} & set(variable.attributes):
            return array
        if not fill:
            self._refuse(_no_marker(array.path))
            return array
        # A fill value other than zero is only ever set to mean that there is no value.
        marked = for_xarray({**variable.attributes, "_FillValue": fill.item()}, dtype)
        return replace(array, variable=replace(variable, attributes=marked))


def _no_marker(path: str) -> str:
    return (
        f"not every file has values for {path!r}, and without `_FillValue` its empty cells would "
        "look like values: leave it out with `variables`"
    )


def recounted(header: FileHeader, array: PlannedArray) -> NDArray[Any] | None:
    """The copied values of a file as the array has them; `None` if it cannot."""
    values = header.values[array.name]
    dtype = np.dtype(array.variable.dtype)
    way = times_of(header.variables, array.name)
    if array.units is None:
        return values
    if way is None:
        return None
    if way == (array.units, array.calendar) and values.dtype == dtype:
        return values
    own, target = counting(*way), counting(array.units, array.calendar)
    if own is None or target is None:
        return None
    return own.again(values, target, dtype)


def _axis(known: KnownArray, along: str | int) -> int | None:
    names = known.dimensions or ()
    return names.index(along) if isinstance(along, str) and along in names else None


def _all_dimensions(header: FileHeader) -> list[str]:
    names = {name for one in header.variables.values() for name in one.dimensions if name}
    return sorted(names)
