"""Fetch byte ranges of external files: local, HTTP or S3."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from airflow_provider_icechunk.engine.format.chunk_refs import Checksum, ETag, LastModified
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import (
    Bounded,
    Unfinished,
    check_part,
    reported_length,
)
from airflow_provider_icechunk.engine.storage.clouds.troubles import PASSING, Trouble
from airflow_provider_icechunk.engine.storage.location import shown
from airflow_provider_icechunk.exceptions import (
    Kind,
    VirtualAccessDeniedError,
    VirtualChunkChangedError,
    VirtualChunkError,
)

from .grants import Grant, S3Access
from .locations import Location, parse_location

# urllib3 is imported where it is used: most repositories have no virtual chunks.
if TYPE_CHECKING:
    import urllib3
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef


_SENDABLE = re.compile(r"[\x20-\x7e\xa0-\xff]{0,1024}")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of an external object, and its version, if the store reports one."""

    data: bytes
    version: str | None


def quoted_etag(value: str) -> str:
    """An entity tag in the form that a request header needs.

    Stored text is not trusted: it may be invalid in a header.
    """
    if not _SENDABLE.fullmatch(value):
        raise VirtualChunkError(
            f"the entity tag {value[:100]!r} of a virtual chunk is invalid in a request; recreate "
            "the reference"
        )
    return value if value.endswith('"') else f'"{value}"'


def check_unchanged(
    where: str, checksum: Checksum | None, etag: str | None, modified: datetime | None
) -> None:
    """Raise if the headers of a response contradict `checksum`.

    Some servers ignore the conditions of a request.
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
    """The error for an object that has changed."""
    return VirtualChunkChangedError(
        f"the object of a virtual chunk has changed since it was referenced: {where}; "
        "recreate the reference"
    )


def _bare(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def fetch_file(
    grant: Grant, location: Location, start: int, stop: int, checksum: Checksum | None
) -> Part:
    """Bytes from `start` to `stop` of a regular file below the granted directory.

    Links are followed as long as they stay below it.
    """
    where = shown(str(location))
    path = granted_path(grant, location, where)
    try:
        # Without `O_NONBLOCK`, opening a pipe would wait for its writer.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise VirtualChunkError(f"cannot open {where}: {error.strerror}") from None
    try:
        return _read(file, where, start, stop, checksum)
    except OSError as error:
        raise VirtualChunkError(f"cannot read {where}: {error.strerror}") from None
    finally:
        os.close(file)


def granted_path(grant: Grant, location: Location, where: str) -> str:
    """The real path of a file; `VirtualAccessDeniedError` if a link leads out of the grant."""
    root, path = os.path.realpath(grant.prefix.path), os.path.realpath(location.path)
    if os.path.commonpath((root, path)) != root:
        raise VirtualAccessDeniedError(
            f"{where} is a link that leads outside the granted directory {grant.url_prefix!r}"
        )
    return path


def _read(file: int, where: str, start: int, stop: int, checksum: Checksum | None) -> Part:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise VirtualChunkError(f"{where} is not a regular file")
    tag = local_etag(status)
    match checksum:
        case ETag(value) if value.strip('"') != tag:
            raise VirtualChunkChangedError(f"{where} is no longer the file that was referenced")
        case LastModified(seconds) if status.st_mtime_ns > seconds * 10**9:
            raise VirtualChunkChangedError(f"{where} was modified after it was referenced")
    if stop > status.st_size:
        raise VirtualChunkError(
            f"{where} has {status.st_size} bytes; the chunk needs those from {start} to {stop}"
        )
    pieces = []
    while start < stop:
        piece = os.pread(file, min(stop - start, 1 << 30), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return Part(b"".join(pieces), tag)


def local_etag(status: os.stat_result) -> str:
    """The official library's entity tag for a local file: inode, microseconds, size."""
    return f"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"


_MAX_REDIRECTS = 3
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_PASSING = frozenset((408, 429, 500, 502, 503, 504))
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/(\*|[0-9]{1,20})")


def http_pool(*, guarded: bool = False) -> urllib3.PoolManager:
    """Connections without automatic retries and redirects."""
    import urllib3

    from .guarded import guard

    pool = urllib3.PoolManager(
        num_pools=50, maxsize=64, retries=False, timeout=urllib3.Timeout(connect=10.0, read=60.0)
    )
    return guard(pool) if guarded else pool


def fetch_http(
    pool: urllib3.PoolManager,
    grant: Grant,
    location: Location,
    start: int,
    stop: int,
    checksum: Checksum | None,
    retry: Backoff,
) -> Part:
    """Bytes from `start` to `stop` of a file, if it has not changed."""
    headers = _headers(start, stop, checksum)
    for _ in range(_MAX_REDIRECTS + 1):
        answer = _ask(pool, location, headers, retry)
        if isinstance(answer, _HttpReply):
            return _checked(answer, location, start, stop, checksum)
        location = _redirected(grant, location, answer)
    raise VirtualChunkError(f"too many redirects, the last to {shown(str(location))}")


