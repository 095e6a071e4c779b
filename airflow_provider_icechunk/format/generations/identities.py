"""How each generation makes, shows and reads the ids of its objects. Pure.

Ids are bytes everywhere in memory. As text they are Crockford base 32, except in `draft`, whose
state file names snapshots by UUIDs.
"""

from __future__ import annotations

from uuid import UUID

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import decode_base32, encode_base32

_UUID_VERSION = 4


def new_id(generation: Generation, entropy: bytes) -> bytes:
    """An id made of `generation.id_size` random bytes."""
    if generation is not Generation.DRAFT:
        return entropy
    return UUID(bytes=entropy, version=_UUID_VERSION).bytes


def show_id(generation: Generation, identity: bytes) -> str:
    """The text by which people and reference documents name an object."""
    if generation is Generation.DRAFT and len(identity) == generation.id_size:
        return str(UUID(bytes=identity))
    return encode_base32(identity)


def parse_id(generation: Generation, text: str) -> bytes:
    """The id behind a text; `InvalidInputError` for any other text."""
    if generation is not Generation.DRAFT:
        return decode_base32(text, generation.id_size)
    try:
        identity = UUID(text)
        if str(identity) == text:
            return identity.bytes
    except ValueError:
        pass
    raise InvalidInputError(f"{text[:64]!r} is not an id: expected a UUID in lower case")
