"""Base of all groups of settings: optional values, checked when set, mergeable.

`None` means not set; `RepositoryConfig.resolved` fills in defaults, so a stored configuration
contains only explicit settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from airflow_provider_icechunk.engine.display import Default, Made
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

Check = Callable[[object], str | None]
"""Returns what is wrong with a value, or `None`."""

U8 = (1 << 8) - 1
U16 = (1 << 16) - 1
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1


@dataclass(kw_only=True, slots=True, repr=False)
class Settings(Made):
    """A group of optional settings that can be changed by assignment, like the official ones."""

    extra: dict[str, object] = field(default_factory=dict, repr=False, compare=False)
    """Unknown keys of a stored configuration, kept for rewriting."""

    def __setattr__(self, name: str, value: object) -> None:
        check = _checks(type(self)).get(name)
        problem = check(value) if check is not None and value is not None else None
        if problem:
            raise InvalidInputError(
                f"{type(self).__name__}.{name} {problem}", kind=Kind.INVALID_CONFIG
            )
        object.__setattr__(self, name, value)

    def shown_facts(self) -> Mapping[str, object]:
        """Every setting; the effective default if it was not set."""
        return {name: self._in_effect(name, one) for name, one in self.shown_arguments().items()}

    def _in_effect(self, name: str, value: object) -> object:
        if value is not None:
            return value
        effective = EFFECTIVE.get(type(self), {})
        if name in effective:
            chosen = effective[name]
            return chosen if isinstance(chosen, Settings) else Default(chosen)
        kind = next(f.metadata.get("kind") for f in fields(self) if f.name == name)
        return kind() if kind is not None and issubclass(kind, Settings) else None

    def merge(self, other: Self) -> Self:
        """These settings, overridden by those of `other` that are set."""
        merged: dict[str, Any] = {}
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name == "extra":
                merged["extra"] = {**mine, **theirs}
            elif isinstance(mine, Settings) and isinstance(theirs, Settings) and _deep(item):
                merged[item.name] = mine.merge(theirs)
            else:
                merged[item.name] = mine if theirs is None else theirs
        return type(self)(**merged)


def whole(maximum: int, minimum: int = 0) -> Mapping[str, Any]:
    """Metadata of a field for an optional whole number."""

    def check(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be a whole number, not {type(value).__name__}"
        if not minimum <= value <= maximum:
            return f"must be from {minimum} to {maximum}, not {value}"
        return None

    return {"check": check}


def one(kind: type, *, merge: bool = True) -> Mapping[str, Any]:
    """Metadata of a field for an optional value of type `kind`.

    With `merge` off, merging replaces a group of settings as a whole.
    """
    return {"check": _of(kind), "kind": kind, "merge": merge}


def later(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metadata of a field that official 1.1 does not have: stored only if it was chosen."""
    return {**metadata, "later": True}


def _of(kind: type) -> Check:
    def check(value: object) -> str | None:
        if isinstance(value, kind):
            return None
        return f"must be a {kind.__name__}, not {type(value).__name__}"

    return check


def _deep(item: Any) -> bool:
    return bool(item.metadata.get("merge", True))


EFFECTIVE: dict[type, Mapping[str, object]] = {}
"""Effective values of settings that were not set, for display."""

_CHECKS: dict[type, dict[str, Check]] = {}


def _checks(cls: type[Settings]) -> dict[str, Check]:
    known = _CHECKS.get(cls)
    if known is None:
        known = {f.name: f.metadata["check"] for f in fields(cls) if "check" in f.metadata}
        _CHECKS[cls] = known
    return known
