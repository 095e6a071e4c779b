"""How each generation makes, shows and reads the ids of its objects. Pure.

Ids are bytes everywhere in memory. As text they are Crockford base 32, except in `draft`, whose
state file names snapshots by UUIDs. Whatever shows an id to people or takes one from them does it
here: the text shown has one spelling, the text taken may be in any case.
"""

from __future__ import annotations

import re
from uuid import UUID

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import (
    as_stored,
    decode_base32,
    encode_base32,
    text_length,
)

_UUID_VERSION = 4
_UUID_TEXT = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BASE32_LETTER = "[0-9A-HJKMNP-TV-Z]"


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
    """The id behind a text that a person typed; `InvalidInputError` for any other text.

    Case does not matter, and O, I and L stand for the digits they look like.
    """
    if generation is not Generation.DRAFT:
        return decode_base32(as_stored(text), generation.id_size)
    typed = as_stored(text).lower()
    if not re.fullmatch(_UUID_TEXT, typed):
        raise InvalidInputError(
            f"{text[:64]!r} is not an id: expected a UUID like b7a40d8e-0c44-4a4a-a6a9-0d9c8e2d6a1f"
        )
    return UUID(typed).bytes


def id_pattern(generation: Generation) -> re.Pattern[str]:
    """What ids look like where they stand in other text, in the spelling of `show_id`."""
    if generation is Generation.DRAFT:
        return re.compile(rf"\b{_UUID_TEXT}\b")
    return re.compile(rf"\b{_BASE32_LETTER}{{{text_length(generation.id_size)}}}\b")
