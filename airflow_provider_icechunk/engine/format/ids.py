"""Ids: random bytes in memory, Crockford base 32 in names, never derived from content. Pure.

Snapshots, manifests and chunks have 12 bytes (20 characters), nodes 8 (13 characters); two early
generations used 16. Bits are taken most significant first and zero bits are appended on the right.

`format_id` and `parse_id` convert ids to and from text for people; any case is accepted. In `draft`
that text is a UUID. `encode_base32` and `decode_base32` are for file names and stored documents,
which have only one form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NewType
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from .generation import Generation

SnapshotId = NewType("SnapshotId", bytes)
ManifestId = NewType("ManifestId", bytes)
ChunkId = NewType("ChunkId", bytes)
AttributesId = NewType("AttributesId", bytes)
NodeId = NewType("NodeId", bytes)

OBJECT_ID_SIZE = 12
EARLY_OBJECT_ID_SIZE = 16
NODE_ID_SIZE = 8

INITIAL_SNAPSHOT_ID = SnapshotId(bytes.fromhex("0b1cc8d6787580f0e33a6534"))
"""The fixed id of the first snapshot of a repository in generations `1` (since 0.2.18) and `2`."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_AS_TYPED = str.maketrans("abcdefghijklmnopqrstuvwxyzILO", "ABCDEFGH1JK1MN0PQRSTUVWXYZ110")
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_LETTERS = np.frombuffer(_ALPHABET.encode(), np.uint8)
_VALUES = np.full(256, 255, np.uint8)
_VALUES[_LETTERS] = np.arange(32, dtype=np.uint8)
_UUID_VERSION = 4
_UUID_TEXT = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def text_length(size: int) -> int:
    """Number of characters of an id of `size` bytes."""
    return -(-size * 8 // 5)


def encode_base32(data: bytes) -> str:
    """Encode as Crockford base 32, upper case, without padding characters."""
    length = text_length(len(data))
    bits = (length + length % 2) * 5
    number = int.from_bytes(data, "big") << (bits - len(data) * 8)
    pairs = [_PAIRS[number >> shift & 1023] for shift in range(bits - 10, -1, -10)]
    return "".join(pairs)[:length]


def decode_base32(text: str, size: int = OBJECT_ID_SIZE) -> bytes:
    """Decode `size` bytes; raises for other lengths, letters and non-zero padding bits."""
    length = text_length(size)
    spare = length * 5 - size * 8
    try:
        if len(text) != length:
            raise ValueError
        number = 0
        for letter in text:
            number = number << 5 | _ALPHABET.index(letter)
        if number & ((1 << spare) - 1):
            raise ValueError
    except ValueError:
        raise InvalidInputError(
            f"{text[:64]!r} is not an id: expected {length} characters of {_ALPHABET}"
        ) from None
    return (number >> spare).to_bytes(size, "big")


def as_stored(text: str) -> str:
    """An id as typed by a person, in the form of stored ids.

    Lower case counts as upper case, O as 0, and I and L as 1, as in Crockford's description. File
    names and stored refs are never converted.
    """
    return text.translate(_AS_TYPED)


def decode_object_id(text: str) -> bytes:
    """An object id of either size, depending on its length."""
    early = len(text) == text_length(EARLY_OBJECT_ID_SIZE)
    return decode_base32(text, EARLY_OBJECT_ID_SIZE if early else OBJECT_ID_SIZE)


def encode_many(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Texts of `(n, size)` ids as an `(n,)` array of fixed-width ASCII bytes."""
    rows, size = ids.shape
    length = text_length(size)
    bits = np.unpackbits(np.ascontiguousarray(ids), axis=1)
    bits = np.pad(bits, ((0, 0), (0, length * 5 - size * 8)))
    weights = np.array([16, 8, 4, 2, 1], np.uint8)
    values = (bits.reshape(rows, length, 5) * weights).sum(axis=2, dtype=np.uint8)
    return np.ascontiguousarray(_LETTERS[values]).view(f"S{length}").reshape(rows)


def decode_many(texts: NDArray[np.bytes_], size: int = OBJECT_ID_SIZE) -> NDArray[np.uint8]:
    """The `(n, size)` ids in fixed-width ASCII texts; raises for anything else."""
    length = text_length(size)
    rows = len(texts)
    letters = np.ascontiguousarray(texts, f"S{length}").view(np.uint8).reshape(rows, length)
    values = _VALUES[letters]
    bits = np.unpackbits(values[:, :, None], axis=2)[:, :, 3:].reshape(rows, length * 5)
    wrong = (values == 255).any(axis=1) | bits[:, size * 8 :].any(axis=1)
    if texts.dtype.itemsize != length and rows:
        wrong |= np.char.str_len(texts) != length
    if wrong.any():
        first = texts[int(np.argmax(wrong))]
        raise InvalidInputError(f"{bytes(first)!r} is not an id of {length} characters")
    return np.packbits(bits[:, : size * 8], axis=1)


def new_id(generation: Generation, entropy: bytes) -> bytes:
    """An id from `generation.id_size` random bytes."""
    if not generation.uses_uuids:
        return entropy
    return UUID(bytes=entropy, version=_UUID_VERSION).bytes


def format_id(generation: Generation, identity: bytes) -> str:
    """An id as text for people and ref documents."""
    if generation.uses_uuids and len(identity) == generation.id_size:
        return str(UUID(bytes=identity))
    return encode_base32(identity)


def format_node_id(identity: NodeId) -> str:
    """A node id as text, the same in every generation."""
    return encode_base32(identity)


def parse_id(generation: Generation, text: str) -> bytes:
    """Parse an id typed by a person; `InvalidInputError` if it is invalid.

    Case does not matter, and O, I and L count as the digits they look like.
    """
    if not generation.uses_uuids:
        return decode_base32(as_stored(text), generation.id_size)
    typed = as_stored(text).lower()
    if not re.fullmatch(_UUID_TEXT, typed):
        raise InvalidInputError(
            f"{text[:64]!r} is not an id: expected a UUID like b7a40d8e-0c44-4a4a-a6a9-0d9c8e2d6a1f"
        )
    return UUID(typed).bytes
