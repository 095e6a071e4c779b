"""Ids and times as the shapes of `alpha` store them.

An id was text up to December 2024, and an array of binary and an empty array later; a node id was
a 32-bit number at first, which becomes eight big-endian bytes here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from airflow_provider_icechunk.engine.format.ids import (
    NODE_ID_SIZE,
    OBJECT_ID_SIZE,
    ManifestId,
    NodeId,
    SnapshotId,
    decode_base32,
)
from airflow_provider_icechunk.engine.format.wire.messagepack import (
    Value,
    as_number,
    as_pairs,
    as_text,
    is_array,
)
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

_LAST_VERSION = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:\d{2})", re.ASCII
)


def decode_id(value: Value, what: str, *, where: str, size: int = OBJECT_ID_SIZE) -> bytes:
    """The bytes of an id in either of its forms."""
    if isinstance(value, str):
        try:
            return decode_base32(value, size)
        except InvalidInputError as error:
            raise FormatError(f"{where}: {what}: {error.message}") from None
    if is_array(value) and len(value) == 2 and value[1] == ():
        identity = value[0]
        if isinstance(identity, bytes) and len(identity) == size:
            return identity
    raise FormatError(f"{where}: {what} is not an id of {size} bytes")


def decode_snapshot_id(value: Value, *, where: str) -> SnapshotId:
    """The id of a snapshot."""
    return SnapshotId(decode_id(value, "the id of a snapshot", where=where))


def decode_manifest_id(value: Value, *, where: str) -> ManifestId:
    """The id of a manifest."""
    return ManifestId(decode_id(value, "the id of a manifest", where=where))


def decode_node_id(value: Value, *, where: str) -> NodeId:
    """The id of a node, numbers of the first shapes included."""
    if type(value) is int and 0 <= value < 1 << 32:
        return NodeId(value.to_bytes(NODE_ID_SIZE, "big"))
    return NodeId(decode_id(value, "the id of a node", where=where, size=NODE_ID_SIZE))


def check_version(value: Value, *, where: str) -> None:
    """Refuse a record of an unknown version."""
    as_number(value, "the version of a record", where=where, most=_LAST_VERSION)


def check_flags(value: Value, *, where: str) -> None:
    """Refuse flags: no writer set any, so their meaning is unknown."""
    flags = as_pairs(value, "the flags of a record", where=where)
    if flags:
        raise FormatError(f"{where}: has the unknown flag {repr(flags[0][0])[:60]}")


def encode_id(identity: bytes) -> bytes:
    """An id in its later form."""
    return b"\x92\xc4" + bytes([len(identity)]) + identity + b"\x90"


def decode_time(value: Value, *, where: str) -> int:
    """Microseconds since 1970 UTC; files have nanoseconds, which are truncated."""
    text = as_text(value, "a time", where=where)
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        seconds = datetime.fromisoformat(match[1] + match[3])
        whole = (seconds - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        raise FormatError(f"{where}: {text[:64]!r} is not an RFC 3339 time") from None
    return whole + int((match[2] or "0").ljust(9, "0")[:6])


def encode_time(microseconds: int) -> str:
    """RFC 3339 in UTC with zero, three or six fractional digits, as few as needed."""
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidInputError(f"{microseconds} microseconds are not a storable time") from None
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = moment.microsecond
    if fraction % 1000:
        text += f".{fraction:06d}"
    elif fraction:
        text += f".{fraction // 1000:03d}"
    return text + "Z"
