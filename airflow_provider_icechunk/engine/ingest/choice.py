"""Which parts of the files are wanted, and what their variables say about each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_provider_icechunk.engine.arrays.epochs import counting
from airflow_provider_icechunk.engine.virtual.sources import ChecksumKind
from airflow_provider_icechunk.exceptions import InvalidInputError

from .contents import DECODING, FileVariable

Missing = Literal["error", "fill"]
"""What becomes of the cells of a variable that some files do not have."""
Differing = Literal["error", "copy"]
"""What becomes of files that store a variable in another way than the array does."""
_BOUNDS = ("bounds", "climatology")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts of the files are wanted."""

    along: str | int = "time"
    """The dimension along which files follow each other, by name, or by number if it has none."""
    variables: Mapping[str, str] | None = None
    """From paths in the files to paths of arrays; by default all, under their own paths."""
    load: tuple[str, ...] | None = None
    """Variables whose values are copied; by default those that are named like their dimension, and
    the bounds of such times."""
    into: str = ""
    """A group for everything that has no path of its own."""
    checksum: ChecksumKind = "auto"
    missing: Missing = "error"
    differing: Differing = "error"

    def takes(self, name: str) -> bool:
        """Whether a variable is wanted."""
        return self.variables is None or name in self.variables

    def loaded(self, variables: Mapping[str, FileVariable]) -> set[str]:
        """The variables of a file whose values are copied."""
        if self.load is not None:
            return {name for name in self.load if name in variables}
        own = {name for name, one in variables.items() if one.dimensions == (_leaf(name),)}
        return own | {bounds for bounds, of in bounds_of(variables).items() if of in own}

    def array(self, name: str) -> str:
        """Where a variable goes."""
        return "/".join(
            filter(None, (self.into.strip("/"), (self.variables or {}).get(name, name)))
        )

    def axis(self, variable: FileVariable) -> int | None:
        """Which dimension of a variable grows, if one does."""
        if isinstance(self.along, int):
            return self.along if self.along < len(variable.shape) else None
        found = [axis for axis, name in enumerate(variable.dimensions) if name == self.along]
        return found[0] if found else None

    def series(self, name: str, names: Sequence[str]) -> str:
        """The group whose coordinate counts the cells of a variable: its own, or one above."""
        group = name
        while "/" in group:
            group = group.rpartition("/")[0]
            if f"{group}/{self.along}" in names:
                return group
        return ""


def choose(
    variables: Sequence[str] | Mapping[str, str] | None,
    *,
    along: str | int,
    load: Sequence[str] | None,
    into: str,
    checksum: ChecksumKind,
    missing: Missing = "error",
    differing: Differing = "error",
) -> Choice:
    """The choice that the arguments of a call make."""
    if missing not in ("error", "fill"):
        raise InvalidInputError(f"`missing` is 'error' or 'fill', not {missing!r}")
    if differing not in ("error", "copy"):
        raise InvalidInputError(f"`differing` is 'error' or 'copy', not {differing!r}")
    if variables is not None and not isinstance(variables, Mapping):
        variables = {name: name for name in variables}
    wanted = None
    if variables is not None:
        wanted = {name.strip("/"): path.strip("/") for name, path in variables.items()}
    copied = None if load is None else tuple(name.strip("/") for name in load)
    return Choice(along, wanted, copied, into, checksum, missing, differing)


def times_of(variables: Mapping[str, FileVariable], name: str) -> tuple[str, str | None] | None:
    """How a variable's times are counted: by its own units, or those of the times it bounds."""
    variable = variables.get(name)
    if variable is None:
        return None
    if "units" not in variable.attributes:
        of = bounds_of(variables).get(name)
        if of is None:
            return None
        variable = variables[of]
    units, calendar = variable.attributes["units"], variable.attributes.get("calendar")
    return (units, calendar) if counting(units, calendar) is not None else None


def bounds_of(variables: Mapping[str, FileVariable]) -> dict[str, str]:
    """Variables that hold the bounds of others' cells: they count as those do."""
    found = {}
    for name, one in variables.items():
        group = name.rpartition("/")[0]
        for key in _BOUNDS:
            target = "/".join(filter(None, (group, str(one.attributes.get(key, "")))))
            if key in one.attributes and target in variables:
                found[target] = name
    return found


def without_details(variable: FileVariable) -> FileVariable:
    """A variable without the attributes that may differ between files."""
    names = (*DECODING, *_BOUNDS)
    kept = {name: variable.attributes[name] for name in names if name in variable.attributes}
    return replace(variable, attributes=kept)


def _leaf(name: str) -> str:
    return name.rsplit("/", 1)[-1]
