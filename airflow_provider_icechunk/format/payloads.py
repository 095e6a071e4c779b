"""One chunk reference as a value: where the bytes are, and what they must still be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from airflow_provider_icechunk.format.ids import ChunkId


class RefKind(IntEnum):
    """Where the bytes of a chunk are."""

    ERASED = 0
    """Nowhere: the row removes the chunk. Never in a manifest, only in edits."""
    INLINE = 1
    NATIVE = 2
    VIRTUAL = 3


@dataclass(frozen=True, slots=True)
class ETag:
    """The foreign object must still have this entity tag."""

    value: str


@dataclass(frozen=True, slots=True)
class LastModified:
    """The foreign object must not have been modified after this time."""

    seconds: int
    """Seconds since 1970 UTC; 32 bits on disk, so times after 2106 are stored as the last one."""


Checksum = ETag | LastModified


@dataclass(frozen=True, slots=True)
class Inline:
    """The bytes themselves."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Native:
    """A range of a chunk file of this repository. Several chunks may share a file."""

    chunk_id: ChunkId
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Virtual:
    """A range of a foreign object."""

    location: str
    offset: int
    length: int
    checksum: Checksum | None = None


Payload = Inline | Native | Virtual
