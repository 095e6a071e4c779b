"""An array of a plan, and how a file differs from it: in meaning, or in how it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .contents import DECODING, FileVariable, Json


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array and the variable that it is made from."""

    name: str
    """The path in the files."""
    path: str
    """The path in the repository."""
    variable: FileVariable
    """As the array has it, or will have it; nothing that differs between files is used."""
    axis: int | None
    """The dimension that grows; without one the first file that has it gives everything."""
    loaded: bool
    series: str = ""
    """The group whose files' lengths count."""
    created: bool = True
    absent: tuple[int, ...] = ()
    """Files that do not have the variable."""
    copied: tuple[int, ...] = ()
    """Files whose values are copied, because they are stored in another way."""
    units: str | None = None
    """How its times are counted, if it holds times whose own units do not show it."""
    calendar: str | None = None

    @property
    def chunk(self) -> int:
        """Cells of a chunk along the dimension that grows."""
        return 1 if self.axis is None or self.loaded else self.variable.chunks[self.axis]

    @property
    def origin(self) -> int:
        """The first file that has the variable."""
        number = 0
        while number in self.absent:
            number += 1
        return number


def meaning_of(variable: FileVariable, array: PlannedArray) -> dict[str, object]:
    """What all files have to share, however they store it."""
    found: dict[str, object] = {
        "rank": len(variable.shape),
        "dimensions": variable.dimensions,
        "shape beside the dimension": tuple(
            length for axis, length in enumerate(variable.shape) if axis != array.axis
        ),
    }
    is_time = array.units is not None
    if not (is_time and array.loaded):
        found |= {"type": variable.dtype, "fill value": variable.fill}
    names = [name for name in DECODING if not (is_time and name in ("units", "calendar"))]
    if is_time and array.loaded:
        names.remove("_FillValue")
    return found | {f"attribute {name}": variable.attributes.get(name) for name in names}


def storage_difference(
    found: FileVariable, array: PlannedArray
) -> tuple[str, object, object] | None:
    """What is different in how a file's chunks are stored, with both values."""
    variable = array.variable
    axis = array.axis
    assert axis is not None
    if found.problem != variable.problem:
        return "state", found.problem, variable.problem
    if _decoders(found.codecs) != _decoders(variable.codecs):
        return "filter pipeline", found.codecs, variable.codecs
    if found.contiguous and axis == 0 and found.chunks[1:] == variable.chunks[1:]:
        length, piece = found.shape[0], variable.chunks[0]
        return ("length", length, f"in pieces of {piece}") if length % piece else None
    if found.chunks != variable.chunks:
        return "chunk shape", found.chunks, variable.chunks
    return None


def _decoders(codecs: Sequence[Json]) -> list[Json]:
    """Codecs without how hard they try, which readers need not know."""
    return [
        {
            "name": one["name"],
            "configuration": {k: v for k, v in one["configuration"].items() if k != "level"},
        }
        for one in codecs
    ]
