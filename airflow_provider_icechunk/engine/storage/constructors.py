"""Storage constructors with the names and arguments of the official package.

They live beside the official credential classes, which they take. The S3 client's library is
imported only by those who ask for S3: it costs more time than the rest of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Never, TypedDict, Unpack

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, UnsupportedError
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.memory import MemoryStorage
from airflow_provider_icechunk.virtual.credential_functions import s3_credentials
from airflow_provider_icechunk.virtual.credentials import (
    GcsBearerCredential,
    S3StaticCredentials,
    storage_credentials,
)


class S3CredentialArguments(TypedDict, total=False):
    """Who asks. Without any of these the default chain of the SDK is used."""

    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None
    expires_after: datetime | None
    anonymous: bool | None
    from_env: bool | None
    get_credentials: Callable[[], S3StaticCredentials] | None
    scatter_initial_credentials: bool


def in_memory_storage() -> Storage:
    """A storage that lives as long as this object; for tests."""
    return MemoryStorage()


def local_filesystem_storage(path: str | Path) -> Storage:
    """A folder. Commits of many processes are safe there if the file system has working locks."""
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

    Without any credential argument the default chain of the SDK is asked: environment, profile,
    web identity, instance.
    """
    from airflow_provider_icechunk.storage.s3 import S3Storage
    from airflow_provider_icechunk.storage.s3_settings import S3Settings

    if requester_pays:
        raise UnsupportedError("requester_pays is not supported; use a bucket that you pay for")
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
    """Refused: Tigris answers from the nearest region unless asked in a way not spoken here."""
    del prefix, region, endpoint_url, use_weak_consistency, allow_http
    del network_stream_timeout_seconds, credentials
    raise UnsupportedError(
        f"Tigris (bucket {bucket!r}) is not supported: its reads may lag behind writes in other "
        "regions, so that commits would conflict or read old references"
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
    """A prefix of a bucket on Cloudflare R2, by account or by endpoint.

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
    """Refused: Google Cloud Storage is reached through its S3-compatible interface."""
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
    """Refused: Azure Blob Storage has no interface that this package speaks."""
    del prefix, access_key, sas_token, bearer_token, from_env, config
    raise UnsupportedError(
        f"Azure Blob Storage (account {account!r}, container {container!r}) is not supported; use "
        "a local file system, S3 or an S3-compatible store"
    )


_NO_TIMEOUT = 24 * 3600
