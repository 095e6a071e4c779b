"""Storage constructors with the official names.

The S3 library is imported only when S3 is used: that takes longer than importing the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Never, TypedDict, Unpack

from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, UnsupportedError

from .base import Storage
from .credentials import (
    GcsBearerCredential,
    S3StaticCredentials,
    s3_credentials,
    storage_credentials,
)
from .location import shown
from .memory import MemoryStorage


class S3CredentialArguments(TypedDict, total=False):
    """Credentials. Without any of these the SDK's default chain is used."""

    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None
    expires_after: datetime | None
    anonymous: bool | None
    from_env: bool | None
    get_credentials: Callable[[], S3StaticCredentials] | None
    scatter_initial_credentials: bool


def in_memory_storage() -> Storage:
    """A storage in memory that lives as long as this object; for tests."""
    return MemoryStorage()


def local_filesystem_storage(path: str | Path) -> Storage:
    """A folder. Concurrent commits are safe if the file system has working locks."""
    return LocalStorage(path)


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    **credentials: Unpack[S3CredentialArguments],
) -> Storage:
    """A prefix of a bucket on S3 or a compatible store.

    Without any credential argument the SDK's default chain is used: environment, profile,
    web identity, instance.
    """
    from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
    from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage

    if requester_pays:
        raise UnsupportedError("requester_pays is not supported; use a bucket of your own")
    return S3Storage(
        S3Settings(
            bucket,
            prefix or "",
            region=region,
            endpoint_url=endpoint_url,
            credentials=storage_credentials(s3_credentials(**credentials)),
            force_path_style=force_path_style,
            allow_http=allow_http,
            read_timeout=network_stream_timeout_seconds or _NO_TIMEOUT,
        )
    )


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    network_stream_timeout_seconds: int = 60,
    **credentials: Unpack[S3CredentialArguments],
) -> Never:
    """Not supported: Tigris reads from the nearest region unless a special header is sent."""
    del prefix, region, endpoint_url, use_weak_consistency, allow_http
    del network_stream_timeout_seconds, credentials
    raise UnsupportedError(
        f"Tigris (bucket {bucket!r}) is not supported: its reads may lag behind writes in other "
        "regions, so commits would conflict or read stale references"
    )


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    network_stream_timeout_seconds: int = 60,
    **credentials: Unpack[S3CredentialArguments],
) -> Storage:
    """A prefix of a bucket on Cloudflare R2, given an account or an endpoint.

    Without `bucket` the first part of `prefix` is the bucket.
    """
    if (account_id is None) == (endpoint_url is None):
        raise InvalidInputError(
            "R2 needs either account_id or endpoint_url", kind=Kind.INVALID_CONFIG
        )
    if bucket is None:
        bucket, _, prefix = (prefix or "").partition("/")
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region or "auto",
        endpoint_url=endpoint_url or f"https://{account_id}.r2.cloudflarestorage.com",
        allow_http=allow_http,
        force_path_style=True,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        **credentials,
    )


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> Never:
    """Not supported: use the S3-compatible interface of Google Cloud Storage."""
    del prefix, service_account_file, service_account_key, application_credentials, bearer_token
    del anonymous, from_env, config, get_credentials, scatter_initial_credentials
    raise UnsupportedError(
        f"Google Cloud Storage (bucket {bucket!r}) is not supported directly; use s3_storage with "
        "endpoint_url='https://storage.googleapis.com' and an HMAC key"
    )


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
) -> Never:
    """Not supported: Azure Blob Storage has no S3-compatible interface."""
    del prefix, access_key, sas_token, bearer_token, from_env, config
    raise UnsupportedError(
        f"Azure Blob Storage (account {account!r}, container {container!r}) is not supported; use "
        "a local file system, S3 or an S3-compatible store"
    )


_NO_TIMEOUT = 24 * 3600


def http_storage(
    base_url: str, opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> Never:
    """Not supported: web servers neither list references nor report changes; see the message."""
    del opts, headers
    raise UnsupportedError(
        f"a repository on a web server ({shown(base_url)}) cannot be opened; if it is in a "
        "public bucket, use s3_storage with anonymous=True and its endpoint_url, otherwise copy it "
        "to a folder (virtual chunks may be on web servers: see http_store)"
    )


def redirect_storage(base_url: str) -> Never:
    """Not supported: the location comes from the caller, not from a web server."""
    raise UnsupportedError(
        f"redirects ({shown(base_url)}) are not supported; open the location it redirects to "
        "with s3_storage or local_filesystem_storage"
    )


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    **credentials: Unpack[S3CredentialArguments],
) -> Never:
    """Not supported: Hugging Face buckets are untested; their S3 gateway may work."""
    del prefix, network_stream_timeout_seconds, legacy_rooted_keys, credentials
    del read_headers, write_headers, headers
    raise UnsupportedError(
        f"Hugging Face buckets (here {namespace}/{bucket}) are not supported directly; use "
        "s3_storage with the endpoint_url of their S3 gateway and the S3 keys of your token: "
        "whether it honours conditional writes is tested before the first commit"
    )
