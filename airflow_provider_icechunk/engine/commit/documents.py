"""Merge two versions of a `zarr.json` that began as one. Pure.

Attributes are merged key by key. A shape that both sides only enlarged gets the larger length of
each dimension. Whatever determines how chunk bytes are read, and the names of dimensions, is never
merged: both sides must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]

_MISSING = object()
_EMPTY: dict[str, object] = {
    "storage_transformers": [],
    "consolidated_metadata": None,
    "dimension_names": None,
}
"""Values equivalent to a missing key."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that both sides set to different values."""

    key: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.key} is {_shown(self.ours)} here and {_shown(self.theirs)} there"


def merge_documents(
    base: Document | None, ours: Document, theirs: Document
) -> dict[str, Any] | list[Difference]:
    """The merged document, or where the two contradict each other.

    :param base: their common base; `None` if both created the node.
    """
    differences: list[Difference] = []
    merged = dict(theirs)
    for key in {*ours, *theirs} - {"attributes", "shape"}:
        mine, other = _of(ours, key), _of(theirs, key)
        if is_same(mine, other):
            continue
        before = _MISSING if base is None else _of(base, key)
        is_array = "shape" in theirs
        if is_array or base is None or not _put(merged, key, before, mine, other):
            differences.append(Difference(f"`{key}`", mine, other))
    attributes = _merge_attributes(base, ours, theirs, differences)
    if attributes or "attributes" in theirs:
        merged["attributes"] = attributes
    if "shape" in theirs or "shape" in ours:
        shape = _merge_shapes(base, ours, theirs)
        if shape is None:
            differences.append(Difference("`shape`", ours.get("shape"), theirs.get("shape")))
        else:
            merged["shape"] = shape
    return differences or merged


def is_same(one: object, other: object) -> bool:
    """Whether two JSON values are the same text: `1`, `1.0` and `true` are three values."""
    if one is _MISSING or other is _MISSING:
        return one is other
    return _text(one) == _text(other)


def encoded(document: Document) -> bytes:
    """A document in its stored form."""
    return json.dumps(document, ensure_ascii=False).encode()


def grew_only(before: object, after: object) -> bool:
    """Whether no length of a shape decreased."""
    return (
        isinstance(before, list | tuple)
        and isinstance(after, list | tuple)
        and len(before) == len(after)
        and all(old <= new for old, new in zip(before, after, strict=True))
    )


def _merge_attributes(
    base: Document | None, ours: Document, theirs: Document, differences: list[Difference]
) -> dict[str, Any]:
    old, mine, other = (_attributes(one) for one in (base or {}, ours, theirs))
    merged = dict(other)
    for key in [*other, *(key for key in mine if key not in other), *old]:
        values = (one.get(key, _MISSING) for one in (old, mine, other))
        if not _put(merged, key, *values):
            found = mine.get(key, _MISSING), other.get(key, _MISSING)
            differences.append(Difference(f"attribute {key!r}", *found))
    return merged


def _put(merged: dict[str, Any], key: str, before: object, mine: object, other: object) -> bool:
    """Merge one key; returns whether that was possible."""
    if is_same(mine, other) or is_same(mine, before):
        chosen = other
    elif is_same(other, before):
        chosen = mine
    else:
        return False
    if chosen is _MISSING:
        merged.pop(key, None)
    else:
        merged[key] = chosen
    return True


def _merge_shapes(base: Document | None, ours: Document, theirs: Document) -> list[int] | None:
    mine, other = ours.get("shape"), theirs.get("shape")
    before = None if base is None else base.get("shape")
    if not isinstance(mine, list) or not isinstance(other, list) or len(mine) != len(other):
        return None
    if mine in (other, before):
        return other
    if other == before:
        return mine
    if before is not None and not (grew_only(before, mine) and grew_only(before, other)):
        return None
    return [max(pair) for pair in zip(mine, other, strict=True)]


def _attributes(document: Document) -> Mapping[str, Any]:
    found = document.get("attributes")
    return found if isinstance(found, Mapping) else {}


def _of(document: Document, key: str) -> object:
    value = document.get(key, _MISSING)
    return _MISSING if key in _EMPTY and value in (_EMPTY[key], None) else value


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: object) -> str:
    if value is _MISSING:
        return "missing"
    text = _text(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
