"""From a URL to a storage, by a closed table of schemes."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.credentials import S3Credentials
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.memory import MemoryStorage

_memories: dict[str, MemoryStorage] = {}


def locate(
    url: str,
    *,
    region: str | None = None,
    endpoint_url: str | None = None,
    credentials: S3Credentials | None = None,
    anonymous: bool = False,
    force_path_style: bool = False,
    allow_http: bool = False,
) -> Storage:
    """The storage at `s3://bucket/prefix`, `file:///path`, an absolute path or `memory://name`.

    The options are for `s3` alone. The same `memory` name is the same storage in a process.
    """
    if url.startswith("/"):
        return LocalStorage(Path(url))
    parts = urlsplit(url)
    _check(url, parts.username, parts.query or parts.fragment)
    match parts.scheme:
        case "file" if parts.netloc in {"", "localhost"} and parts.path.startswith("/"):
            return LocalStorage(Path(unquote(parts.path)))
        case "memory" if parts.netloc and not parts.path.strip("/"):
            return _memories.setdefault(parts.netloc, MemoryStorage(name=parts.netloc))
        case "s3" if parts.netloc:
            # Importing the S3 backend imports botocore, which a local repository never needs.
            from airflow_provider_icechunk.storage.s3 import S3Storage

            return S3Storage.at(
                parts.netloc,
                parts.path,
                region=region,
                endpoint_url=endpoint_url,
                credentials=credentials,
                anonymous=anonymous,
                force_path_style=force_path_style,
                allow_http=allow_http,
            )
    if parts.scheme in {"s3", "file", "memory"}:
        problem = f"{url!r} is not a whole storage URL"
    else:
        problem = f"{parts.scheme or 'this'!r} is no kind of storage URL that is known here"
    raise InvalidInputError(
        f"{problem}. Use s3://bucket/prefix, file:///absolute/path, an absolute path or "
        "memory://name",
        kind=Kind.INVALID_CONFIG,
    )


def _check(url: str, user: str | None, extra: str) -> None:
    if user is not None:
        raise InvalidInputError(
            "a storage URL holds no user or password: pass credentials separately",
            kind=Kind.INVALID_CONFIG,
        )
    if extra:
        raise InvalidInputError(
            f"the storage URL {url!r} has a query or a fragment, which mean nothing here",
            kind=Kind.INVALID_CONFIG,
        )