class _HttpReply:
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
    pool: urllib3.PoolManager, location: Location, headers: dict[str, str], retry: Backoff
) -> _HttpReply | str:
    """The response, or the target of its redirect."""
    from urllib3.exceptions import HTTPError

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
                # One extra byte reveals a server that sends too much.
                wanted = _length(headers["Range"]) + 1 if response.status == 206 else 0
                data = response.read(wanted, decode_content=False) if wanted else b""
                reported = reported_length(
                    {"content-range": response.headers.get("Content-Range", "")}
                )
                if wanted and reported is not None and len(data) < min(reported, wanted):
                    raise Unfinished(f"received {len(data)} bytes where {reported} were announced")
                return _HttpReply(response.status, response.headers, data)
            finally:
                response.close()
        except (HTTPError, OSError, ValueError) as error:
            # A chunked body of negative size causes a ValueError.
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
            f"{shown(str(location))} redirects to {shown(target)}, which is outside the granted "
            f"{grant.url_prefix!r}"
        )
    return following


def _checked(
    answer: _HttpReply, location: Location, start: int, stop: int, checksum: Checksum | None
) -> Part:
    where = shown(str(location))
    if answer.status in (409, 412):
        raise changed_error(where)
    if answer.status == 200:
        raise VirtualChunkError(f"the server of {where} ignores ranges, so chunks cannot be read")
    if answer.status != 206:
        raise VirtualChunkError(
            f"cannot read the virtual chunk at {where}: the server responds with {answer.status}"
        )
    sent = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if sent is None or int(sent[1]) != start or int(sent[2]) >= stop:
        raise VirtualChunkError(f"the server of {where} did not send the requested range")
    etag = answer.headers.get("ETag")
    check_unchanged(where, checksum, etag, moment(answer.headers.get("Last-Modified")))
    return Part(answer.data, etag)


def moment(header: str | None) -> datetime | None:
    """The time in a header; `None` if it is missing or invalid."""
    try:
        return None if header is None else parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None


_SECONDS = 60.0
_NONSENSE = (ValueError, RuntimeError, ArithmeticError)
"""What the library raises when a header is not a valid time or number."""


def s3_client(access: S3Access, bucket: str) -> S3Client:
    """A client for the granted access, whose endpoint was already checked."""
    # Late, because boto3 takes longer to import than everything else combined.
    from airflow_provider_icechunk.engine.storage.s3.client import make_client
    from airflow_provider_icechunk.engine.storage.s3.errors import code_of, failures
    from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings

    options = access.options
    try:
        settings = S3Settings(
            bucket,
            region=options.region,
            endpoint_url=options.endpoint_url,
            credentials=access.credentials,
            force_path_style=options.force_path_style,
            allow_http=options.allow_http,
            read_timeout=float(options.network_stream_timeout_seconds or _SECONDS),
        )
        client = make_client(settings)
        if access.guarded:
            from .guarded import guard_client

            guard_client(
                client,
                connect=settings.connect_timeout,
                read=settings.read_timeout,
                connections=settings.concurrency,
            )
        return client
    except failures() as error:
        raise VirtualChunkError(f"no S3 client for bucket {bucket!r}: {code_of(error)}") from None


def fetch_s3(
    client: S3Client,
    access: S3Access,
    location: Location,
    start: int,
    stop: int,
    checksum: Checksum | None,
    retry: Backoff,
) -> Part:
    """Bytes from `start` to `stop` of an object, if it has not changed."""
    from airflow_provider_icechunk.engine.storage.s3.errors import classify, code_of, failures

    where = shown(str(location))
    request: GetObjectRequestTypeDef = {
        "Bucket": location.host,
        "Key": location.key,
        "Range": f"bytes={start}-{stop - 1}",
    }
    match checksum:
        case ETag(value):
            request["IfMatch"] = quoted_etag(value)
        case LastModified(seconds):
            request["IfUnmodifiedSince"] = datetime.fromtimestamp(seconds, UTC)
    if access.options.requester_pays:
        request["RequestPayer"] = "requester"
    for last in retry.attempts():
        try:
            answer = client.get_object(**request)
            with answer["Body"] as body:
                # One extra byte reveals a store that ignores ranges.
                data = body.read(stop - start + 1)
            told = {"content-range": answer.get("ContentRange", "")}
            reported = reported_length(told)
            if answer["ResponseMetadata"]["HTTPStatusCode"] == 206:
                check_part(told, Bounded(start, stop))
            if reported is not None and len(data) < min(reported, stop - start):
                raise Unfinished(f"received {len(data)} bytes where {reported} were announced")
        except failures() as error:
            trouble = classify(error)
            if trouble in PASSING and not last:
                continue
            raise store_failure(where, trouble, code_of(error)) from None
        except _NONSENSE:
            raise VirtualChunkError(f"the store of {where} sent an invalid response") from None
        if reported is None and start:
            raise VirtualChunkError(
                f"the store of {where} ignores ranges, so chunks cannot be read"
            )
        check_unchanged(where, checksum, answer.get("ETag"), answer.get("LastModified"))
        return Part(data, answer.get("ETag"))
    raise AssertionError("unreachable: the last attempt returns or raises")


def store_failure(where: str, trouble: Trouble, said: str = "") -> VirtualChunkError:
    """The error for a store that does not send a chunk; `said` is the store's word for it."""
    if trouble is Trouble.REFUSED:
        return changed_error(where)
    text = f"cannot read the virtual chunk at {where}: {trouble.value}{said and f' ({said})'}"
    if trouble is Trouble.DENIED:
        return VirtualChunkError(
            f"{text}. Check the credentials authorized for it", kind=Kind.STORAGE_DENIED
        )
    return VirtualChunkError(text)
