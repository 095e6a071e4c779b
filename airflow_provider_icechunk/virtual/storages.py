"""Storage constructors with the names and arguments of the official package.

They live beside the official credential classes, which they take.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.memory import MemoryStorage
from airflow_provider_icechunk.storage.s3 import S3Storage
from airflow_provider_icechunk.storage.s3_settings import S3Settings
from airflow_provider_icechunk.virtual.credential_functions import s3_credentials
from airflow_provider_icechunk.virtual.credentials import S3StaticCredentials, storage_credentials


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
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
) -> Storage:
    """A prefix of a bucket on S3 or a compatible store.

    Without any credential argument the default chain of the SDK is asked: environment, profile,
    web identity, instance.
    """
    credentials = s3_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return S3Storage(
        S3Settings(
            bucket,
            prefix or "",
            region=region,
            endpoint_url=endpoint_url,
            credentials=storage_credentials(credentials),
            force_path_style=force_path_style,
            allow_http=allow_http,
        )
    )
