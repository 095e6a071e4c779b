"""JSON files, read without trusting them, with or without a checksum.

The checksum is for generations whose files are plain JSON in an encoding of this project: without
it a changed digit is a well-formed file that names another object. It is the last member, over all
bytes before it, so checking it needs no encoding. A document without one, because
other software wrote it, is read as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

Object: TypeAlias = Mapping[str, Any]

MAX_DEPTH = 128
_CONTAINER_MEMORY = 72
_ITEM_MEMORY = 40
_U64 = (1 << 64) - 1
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(data: bytes, *, where: str, limit: int) -> Any:
    """Parse strict JSON: `NaN` and duplicate members are refused."""
    if len(data) > limit:
        raise FormatError(
            f"{where}: {len(data)} bytes, more than the limit of {limit}", kind=Kind.LIMIT_EXCEEDED
        )
    try:
        value = json.loads(data.decode(), parse_constant=_refuse, object_pairs_hook=_members)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = str(error) if type(error) is json.JSONDecodeError else type(error).__name__
        raise FormatError(f"{where}: not a valid JSON document ({reason[:200]})") from None
    return value


def memory_of(data: bytes) -> int:
    """Approximate upper bound of the memory of the JSON value in `data`, without parsing it."""
    containers = data.count(b"[") + data.count(b"{")
    return 2 * len(data) + _CONTAINER_MEMORY * containers + _ITEM_MEMORY * data.count(b",")


def dump(value: object, what: str) -> bytes:
    """`value` as compact JSON; `InvalidInputError` names `what` if JSON cannot express it."""
    try:
        check_depth(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (ValueError, TypeError, RecursionError):
        raise InvalidInputError(
            f"{what} cannot be stored: it contains what JSON cannot express (a number that is not "
            f"finite, bytes, broken text) or is nested deeper than {MAX_DEPTH}",
            kind=Kind.INVALID_METADATA,
        ) from None


def check_depth(value: object) -> None:
    """`ValueError` if containers are nested deeper than `MAX_DEPTH`; does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            if isinstance(container, dict | list | tuple)
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return
    raise ValueError("nested too deep")


def check_nesting(value: object, *, where: str) -> None:
    """`FormatError` if containers are nested deeper than `MAX_DEPTH`."""
    try:
        check_depth(value)
    except ValueError:
        raise FormatError(f"{where}: nested deeper than {MAX_DEPTH} levels") from None


def as_object(value: object, what: str, *, where: str, required: Sequence[str] = ()) -> Object:
    """`value` as an object with at least the `required` members."""
    if not isinstance(value, dict):
        raise _wrong(value, what, "an object", where)
    missing = [name for name in required if name not in value]
    if missing:
        raise FormatError(f"{where}: {what} has no {', '.join(missing)}")
    return value


def as_list(value: object, what: str, *, where: str) -> list[Any]:
    """`value` as a list."""
    if not isinstance(value, list):
        raise _wrong(value, what, "a list", where)
    return value


def as_text(value: object, what: str, *, where: str) -> str:
    """`value` as text."""
    if not isinstance(value, str):
        raise _wrong(value, what, "text", where)
    return value


def as_number(value: object, what: str, *, where: str, most: int = _U64) -> int:
    """`value` as an unsigned integer up to `most`; booleans are not numbers."""
    if type(value) is not int or not 0 <= value <= most:
        raise _wrong(value, what, f"an integer from 0 to {most}", where)
    return value


def as_variant(value: object, what: str, *, where: str) -> tuple[str, Any]:
    """An enum value as its name and data; the data of a unit variant is `None`."""
    if isinstance(value, str):
        return value, None
    if not isinstance(value, dict) or len(value) != 1:
        raise _wrong(value, what, "one variant", where)
    ((name, data),) = value.items()
    return name, data


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member occurs twice")
    return members


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _wrong(value: object, what: str, expected: str, where: str) -> FormatError:
    return FormatError(f"{where}: {what} is {repr(value)[:60]}, expected {expected}")


MEMBER = "sha256"
_HEAD = f',"{MEMBER}":"'.encode()
_TAIL = b'"}'
_SIZE = len(_HEAD) + hashlib.sha256().digest_size * 2 + len(_TAIL)


def dump_sealed(value: dict[str, Any], what: str) -> bytes:
    """A non-empty object as compact JSON, with the checksum as an additional member."""
    return seal(dump(value, what).removesuffix(b"}"))


def parse_sealed(data: bytes, *, where: str, limit: int) -> Any:
    """The value in `data` without the checksum, which must be correct if present."""
    value = parse(data, where=where, limit=limit)
    if isinstance(value, dict) and MEMBER in value:
        if seal(data[:-_SIZE]) != data:
            raise FormatError(
                f"{where}: the checksum does not match the content: it was damaged, or edited "
                f"by hand (an edited document must not have the member {MEMBER!r})"
            )
        del value[MEMBER]
    return value


def seal(content: bytes) -> bytes:
    """The document for `content`, an object without its closing bracket."""
    return content + _HEAD + hashlib.sha256(content).hexdigest().encode() + _TAIL
