"""How the native client is configured and called, for every store.

It never retries: sent again by it, a write that landed would fail its own condition.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from airflow_provider_icechunk.engine.storage.base import (
    Bounded,
    ByteRange,
    From,
    Last,
    Unfinished,
    Until,
    Version,
)

from .requests import Body, ObjectHead
from .settings import MIB, BucketSettings

if TYPE_CHECKING:
    from urllib3 import PoolManager

SLOW = MIB
"""Bytes per second that a slow line carries, and the size from which the line's speed matters."""
ONCE: dict[str, Any] = {"max_retries": 0}
"""For requests whose retries are decided here."""

_IDLE = timedelta(seconds=20)
"""How long a connection is kept: less than stores and their load balancers keep it."""
_NO_LIMIT = timedelta(days=1)

VersionOf = Callable[[Any], Version]
"""The version in the properties that the client returns."""


def client_options(settings: BucketSettings, *, large: bool) -> dict[str, Any]:
    """Connections and time limits."""
    # The time for a response starts with the request, so it has to include a long upload.
    upload = settings.multipart_threshold / SLOW if large else 0.0
    headers = {"default_headers": dict(settings.headers)} if settings.headers else {}
    return {
        **headers,
        "allow_http": settings.allow_http,
        "allow_invalid_certificates": False,
        "connect_timeout": timedelta(seconds=settings.connect_timeout),
        "read_timeout": timedelta(seconds=settings.read_timeout + upload),
        "timeout": _NO_LIMIT,
        "pool_idle_timeout": _IDLE,
        "pool_max_idle_per_host": str(settings.concurrency),
        "user_agent": settings.user_agent,
    }


def fetch(store: Any, name: str, asked: ByteRange | None, version_of: VersionOf) -> Body:
    """The bytes of an object, or of a range that a request can express."""
    import obstore

    options: Any = {} if asked is None else {"range": _range_of(asked)}
    found = obstore.get(store, name, options=options)
    data, (start, stop) = memoryview(found.bytes()), found.range
    if len(data) != stop - start:
        raise Unfinished(f"received {len(data)} bytes where {stop - start} were announced")
    return Body(data, version_of(found.meta), asked is not None)


def look(store: Any, name: str, version_of: VersionOf) -> ObjectHead:
    """The properties of an object."""
    import obstore

    found = obstore.get(store, name, options={"head": True})
    meta = found.meta
    attributes = {str(key): value for key, value in found.attributes.items()}
    return ObjectHead(meta["size"], _moment_of(meta), version_of(meta), attributes)


def tag_of(meta: Any) -> Version:
    """The entity tag that the client received."""
    tag = meta["e_tag"]
    if not tag:
        raise Unfinished("the response has no entity tag")
    return Version(str(tag))


def is_sendable(value: str) -> bool:
    """Whether a text may be sent as metadata.

    The client treats a name or value that is invalid in a header as a bug, and ends the program.
    """
    return value.isascii() and value.isprintable()


def pool_to(url: str, settings: BucketSettings) -> PoolManager:
    """Connections for what the native client does not show, through the proxy if there is one."""
    # Late: importing it takes longer than importing the engine.
    import urllib3

    place = urlsplit(url)
    options: dict[str, Any] = {
        "retries": False,
        "timeout": urllib3.Timeout(settings.connect_timeout, settings.read_timeout),
    }
    proxy = getproxies().get(place.scheme)
    if proxy and not proxy_bypass(place.hostname or ""):
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


def _moment_of(meta: Any) -> datetime:
    moment: datetime = meta["last_modified"]
    if not moment.timestamp():
        raise Unfinished("the response does not tell the time of the last write")
    return moment.astimezone(UTC)


def _range_of(asked: ByteRange) -> Any:
    match asked:
        case Bounded(start, stop):
            return (start, stop)
        case From(start):
            return {"offset": start}
        case Last(count):
            return {"suffix": count}
        case Until():
            raise AssertionError("such a range is cut by the size of the object before")
        case _:
            assert_never(asked)
