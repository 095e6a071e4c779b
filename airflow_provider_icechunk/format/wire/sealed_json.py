"""JSON documents that end with a checksum of themselves.

For generations whose files are plain JSON and whose encoding is this project's: without it a
changed digit is a well-formed file that names another object. A document that has no such member,
because others wrote it, is read as it is. The member comes last, and the checksum is that of all
bytes before it, so nothing has to be encoded again to check it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from airflow_provider_icechunk.exceptions import FormatError
from airflow_provider_icechunk.format.wire import json_text as js

MEMBER = "sha256"
_HEAD = f',"{MEMBER}":"'.encode()
_TAIL = b'"}'
_SIZE = len(_HEAD) + hashlib.sha256().digest_size * 2 + len(_TAIL)


def dump(value: dict[str, Any], what: str) -> bytes:
    """An object that has members as compact JSON, with the checksum as one more member."""
    return seal(js.dump(value, what).removesuffix(b"}"))


def parse(data: bytes, *, where: str, limit: int) -> Any:
    """The value in `data`, without the checksum, which has to be right if it is there."""
    value = js.parse(data, where=where, limit=limit)
    if isinstance(value, dict) and MEMBER in value:
        if seal(data[:-_SIZE]) != data:
            raise FormatError(
                f"{where}: the checksum is not that of the content: it was damaged, or edited "
                f"by hand (an edited document must not have the member {MEMBER!r})"
            )
        del value[MEMBER]
    return value


def seal(content: bytes) -> bytes:
    """The document that begins with `content`: an object without its closing bracket."""
    return content + _HEAD + hashlib.sha256(content).hexdigest().encode() + _TAIL
