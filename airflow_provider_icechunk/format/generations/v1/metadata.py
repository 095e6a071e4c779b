"""Values of snapshot metadata: JSON values as MessagePack, bounded in size and depth."""

from __future__ import annotations

from typing import Any

import msgpack

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind
from airflow_provider_icechunk.format.wire.messagepack import measure

MAX_VALUE = 1 << 20
"""Longest encoded value."""
MAX_DEPTH = 32


def decode_value(data: bytes, where: str, memory: Purse | None = None) -> Any:
    """The JSON value in `data`."""
    if len(data) > MAX_VALUE:
        raise FormatError(f"{where}: a metadata value has {len(data)} bytes, too many")
    try:
        measure(data, memory, where=f"{where}: a metadata value")
        value = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException):
        raise FormatError(f"{where}: a metadata value is not one MessagePack value") from None
    if not _is_json(value, MAX_DEPTH):
        raise FormatError(
            f"{where}: a metadata value is no JSON value, or nested more than {MAX_DEPTH} deep"
        )
    return value


def encode_value(name: str, value: Any) -> bytes:
    """`value` as MessagePack; refuses what JSON cannot say."""
    problem = "it is not a JSON value (null, boolean, 64-bit number, text, list, object)"
    try:
        if _is_json(value, MAX_DEPTH):
            data: bytes = msgpack.packb(value)
            if len(data) <= MAX_VALUE:
                return data
            problem = f"it has {len(data)} bytes, more than {MAX_VALUE}"
    except (ValueError, TypeError, OverflowError):
        pass
    raise InvalidInputError(
        f"the metadata value {name[:80]!r} cannot be stored: {problem}", kind=Kind.INVALID_METADATA
    )


def _is_json(value: Any, depth: int) -> bool:
    if depth < 0:
        return False
    match value:
        case None | bool() | int() | float() | str():
            return True
        case list() | tuple():
            return all(_is_json(item, depth - 1) for item in value)
        case dict():
            return all(
                isinstance(key, str) and _is_json(item, depth - 1) for key, item in value.items()
            )
        case _:
            return False
