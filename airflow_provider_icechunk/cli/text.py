"""Stored text made safe for a terminal, and numbers made easy for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


def plain(text: str) -> str:
    """`text` in one line that cannot steer a terminal: escapes for all that is not printable."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def first_line(text: str) -> str:
    """The first line of a message, made safe."""
    lines = text.strip().splitlines()
    return plain(lines[0].rstrip()) if lines else ""


def size(number: int) -> str:
    """Bytes in a unit that leaves few digits: `512 B`, `1.2 MB`."""
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:,.1f} PB"


def number(value: int) -> str:
    """A number with its thousands apart."""
    return f"{value:,}"


def several(count: int, what: str, plural: str | None = None) -> str:
    """`1 chunk`, `2 chunks`."""
    return f"{number(count)} {what if count == 1 else plural or what + 's'}"


def shape(lengths: Iterable[int]) -> str:
    """Lengths of the sides of an array."""
    return "(" + ", ".join(map(str, lengths)) + ")"


def json_value(value: object) -> Json:
    """What JSON can say; numbers that it cannot say become text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): json_value(one) for key, one in value.items()}
        case set() | frozenset():
            return [json_value(one) for one in sorted(value)]
        case list() | tuple():
            return [json_value(one) for one in value]
    return str(value)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
