"""From the settings of a connection to a storage, with credentials."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from airflow.sdk.log import mask_secret

from airflow_provider_icechunk.exceptions import AccessDeniedError

if TYPE_CHECKING:
    from airflow_provider_icechunk.hooks.connection import IcechunkConnection
    from airflow_provider_icechunk.storage.base import Storage
    from airflow_provider_icechunk.storage.credentials import S3Credentials, StaticCredentials

_BORROWED_FOR = timedelta(minutes=15)


def build_storage(settings: IcechunkConnection, repository: str, *, tries: int = 10) -> Storage:
    """The storage of a repository; `tries` is how often a failing request to S3 is sent."""
    if settings.storage == "file":
        from airflow_provider_icechunk.storage.local import LocalStorage

        return LocalStorage(settings.folder(repository))
    from airflow_provider_icechunk.storage.retry import Retry
    from airflow_provider_icechunk.storage.s3 import S3Storage
    from airflow_provider_icechunk.storage.s3_settings import S3Settings

    return S3Storage(
        S3Settings(
            settings.host,
            settings.key_prefix(repository),
            region=settings.region,
            endpoint_url=settings.endpoint_url,
            credentials=_credentials(settings),
            force_path_style=settings.force_path_style,
            allow_http=settings.allow_http,
            retry=Retry(tries=tries),
        )
    )


def _credentials(settings: IcechunkConnection) -> S3Credentials:
    from airflow_provider_icechunk.storage import credentials

    if settings.anonymous:
        return credentials.AnonymousCredentials()
    if settings.aws_conn_id:
        return credentials.RefreshableCredentials(partial(_borrowed, settings.aws_conn_id))
    if settings.login and settings.password:
        token = settings.session_token
        return credentials.static_credentials(
            settings.login,
            settings.password.get_secret_value(),
            None if token is None else token.get_secret_value(),
        )
    return credentials.EnvironmentCredentials()


def _borrowed(aws_conn_id: str) -> StaticCredentials:
    """The current keys of an Amazon connection, to be asked for again after a while."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

    from airflow_provider_icechunk.storage.credentials import static_credentials

    keys = AwsGenericHook(aws_conn_id=aws_conn_id).get_credentials()
    if not keys.access_key or not keys.secret_key:
        raise AccessDeniedError(f"the Amazon connection {aws_conn_id!r} gives no credentials")
    for secret in (keys.secret_key, keys.token):
        if secret:
            mask_secret(secret)
    until = datetime.now(UTC) + _BORROWED_FOR
    return static_credentials(keys.access_key, keys.secret_key, keys.token, expires_after=until)
