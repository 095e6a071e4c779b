"""The document that replaces the entry point of an older generation. Pure.

No reader of that generation understands it, so nothing is committed to refs that are no
longer in use. It contains the document it replaces, so this package can still read the old
refs, and restore them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from airflow_provider_icechunk.exceptions import FormatError

_BEGINNING = b'{"migrated_to":"'
_NO_SNAPSHOT = "0" * 20
_REPORTED = (
    "this repository was migrated to generation {0} of the format: open it with icechunk {0} or "
    "newer, or remove this fence (airflow-provider-icechunk: migrate --no-fence)"
)
_TARGET = re.compile(rb'\{"migrated_to":"([a-z0-9]{1,8})"')


def fence(document: bytes, target: str, stand_ins: Mapping[str, str] | None = None) -> bytes:
    """The fence for a document of a repository that is now of generation `target`.

    :param stand_ins: further members that programs look for.
    """
    was = document.decode(errors="surrogateescape")
    members = {"migrated_to": target, **(stand_ins or {}), "was": was}
    return json.dumps(members, ensure_ascii=True, separators=(",", ":")).encode()


def fence_reference(document: bytes, target: str) -> bytes:
    """The fence for a `ref.json` of generation `1`.

    Official 2.x reads that of `main` in addition to the `repo` object and refuses a repository in
    which it is not a ref. So this fence is one, to a snapshot that never exists: readers of
    generation `1` find nothing, and a commit finds that the branch has moved.
    """
    return fence(document, target, {"snapshot": _NO_SNAPSHOT})


def fence_config(document: bytes, target: str) -> bytes:
    """The fence for the `config.yaml` of generation `1`, which every official 1.x reads on opening.

    Official 2.x ignores it. The text replaces a number, which causes the error, and official
    releases quote it in their message.
    """
    return fence(document, target, {"inline_chunk_threshold_bytes": _REPORTED.format(target)})


def behind(data: bytes) -> bytes | None:
    """The document that a fence replaced; `None` for any other document."""
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
    """Raise `FormatError` if a fence has replaced a document of the older generation."""
    target = fenced_for(data)
    if target is not None:
        raise FormatError(
            f"{where}: the repository was migrated to generation `{target}`, and a fence stands "
            "where its old references were: nothing is read from them or committed to them. Open "
            "the repository again; `migrate` can take the fence away again"
        )
