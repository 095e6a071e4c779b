"""From a URL to a storage, by a table of schemes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from .base import Storage
from .memory import MemoryStorage
from .secrets import S3Credentials

_USER = re.compile(r"//[^/@]*@")
_memories: dict[str, MemoryStorage] = {}


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """What a URL does not say. All of it is for `s3`."""

    region: str | None = None
    endpoint_url: str | None = None
    credentials: S3Credentials | None = None
    anonymous: bool = False
    force_path_style: bool = False
    allow_http: bool = False


@dataclass(frozen=True, slots=True)
class Scheme:
    """One kind of storage URL."""

    example: str
    open: Callable[[SplitResult, AccessOptions], Storage | None]
    """Opens the storage; `None` means that a part of the URL is missing or too much."""


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

    The options apply to `s3` only. Within a process, equal `memory` names are the same storage.
    """
    if url.startswith("/"):
        return LocalStorage(Path(url))
    parts = urlsplit(url)
    _check(url, parts.username, parts.query or parts.fragment)
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None:
        problem = f"{parts.scheme or 'this'!r} is not a supported kind of storage URL"
    else:
        options = AccessOptions(
            region, endpoint_url, credentials, anonymous, force_path_style, allow_http
        )
        storage = scheme.open(parts, options)
        if storage is not None:
            return storage
        problem = f"{url!r} is not a complete storage URL"
    known = ", ".join(one.example for one in SCHEMES.values())
    raise InvalidInputError(f"{problem}. Use {known} or an absolute path", kind=Kind.INVALID_CONFIG)


def _open_s3(url: SplitResult, options: AccessOptions) -> Storage | None:
    # Importing the S3 back end imports botocore, which a local repository never needs.
    from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage

    if not url.netloc:
        return None
    return S3Storage.at(
        url.netloc,
        url.path,
        region=options.region,
        endpoint_url=options.endpoint_url,
        credentials=options.credentials,
        anonymous=options.anonymous,
        force_path_style=options.force_path_style,
        allow_http=options.allow_http,
    )


def _open_folder(url: SplitResult, _: AccessOptions) -> Storage | None:
    if url.netloc not in {"", "localhost"} or not url.path.startswith("/"):
        return None
    return LocalStorage(Path(unquote(url.path)))


def _open_memory(url: SplitResult, _: AccessOptions) -> Storage | None:
    if not url.netloc or url.path.strip("/"):
        return None
    return _memories.setdefault(url.netloc, MemoryStorage(name=url.netloc))


SCHEMES: dict[str, Scheme] = {
    "s3": Scheme("s3://bucket/prefix", _open_s3),
    "file": Scheme("file:///absolute/path", _open_folder),
    "memory": Scheme("memory://name", _open_memory),
}
"""Every kind of storage URL. A new back end is one more row."""


def shown(url: str) -> str:
    """`url` for a message: short, without user names, passwords and queries."""
    return repr(_USER.sub("//***@", url.split("?", 1)[0])[:300])


def _check(url: str, user: str | None, extra: str) -> None:
    if user is not None:
        raise InvalidInputError(
            "a storage URL must not contain a user or password: pass credentials separately",
            kind=Kind.INVALID_CONFIG,
        )
    if extra:
        raise InvalidInputError(
            f"the storage URL {url!r} has a query or a fragment: remove it",
            kind=Kind.INVALID_CONFIG,
        )
