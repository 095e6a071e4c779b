"""The document that stands where the entry point of an older generation was. Pure.

No reader of that generation can follow it, so that nobody commits to references which no longer
are the repository. It carries what it stands for, so that the old references can still be read
here, and put back.
"""

from __future__ import annotations

import json
import re

from airflow_provider_icechunk.exceptions import FormatError

_BEGINNING = b'{"migrated_to":"'
_TARGET = re.compile(rb'\{"migrated_to":"([a-z0-9]{1,8})"')


def fence(document: bytes, target: str) -> bytes:
    """What takes the place of a document once its repository is of generation `target`."""
    rest = json.dumps(document.decode(errors="surrogateescape"), ensure_ascii=True)
    return b'%s%s","was":%s}' % (_BEGINNING, target.encode(), rest.encode())


def behind(data: bytes) -> bytes | None:
    """The document that a fence took the place of; `None` for any other document."""
    if not data.startswith(_BEGINNING):
        return None
    try:
        was = json.loads(data)["was"]
        return was.encode(errors="surrogateescape") if isinstance(was, str) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def fenced_for(data: bytes) -> str | None:
    """Which generation a fence points to, from its first bytes; `None` for any other document."""
    found = _TARGET.match(data)
    return None if found is None else found[1].decode()


def check_unfenced(data: bytes, *, where: str) -> None:
    """Raise `FormatError` if a fence stands where a document of the older generation is read."""
    target = fenced_for(data)
    if target is not None:
        raise FormatError(
            f"{where}: the repository was migrated to generation `{target}`, and a fence stands "
            "where its old references were: nothing is read from them or committed to them. Open "
            "the repository anew; `migrate` can take the fence away again"
        )
