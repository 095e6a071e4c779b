"""Ranges of files on web servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from urllib.parse import urljoin

import urllib3
from urllib3.exceptions import HTTPError

from airflow_provider_icechunk.exceptions import VirtualAccessDeniedError, VirtualChunkError
from airflow_provider_icechunk.format.references import Checksum, ETag, LastModified
from airflow_provider_icechunk.storage.ranges import Unfinished, told_length
from airflow_provider_icechunk.storage.retry import Retry
from airflow_provider_icechunk.virtual.grants import Grant
from airflow_provider_icechunk.virtual.guarded import guard
from airflow_provider_icechunk.virtual.locations import Location, parse_location, shown
from airflow_provider_icechunk.virtual.parts import (
    Part,
    changed_error,
    check_unchanged,
    quoted_etag,
)

_MAX_REDIRECTS = 3
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_PASSING = frozenset((408, 429, 500, 502, 503, 504))
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/(\*|[0-9]{1,20})")


def http_pool(*, guarded: bool = False) -> urllib3.PoolManager:
    """Connections that neither retry nor follow redirects by themselves."""
    pool = urllib3.PoolManager(
        num_pools=50,
        maxsize=64,
        retries=False,
        timeout=urllib3.Timeout(connect=10.0, read=60.0),
    )
    return guard(pool) if guarded else pool


def fetch_http(
    pool: urllib3.PoolManager,
    grant: Grant,
    location: Location,
    start: int,
    stop: int,
    checksum: Checksum | None,
    retry: Retry,
) -> Part:
    """Bytes from `start` to `stop` of a file, if it still is the referenced one."""
    headers = _headers(start, stop, checksum)
    for _ in range(_MAX_REDIRECTS + 1):
        answer = _ask(pool, location, headers, retry)
        if isinstance(answer, _Answer):
            return _checked(answer, location, start, stop, checksum)
        location = _redirected(grant, location, answer)
    raise VirtualChunkError(f"too many redirects, the last to {shown(str(location))}")


class _Answer:
    __slots__ = ("data", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data = data


def _headers(start: int, stop: int, checksum: Checksum | None) -> dict[str, str]:
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    match checksum:
        case ETag(value):
            headers["If-Match"] = quoted_etag(value)
        case LastModified(seconds):
            moment = datetime.fromtimestamp(seconds, UTC)
            headers["If-Unmodified-Since"] = format_datetime(moment, usegmt=True)
    return headers


def _ask(
    pool: urllib3.PoolManager, location: Location, headers: dict[str, str], retry: Retry
) -> _Answer | str:
    """The answer, or where it redirects to."""
    for last in retry.attempts():
        try:
            response = pool.request(
                "GET", str(location), headers=headers, redirect=False, preload_content=False
            )
            try:
                if response.status in _REDIRECTS:
                    return str(response.headers.get("Location", ""))
                if response.status in _PASSING and not last:
                    continue
                # One byte more than asked for shows a server that sends too much.
                wanted = _length(headers["Range"]) + 1 if response.status == 206 else 0
                data = response.read(wanted, decode_content=False) if wanted else b""
                told = told_length({"content-range": response.headers.get("Content-Range", "")})
                if wanted and told is not None and len(data) < min(told, wanted):
                    raise Unfinished(f"{len(data)} bytes came where {told} were announced")
                return _Answer(response.status, response.headers, data)
            finally:
                response.close()
        except (HTTPError, OSError, ValueError) as error:
            # A ValueError is what a chunked body of negative size leads to.
            if last:
                raise VirtualChunkError(
                    f"cannot read the virtual chunk at {shown(str(location))}: "
                    f"{type(error).__name__}"
                ) from None
    raise AssertionError("unreachable: the last attempt returns or raises")


def _length(byte_range: str) -> int:
    first, last = byte_range.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


def _redirected(grant: Grant, location: Location, target: str) -> Location:
    try:
        following = parse_location(urljoin(str(location), target))
    except (VirtualAccessDeniedError, ValueError):
        following = None
    if following is None or not grant.prefix.covers(following):
        raise VirtualAccessDeniedError(
            f"{shown(str(location))} redirects to {shown(target)}, which is outside of the granted "
            f"{grant.url_prefix!r}"
        )
    return following


def _checked(
    answer: _Answer, location: Location, start: int, stop: int, checksum: Checksum | None
) -> Part:
    where = shown(str(location))
    if answer.status in (409, 412):
        raise changed_error(where)
    if answer.status == 200:
        raise VirtualChunkError(f"the server of {where} ignores ranges, so chunks cannot be read")
    if answer.status != 206:
        raise VirtualChunkError(
            f"cannot read the virtual chunk at {where}: the server answers {answer.status}"
        )
    sent = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if sent is None or int(sent[1]) != start or int(sent[2]) >= stop:
        raise VirtualChunkError(f"the server of {where} sent another range than was asked for")
    etag = answer.headers.get("ETag")
    check_unchanged(where, checksum, etag, moment(answer.headers.get("Last-Modified")))
    return Part(answer.data, etag)


def moment(header: str | None) -> datetime | None:
    """The time in a header; `None` if there is none, or none that can be read."""
    try:
        return None if header is None else parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
