"""The declaration of a pipeline's data: dimensions, variables, coordinates.

Pure. A declaration means *at least this*: it never shrinks anything. It is checked when it is
created, which is when a DAG is parsed, so this module needs only the standard library.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from .growing import Growing, Label, checked_attrs, is_blank, no_label

__all__ = ["Coordinate", "Growing", "IcechunkDataset", "Label", "Placement", "Variable"]

VERSION = 1
MOST_VALUES = 1_000_000
"""The most values of a coordinate; let a task write longer ones."""
Dimension = int | Growing
Scalar = bool | int | float | str

_NAME = re.compile(r"[^/\s.][^/]*")
_DTYPE = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)|str"
    r"|[<>|=]?[biufcSUV]\d{1,6}|(datetime64|timedelta64)\[(W|D|h|m|s|ms|us|ns)\]"
)
_SIZE = re.compile(r"(\d+)$")
_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True, slots=True)
class Variable:
    """An array of a dataset."""

    dtype: str
    dims: tuple[str, ...]
    chunks: tuple[int, ...] | None = None
    """By default one step of each growing dimension, and all of the others."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Scalar | None = None
    """The value of cells that were never written; by default zero."""
    shards: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "dtype", _dtype("Variable", self.dtype))
        if isinstance(cast("Any", self.dims), str):
            raise _wrong(f"Variable: dims must be a sequence of names, such as ({self.dims!r},)")
        put(self, "dims", tuple(self.dims))
        put(self, "attrs", checked_attrs("Variable", self.attrs))
        for key in ("chunks", "shards"):
            lengths = getattr(self, key)
            if lengths is not None:
                put(self, key, _lengths(f"Variable: {key}", lengths))
                if len(lengths) != len(self.dims):
                    raise _wrong(
                        f"Variable: {len(lengths)} {key} {tuple(lengths)} for {len(self.dims)} "
                        f"dimensions {self.dims}"
                    )
        if self.shards is not None:
            if self.chunks is None:
                raise _wrong("Variable: shards need chunks")
            if any(shard % chunk for shard, chunk in zip(self.shards, self.chunks, strict=True)):
                raise _wrong(
                    f"Variable: shards {self.shards} are not multiples of chunks {self.chunks}"
                )
        put(self, "fill_value", _fill_value(self.fill_value))

    def to_json(self) -> dict[str, Any]:
        """The value as plain JSON."""
        value: dict[str, Any] = {"dtype": self.dtype, "dims": list(self.dims)}
        for key in ("chunks", "shards"):
            lengths = getattr(self, key)
            if lengths is not None:
                value[key] = list(lengths)
        if self.attrs:
            value["attrs"] = dict(self.attrs)
        if self.fill_value is not None:
            value["fill_value"] = self.fill_value
        return value


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The labels of a dimension of fixed length: evenly spaced, or each by itself."""

    start: int | float | None = None
    step: int | float | None = None
    values: tuple[Any, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    """By default `int64`, `float64` or `str`, depending on the values."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "attrs", checked_attrs("Coordinate", self.attrs))
        if (self.values is None) == (self.start is None or self.step is None):
            raise _wrong("a Coordinate has either start and step, or values")
        if self.values is not None:
            put(self, "values", _plain_values(self.values))
        found = (self.start, self.step) if self.values is None else self.values
        put(self, "dtype", _coordinate_type(found) if self.dtype is None else self.dtype)
        put(self, "dtype", _dtype("Coordinate", self.dtype))

    def to_json(self) -> dict[str, Any]:
        """The value as plain JSON."""
        value: dict[str, Any] = {"dtype": self.dtype}
        if self.values is None:
            value.update(start=self.start, step=self.step)
        else:
            value["values"] = list(self.values)
        if self.attrs:
            value["attrs"] = dict(self.attrs)
        return value


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a run belongs in a dataset."""

    regions: dict[str, tuple[int, int]]
    """For growing dimensions, from the first position up to but not including the second. A
    dimension without fixed steps is missing until `ensure` has found its position in a session.
    """
    labels: dict[str, list[Label]]
    """The labels of the run, for each growing dimension."""
    lengths: dict[str, int]
    """The minimum length of every dimension."""

    def region(self, dims: Sequence[str]) -> tuple[tuple[int, int], ...]:
        """The part of an array with these dimensions that belongs to the run."""
        return tuple(self.regions.get(dim) or (0, self.lengths[dim]) for dim in dims)

    def to_json(self) -> dict[str, Any]:
        """The value as plain JSON."""
        return {
            "regions": {dim: list(region) for dim, region in self.regions.items()},
            "labels": {dim: list(labels) for dim, labels in self.labels.items()},
            "lengths": dict(self.lengths),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Placement:
        """The value that `to_json` made."""
        _closed("a placement", value, {"regions", "labels", "lengths"}, set())
        try:
            regions = {
                str(dim): (int(start), int(stop)) for dim, (start, stop) in value["regions"].items()
            }
            labels = {str(dim): list(found) for dim, found in value["labels"].items()}
            lengths = {str(dim): int(length) for dim, length in value["lengths"].items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise _wrong(f"not a placement: {error}") from None
        return cls(regions, labels, lengths)


@dataclass(frozen=True, slots=True)
class IcechunkDataset:
    """The minimum structure of a pipeline's data, declared once and shared by its tasks.

    .. code-block:: python

        from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable

        weather = IcechunkDataset(
            "weather",
            dims={"time": Growing(start="2026-01-01", every="1D"), "latitude": 721},
            variables={"t2m": Variable("float32", ("time", "latitude"), chunks=(1, 721))},
            coords={"latitude": Coordinate(start=90, step=-0.25)},
        )

    Equal by content. Parallel runs share the chunks that are longer than one step along a growing
    dimension; that is allowed, but has a cost, and making the declaration gives a warning about it.
    """

    repository: str
    dims: Mapping[str, Dimension]
    variables: Mapping[str, Variable]
    coords: Mapping[str, Coordinate | Sequence[Any]] = field(default_factory=dict)
    """Of dimensions of fixed length; `coordinates` has the values in one form."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    branch: str = "main"
    icechunk_conn_id: str = "icechunk_default"

    def __post_init__(self) -> None:
        put = object.__setattr__
        for key in ("repository", "branch", "icechunk_conn_id"):
            if not isinstance(getattr(self, key), str) or not getattr(self, key):
                raise _wrong(f"IcechunkDataset: {key} must be a non-empty string")
        put(self, "group", _group(self.group))
        put(self, "dims", {_name(name): _dimension(name, dim) for name, dim in self.dims.items()})
        put(self, "variables", {_name(name): found for name, found in self.variables.items()})
        put(self, "coords", {name: _coordinate(found) for name, found in self.coords.items()})
        put(self, "attrs", checked_attrs("IcechunkDataset", self.attrs))
        for name, variable in self.variables.items():
            self._check_variable(name, variable)
        for name, coordinate in self.coordinates.items():
            self._check_coordinate(name, coordinate)
        for name, variable in self.variables.items():
            if text := self.shared_chunks(name, variable):
                warnings.warn(text, UserWarning, stacklevel=3)

    @property
    def growing(self) -> dict[str, Growing]:
        """The dimensions that grow."""
        return {name: dim for name, dim in self.dims.items() if isinstance(dim, Growing)}

    @property
    def coordinates(self) -> dict[str, Coordinate]:
        """The declared labels of dimensions of fixed length."""
        return {name: _coordinate(found) for name, found in self.coords.items()}

    def chunks_of(self, variable: str | Variable) -> tuple[int, ...]:
        """The chunk lengths of a variable, with the default filled in."""
        found = self.variables[variable] if isinstance(variable, str) else variable
        if found.chunks is not None:
            return found.chunks
        lengths = (self.dims[dim] for dim in found.dims)
        return tuple(
            length.steps_per_run if isinstance(length, Growing) else max(length, 1)
            for length in lengths
        )

    def path(self, name: str) -> str:
        """The path of an array of the dataset in the repository."""
        return f"{self.group}/{name}" if self.group else name

    def place(self, at: Mapping[str, Any] | str | None) -> Placement:
        """Where a run belongs: `{"time": label}`, a list of labels, or `{"from": , "until": }`.

        `until` is not included. Also accepts JSON text, as templates produce it.
        """
        growing = self.growing
        given = _parse_at(at)
        unknown = [name for name in given if name not in growing]
        if unknown:
            raise _wrong(
                f"`at` names {unknown[0]!r}, and the growing dimensions of {self.repository!r} are "
                f"{', '.join(map(repr, growing)) or 'none'}"
            )
        regions: dict[str, tuple[int, int]] = {}
        labels: dict[str, list[Label]] = {}
        lengths = {name: dim for name, dim in self.dims.items() if isinstance(dim, int)}
        for name, dim in growing.items():
            if name not in given:
                raise _wrong(f"`at` must say where along {name!r} the run belongs")
            if dim.is_regular:
                start, stop = _regular(name, dim, given[name])
                regions[name], lengths[name] = (start, stop), stop
                labels[name] = list(dim.texts(start, stop))
            else:
                labels[name] = _irregular(name, dim, given[name])
                lengths[name] = 0
        return Placement(regions, labels, lengths)

    def shared_chunks(self, name: str, variable: Variable) -> str | None:
        """The cost of runs sharing the chunks of a variable, or None if they do not."""
        lengths = variable.shards or self.chunks_of(variable)
        pairs = list(zip(variable.dims, lengths, strict=True))
        growing = self.growing
        shared = [(dim, n) for dim, n in pairs if dim in growing and growing[dim].steps_per_run % n]
        if not shared:
            return None
        size = _item_size(variable.dtype) * math.prod(lengths)
        for dim, length in pairs:
            whole = self.dims[dim]
            size *= 1 if isinstance(whole, Growing) else -(-whole // length)
        steps = " and ".join(f"{length} steps of {dim!r}" for dim, length in shared)
        kind = "shards" if variable.shards else "chunks"
        dim, length = shared[0]
        run = growing[dim].steps_per_run
        written = "one step" if run == 1 else f"{run} steps"
        return (
            f"{name!r} of {self.repository!r}: runs in parallel share {kind} of {steps}; each run "
            f"reads and rewrites {_bytes(size)} to write {written}. "
            f"They do not meet with {kind} of {run} along {dim!r}, or if each run writes "
            f"{length} steps and {dim!r} says so: Growing(..., steps_per_run={length})"
        )

    def to_json(self) -> dict[str, Any]:
        """The declaration as plain JSON."""
        return {
            "version": VERSION,
            "repository": self.repository,
            "dims": {
                name: dim.to_json() if isinstance(dim, Growing) else dim
                for name, dim in self.dims.items()
            },
            "variables": {name: found.to_json() for name, found in self.variables.items()},
            "coords": {name: found.to_json() for name, found in self.coordinates.items()},
            "attrs": dict(self.attrs),
            "group": self.group,
            "branch": self.branch,
            "icechunk_conn_id": self.icechunk_conn_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> IcechunkDataset:
        """The declaration that `to_json` made; refuses unknown keys and other versions."""
        if isinstance(value, str):
            value = _json_object("a dataset", value)
        known = {"repository", "dims", "variables"}
        more = {"version", "coords", "attrs", "group", "branch", "icechunk_conn_id"}
        _closed("a dataset", value, known, more)
        if value.get("version", VERSION) != VERSION:
            raise _wrong(f"a dataset of version {value['version']}: this release reads {VERSION}")
        for key in ("dims", "variables", "coords", "attrs"):
            if not isinstance(value.get(key, {}), Mapping):
                raise _wrong(f"a dataset: {key} is not a mapping")
        rest = {key: value[key] for key in more - {"version", "coords"} if key in value}
        with warnings.catch_warnings():
            # The author of the declaration was warned.
            warnings.simplefilter("ignore", UserWarning)
            return cls(
                value["repository"],
                {
                    name: _made(f"dims[{name!r}]", Growing, dim)
                    if isinstance(dim, Mapping)
                    else dim
                    for name, dim in value["dims"].items()
                },
                {
                    name: _made(f"variables[{name!r}]", Variable, found)
                    for name, found in value["variables"].items()
                },
                {
                    name: _made(f"coords[{name!r}]", Coordinate, found)
                    for name, found in value.get("coords", {}).items()
                },
                **rest,
            )

    def on(self, **changes: Any) -> IcechunkDataset:
        """The same declaration with another `repository`, `group`, `branch` or connection."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return replace(self, **changes)

    def _check_variable(self, name: str, variable: Variable) -> None:
        if not isinstance(variable, Variable):
            raise _wrong(f"variables[{name!r}] is not a Variable")
        if name in self.dims:
            raise _wrong(
                f"{name!r} is a dimension and a variable: declare its labels with coords={{...}}"
            )
        missing = [dim for dim in variable.dims if dim not in self.dims]
        if missing:
            raise _wrong(
                f"variables[{name!r}] has the dimension {missing[0]!r}; declared are "
                f"{', '.join(map(repr, self.dims))}"
            )
        if len(set(variable.dims)) != len(variable.dims):
            raise _wrong(f"variables[{name!r}] has a dimension twice: {variable.dims}")

    def _check_coordinate(self, name: str, coordinate: Coordinate) -> None:
        length = self.dims.get(name)
        if isinstance(length, Growing):
            raise _wrong(f"coords[{name!r}]: the labels of a growing dimension come from Growing")
        if length is None:
            raise _wrong(
                f"coords[{name!r}] is not a dimension; declared are "
                f"{', '.join(map(repr, self.dims))}"
            )
        if length > MOST_VALUES:
            raise _wrong(
                f"coords[{name!r}] has {length} values; at most {MOST_VALUES} can be declared"
            )
        if coordinate.values is not None and len(coordinate.values) != length:
            raise _wrong(
                f"coords[{name!r}] has {len(coordinate.values)} values, and the dimension has "
                f"length {length}"
            )


def _regular(name: str, dim: Growing, wanted: Any) -> tuple[int, int]:
    if isinstance(wanted, Mapping):
        if set(wanted) != {"from", "until"}:
            raise _wrong(f'`at` of {name!r}: a range is {{"from": first, "until": end}}')
        start, stop = (dim.position(wanted[key], name) for key in ("from", "until"))
        if stop <= start:
            raise _wrong(
                f"`at` of {name!r}: nothing lies from {wanted['from']} until {wanted['until']}, "
                "not included"
            )
        return start, stop
    if not isinstance(wanted, list | tuple):
        start = dim.position(wanted, name)
        return start, start + 1
    if not wanted:
        raise no_label(name)
    places = sorted(dim.position(label, name) for label in wanted)
    for before, after in pairwise(places):
        if after != before + 1:
            first, second = (dim.text(dim.label(place)) for place in (before, after))
            raise _wrong(
                f"`at` of {name!r}: the labels are not one block, {second} follows {first}: write "
                "each block in a run of its own"
            )
    return places[0], places[-1] + 1


def _irregular(name: str, dim: Growing, wanted: Any) -> list[Label]:
    if isinstance(wanted, Mapping):
        raise _wrong(f"`at` of {name!r}: an axis with by='labels' has no ranges: list the labels")
    labels = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    if not labels:
        raise no_label(name)
    keys = [dim.key(label, name) for label in labels]
    if len(set(keys)) != len(keys):
        raise _wrong(f"`at` of {name!r} names a label twice")
    return keys


def _parse_at(at: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    if at is None:
        return {}
    if isinstance(at, str):
        if is_blank(at):
            raise no_label("at")
        return _json_object('`at`, such as {"time": "2026-01-31"},', at)
    if not isinstance(at, Mapping):
        raise _wrong(f'`at` must be a mapping, such as {{"time": "2026-01-31"}}, not {at!r}')
    return at


def _json_object(what: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _wrong(f"{what} must be a mapping or its JSON text, not {text[:100]!r}")
    return value


def _made(place: str, kind: type[Any], value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(f"{place} is not a mapping")
    _closed(place, value, set(), set(kind.__dataclass_fields__))
    try:
        return kind(**value)
    except TypeError as error:
        raise _wrong(f"{place}: {error}") from None


def _closed(what: str, value: Mapping[str, Any], needed: set[str], more: set[str]) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(f"{what} is a mapping")
    if lacking := sorted(needed - set(value)):
        raise _wrong(f"{what} has no {lacking[0]!r}")
    if unknown := sorted(set(map(str, value)) - needed - more):
        raise _wrong(f"{what} has the unknown key {unknown[0]!r}")


def _dimension(name: str, value: Any) -> Dimension:
    if isinstance(value, Growing):
        return value
    if type(value) is not int or value < 0:
        raise _wrong(f"dims[{name!r}] must be a length or a Growing, not {value!r}")
    return value


def _coordinate(value: Any) -> Coordinate:
    return value if isinstance(value, Coordinate) else Coordinate(values=value)


def _plain_values(values: Any) -> tuple[Any, ...]:
    # NumPy arrays have `tolist`, so NumPy need not be imported.
    if isinstance(values, str | bytes | Mapping):
        raise _wrong("the values of a Coordinate must be a sequence")
    plain = tuple(values.tolist() if hasattr(values, "tolist") else values)
    for value in plain:
        if not isinstance(value, bool | int | float | str) or value != value:
            raise _wrong(f"the values of a Coordinate must be numbers or strings, not {value!r}")
    return plain


def _coordinate_type(values: Sequence[Any]) -> str:
    if any(isinstance(value, str) for value in values):
        if not all(isinstance(value, str) for value in values):
            raise _wrong("the values of a Coordinate must be numbers or strings, not both")
        return "str"
    return "int64" if all(isinstance(value, int) for value in values) else "float64"


def _dtype(owner: str, value: Any) -> str:
    if not isinstance(value, str) or not _DTYPE.fullmatch(value):
        raise _wrong(f"{owner}: {value!r} is not a data type: use a NumPy name, such as 'float32'")
    return value


def _lengths(what: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        lengths = tuple(values)
    except TypeError:
        raise _wrong(f"{what} must be whole numbers, one per dimension") from None
    if any(type(length) is not int or length < 1 for length in lengths):
        raise _wrong(f"{what} {lengths} must be whole numbers, each at least 1")
    return lengths


def _fill_value(value: Any) -> Scalar | None:
    """A fill value in its only spelling, including those that JSON cannot express."""
    if isinstance(value, float) and not math.isfinite(value):
        return _NOT_FINITE.get(value, "NaN")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise _wrong(f"Variable: fill_value {value!r} is not a number, a boolean or a string")
    return value


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "zarr.json":
        raise _wrong(f"{name!r} is not a valid name for a dimension or a variable")
    return name


def _group(path: str) -> str:
    if not isinstance(path, str):
        raise _wrong(f"IcechunkDataset: group must be a path, not {path!r}")
    plain = path.strip("/")
    if plain:
        for part in plain.split("/"):
            _name(part)
    return plain


def _item_size(dtype: str) -> int:
    """Bytes of a value, for the cost in a warning; texts of any length count as 16."""
    if dtype == "bool":
        return 1
    if dtype == "str":
        return 16
    if dtype.endswith("]"):
        return 8
    size = _SIZE.search(dtype)
    assert size is not None
    number = int(size[1])
    if dtype[-len(size[1]) - 1] == "U":
        return 4 * number
    return number if len(dtype.lstrip("<>|=")) <= len(size[1]) + 1 else max(1, number // 8)


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind=Kind.INVALID_METADATA)
