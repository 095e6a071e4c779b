"""Stored values as JSON of a bounded size. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONGEST = 4_000
_MOST_ITEMS = 200
_DEEPEST = 6


def cut(text: str, longest: int = LONGEST) -> str:
    """A text of bounded length; lone surrogates, which JSON cannot carry, are replaced."""
    shown = text if len(text) <= longest else f"{text[:longest]} …"
    return shown.encode("utf-8", "replace").decode()


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as JSON, cut where it is long or deep."""
    shown = bounded(value)
    return shown if isinstance(shown, dict) else {}


def bounded(value: object, depth: int = 0) -> Any:
    """A value as JSON, cut where it is long or deep."""
    match value:
        case None | bool():
            return value
        case int():
            # JavaScript has no larger whole numbers.
            return value if abs(value) <= 1 << 53 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return cut(value)
        case Mapping():
            if depth >= _DEEPEST:
                return "…"
            items = list(value.items())[:_MOST_ITEMS]
            return {cut(str(key), 200): bounded(one, depth + 1) for key, one in items}
        case list() | tuple() | set() | frozenset():
            if depth >= _DEEPEST:
                return "…"
            return [bounded(one, depth + 1) for one in list(value)[:_MOST_ITEMS]]
    return cut(str(value), 400)
