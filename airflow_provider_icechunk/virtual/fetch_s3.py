"""Ranges of objects by the S3 protocol."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_icechunk.exceptions import Kind, VirtualChunkError
from airflow_provider_icechunk.format.references import Checksum, ETag, LastModified
from airflow_provider_icechunk.storage.ranges import Unfinished, told_length
from airflow_provider_icechunk.storage.retry import Retry
from airflow_provider_icechunk.storage.s3_client import make_client
from airflow_provider_icechunk.storage.s3_errors import (
    FAILURES,
    PASSING,
    Trouble,
    classify,
    code_of,
)
from airflow_provider_icechunk.storage.s3_settings import S3Settings
from airflow_provider_icechunk.virtual.grants import S3Access
from airflow_provider_icechunk.virtual.guarded import guard_client
from airflow_provider_icechunk.virtual.locations import Location, shown
from airflow_provider_icechunk.virtual.parts import (
    Part,
    changed_error,
    check_unchanged,
    quoted_etag,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef

_SECONDS = 60.0
_NONSENSE = (ValueError, RuntimeError, ArithmeticError)
"""What the library lets through when a header is no time or number."""


def s3_client(access: S3Access, bucket: str) -> S3Client:
    """A client for what is granted. Its endpoint was judged when the access was made."""
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
            guard_client(
                client,
                connect=settings.connect_timeout,
                read=settings.read_timeout,
                connections=settings.concurrency,
            )
        return client
    except FAILURES as error:
        raise VirtualChunkError(f"no S3 client for bucket {bucket!r}: {code_of(error)}") from None


def fetch_s3(
    client: S3Client,
    access: S3Access,
    location: Location,
    start: int,
    stop: int,
    checksum: Checksum | None,
    retry: Retry,
) -> Part:
    """Bytes from `start` to `stop` of an object, if it still is the referenced one."""
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
                # One byte more than asked for shows a store that ignores ranges.
                data = body.read(stop - start + 1)
            told = told_length({"content-range": answer.get("ContentRange", "")})
            if told is not None and len(data) < min(told, stop - start):
                raise Unfinished(f"{len(data)} bytes came where {told} were announced")
        except FAILURES as error:
            trouble = classify(error)
            if trouble in PASSING and not last:
                continue
            raise _failure(where, trouble, error) from None
        except _NONSENSE:
            raise VirtualChunkError(
                f"the store of {where} sent an answer that cannot be understood"
            ) from None
        if told is None and start:
            raise VirtualChunkError(
                f"the store of {where} ignores ranges, so chunks cannot be read"
            )
        check_unchanged(where, checksum, answer.get("ETag"), answer.get("LastModified"))
        return Part(data, answer.get("ETag"))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _failure(where: str, trouble: Trouble, error: BaseException) -> Exception:
    if trouble is Trouble.REFUSED:
        return changed_error(where)
    text = f"cannot read the virtual chunk at {where}: {trouble.value} ({code_of(error)})"
    if trouble is Trouble.DENIED:
        return VirtualChunkError(
            f"{text}. Check the credentials authorised for it", kind=Kind.STORAGE_DENIED
        )
    return VirtualChunkError(text)
