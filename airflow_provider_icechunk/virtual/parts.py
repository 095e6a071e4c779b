"""What a fetch gives back, and the checks every kind of store shares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_icechunk.exceptions import VirtualChunkChangedError, VirtualChunkError
from airflow_provider_icechunk.format.references import Checksum, ETag, LastModified

_SENDABLE = re.compile(r"[\x20-\x7e\xa0-\xff]{0,1024}")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a foreign object, and the state of it they were read in, if the store tells."""

    data: bytes
    version: str | None


def quoted_etag(value: str) -> str:
    """An entity tag in the form a request header needs.

    It is stored text: what no header can carry never came from a server.
    """
    if not _SENDABLE.fullmatch(value):
        raise VirtualChunkError(
            f"the entity tag {value[:100]!r} of a virtual chunk cannot be sent to its store; make "
            "the reference anew"
        )
    return value if value.endswith('"') else f'"{value}"'


def check_unchanged(
    where: str, checksum: Checksum | None, etag: str | None, modified: datetime | None
) -> None:
    """Refuse an answer whose own headers contradict `checksum`.

    Some servers ignore the conditions of a request; what they say about the object shows it.
    """
    changed = False
    match checksum:
        case ETag(value):
            changed = etag is not None and _bare(etag) != _bare(value)
        case LastModified(seconds):
            changed = modified is not None and int(modified.timestamp()) > seconds
    if changed:
        raise changed_error(where)


def changed_error(where: str) -> VirtualChunkChangedError:
    """The object is another one than was referenced."""
    return VirtualChunkChangedError(
        f"{where} changed after it was referenced; make the reference anew"
    )


def _bare(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')
