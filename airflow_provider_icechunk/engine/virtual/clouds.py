"""Fetch byte ranges of objects in Google Cloud Storage and Azure Blob Storage.

Only from the vendors' own addresses, or ones that the caller named: the native client has
no hook to check the address that it connects to.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.format.chunk_refs import Checksum, ETag, LastModified
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.clouds.troubles import PASSING
from airflow_provider_icechunk.engine.storage.location import StorageLocation, shown
from airflow_provider_icechunk.exceptions import IcechunkError, VirtualChunkError

from .grants import CloudAccess
from .locations import Location
from .sources import ForeignFile
from .transports import Part, check_unchanged, quoted_etag, store_failure

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.storage.clouds.bucket import CloudBucket


def cloud_bucket(access: CloudAccess, name: str) -> CloudBucket:
    """The requests to one bucket, with the granted credentials."""
    from airflow_provider_icechunk.engine.storage.clouds.bucket import CloudBucket
    from airflow_provider_icechunk.engine.storage.clouds.native_storage import NativeStorage

    where = StorageLocation(
        f"{access.scheme}://{name}",
        endpoint_url=access.endpoint_url,
        account=access.account,
        allow_http=access.allow_http,
    )
    storage = where.storage(access.credentials)
    assert isinstance(storage, NativeStorage)
    return CloudBucket(storage.settings)


def fetch_cloud(
    bucket: CloudBucket,
    location: Location,
    start: int,
    stop: int,
    checksum: Checksum | None,
    retry: Backoff,
) -> Part:
    """Bytes from `start` to `stop` of an object, if it has not changed."""
    options: dict[str, Any] = {"range": (start, stop)}
    match checksum:
        case ETag(value):
            options["if_match"] = quoted_etag(value)
        case LastModified(seconds):
            options["if_unmodified_since"] = datetime.fromtimestamp(seconds, UTC)
    data, meta = _asked(bucket, location, options, retry)
    check_unchanged(shown(str(location)), checksum, meta["e_tag"], meta["last_modified"])
    return Part(data, meta["e_tag"])


def describe_cloud(
    bucket: CloudBucket, location: Location, url: str, retry: Backoff
) -> ForeignFile:
    """The current state of an object."""
    _, meta = _asked(bucket, location, {"head": True}, retry)
    modified = int(meta["last_modified"].timestamp())
    return ForeignFile(url, int(meta["size"]), meta["e_tag"], modified)


def _asked(
    bucket: CloudBucket, location: Location, options: dict[str, Any], retry: Backoff
) -> tuple[bytes, Any]:
    import obstore

    where = shown(str(location))

    def ask(store: Any) -> tuple[bytes, Any]:
        chosen: Any = options
        found = obstore.get(store, location.key, options=chosen)
        return (b"" if "head" in options else bytes(found.bytes())), found.meta

    for last in retry.attempts():
        try:
            return bucket.natively(ask)
        except bucket.failures as error:
            trouble = bucket.classify(error)
            if trouble in PASSING and not last:
                continue
            raise store_failure(where, trouble) from None
        except IcechunkError as error:
            text = f"cannot read {where}: {error.message}"
            raise VirtualChunkError(text, kind=error.kind) from None
    raise AssertionError("unreachable: the last attempt returns or raises")
