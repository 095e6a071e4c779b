"""Where the data of a `draft` repository is that keeps it apart from its state file. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError
from airflow_provider_icechunk.format.names import check_file_name

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://(?:localhost(?=/))?)?")
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}


def folder_below(store_root: str | None, location: str, *, where: str) -> str:
    """Where the data is below the place that was opened: empty, or with a slash at its end.

    A state file is only data: what it names outside of that place is refused, whatever it is.
    """
    if not store_root:
        return ""
    spellings = (store_root, unquote(store_root))
    folder = next((f for f in (_relative(s, location) for s in spellings) if f is not None), None)
    if folder is None:
        raise UnsupportedError(
            f"{where}: keeps its data in {store_root[:200]!r}, which is not below {location}, the "
            "place that was opened; nothing outside of it is read. Open the place of the data, "
            "with a copy of the state file in it that has no `store_root` (and no `sha256`)"
        )
    try:
        return f"{check_file_name(folder, 'folder')}/" if folder else ""
    except InvalidInputError as error:
        raise FormatError(f"{where}: `store_root`: {error.message}") from None


def _relative(target: str, location: str) -> str | None:
    """What leads from a location to a URI, an absolute path or a relative one; or `None`."""
    scheme = _SCHEME.match(target)
    if scheme is None and not target.startswith("/"):
        return target.removeprefix("./").rstrip("/")
    rest = target if scheme is None else target[scheme.end() :]
    kind = "file" if scheme is None else _SAME_SCHEME.get(scheme[1].lower(), scheme[1].lower())
    whole, home = f"{kind}://{rest}".rstrip("/"), location.rstrip("/")
    if whole == home:
        return ""
    return whole.removeprefix(f"{home}/") if whole.startswith(f"{home}/") else None
