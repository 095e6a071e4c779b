"""Virtual references as callers give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.references import Checksum, ETag, LastModified, Virtual


@dataclass(frozen=True, slots=True)
class VirtualChunkSpec:
    """One virtual chunk: its place in the array, and the range of a foreign object it is.

    With a checksum the chunk is read only as long as the object is the one referenced; without,
    whatever the object has become is read.
    """

    index: Sequence[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: datetime | None = None

    def reference(self) -> Virtual:
        """The reference as it is kept in a manifest."""
        checksum = checksum_of(self.etag_checksum or self.last_updated_at_checksum)
        return Virtual(self.location, self.offset, self.length, checksum)


def checksum_of(value: str | datetime | None) -> Checksum | None:
    """An entity tag or a time of last modification as a checksum. A naive time is taken as UTC."""
    if value is None:
        return None
    if isinstance(value, str):
        return ETag(value)
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
    seconds = int(moment.timestamp())
    if not 0 < seconds < 1 << 32:
        raise InvalidInputError("a last-modified checksum must be a time from 1970 to 2106")
    return LastModified(seconds)
