"""Metadata values of generation `2`: JSON values as FlexBuffers, bounded in size."""

from __future__ import annotations

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind
from airflow_provider_icechunk.format.wire import flexbuffers
from airflow_provider_icechunk.format.wire.flexbuffers import Json

MAX_VALUE = 1 << 20
"""Longest encoded value."""


def decode_value(data: bytes, where: str, memory: Purse | None = None) -> Json:
    """The JSON value in `data`."""
    if len(data) > MAX_VALUE:
        raise FormatError(f"{where}: a metadata value has {len(data)} bytes, too many")
    return flexbuffers.decode(data, where=where, memory=memory)


def encode_value(name: str, value: object) -> bytes:
    """`value` as FlexBuffers; refuses what JSON cannot say."""
    try:
        data = flexbuffers.encode(value)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"the metadata value {name[:80]!r}: {error.message}", kind=Kind.INVALID_METADATA
        ) from None
    if len(data) > MAX_VALUE:
        raise InvalidInputError(
            f"the metadata value {name[:80]!r} has {len(data)} bytes, more than {MAX_VALUE}",
            kind=Kind.INVALID_METADATA,
        )
    return data
