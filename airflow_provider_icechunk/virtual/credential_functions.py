"""Functions that make credentials, with the names and arguments of the official package."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.virtual.credentials import (
    AnyAzureCredential,
    AnyAzureStaticCredential,
    AnyGcsCredential,
    AnyGcsStaticCredential,
    AnyS3Credential,
    AzureCredentials,
    AzureStaticCredentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
)


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,
) -> S3Credentials.Refreshable:
    """Keys from `get_credentials`, asked again before they expire.

    With `scatter_initial_credentials` the function is called at once and its answer used first.
    """
    current = get_credentials() if scatter_initial_credentials else None
    return S3Credentials.Refreshable(get_credentials, current)


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: datetime | None = None,
) -> S3Credentials.Static:
    """A fixed pair of keys."""
    return S3Credentials.Static(
        S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    )


def s3_anonymous_credentials() -> S3Credentials.Anonymous:
    """No credentials: requests are not signed."""
    return S3Credentials.Anonymous()


def s3_from_env_credentials() -> S3Credentials.FromEnv:
    """Credentials from the environment, a profile or the instance."""
    return S3Credentials.FromEnv()


def s3_credentials(
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyS3Credential:
    """Credentials of the one kind that the arguments name; from the environment without any."""
    has_keys = any(
        value is not None
        for value in (access_key_id, secret_access_key, session_token, expires_after)
    )
    chosen = [bool(anonymous), bool(from_env), get_credentials is not None, has_keys]
    if sum(chosen) > 1 or (sum(chosen) == 0 and from_env is False):
        raise InvalidInputError(
            "s3_credentials takes keys, or anonymous, or from_env, or get_credentials: one of them"
        )
    if anonymous:
        return s3_anonymous_credentials()
    if get_credentials is not None:
        return s3_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if not has_keys:
        return s3_from_env_credentials()
    if not access_key_id or not secret_access_key:
        raise InvalidInputError("s3_credentials needs access_key_id and secret_access_key together")
    return s3_static_credentials(
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        session_token=session_token,
        expires_after=expires_after,
    )


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> AnyGcsStaticCredential:
    """Fixed credentials for Google Cloud Storage."""
    if service_account_file is not None:
        return GcsStaticCredentials.ServiceAccount(service_account_file)
    if service_account_key is not None:
        return GcsStaticCredentials.ServiceAccountKey(service_account_key)
    if application_credentials is not None:
        return GcsStaticCredentials.ApplicationCredentials(application_credentials)
    if bearer_token is not None:
        return GcsStaticCredentials.BearerToken(bearer_token)
    raise InvalidInputError("gcs_static_credentials needs a file, a key or a token")


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,
) -> GcsCredentials.Refreshable:
    """A token for Google Cloud Storage from `get_credentials`."""
    current = get_credentials() if scatter_initial_credentials else None
    return GcsCredentials.Refreshable(get_credentials, current)


def gcs_anonymous_credentials() -> GcsCredentials.Anonymous:
    """No credentials for Google Cloud Storage."""
    return GcsCredentials.Anonymous()


def gcs_from_env_credentials() -> GcsCredentials.FromEnv:
    """Credentials for Google Cloud Storage from the environment."""
    return GcsCredentials.FromEnv()


def gcs_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> AnyGcsCredential:
    """Credentials for Google Cloud Storage; from the environment without any argument."""
    given = (service_account_file, service_account_key, application_credentials, bearer_token)
    if anonymous:
        return gcs_anonymous_credentials()
    if get_credentials is not None:
        return gcs_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if all(value is None for value in given) and from_env is not False:
        return gcs_from_env_credentials()
    if from_env:
        raise InvalidInputError("gcs_credentials takes from_env or something fixed, not both")
    return GcsCredentials.Static(
        gcs_static_credentials(
            service_account_file=service_account_file,
            service_account_key=service_account_key,
            application_credentials=application_credentials,
            bearer_token=bearer_token,
        )
    )


def azure_static_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
) -> AnyAzureStaticCredential:
    """Fixed credentials for Azure Blob Storage."""
    if [access_key, sas_token, bearer_token].count(None) != 2:
        raise InvalidInputError("azure_static_credentials takes exactly one key or token")
    if access_key is not None:
        return AzureStaticCredentials.AccessKey(access_key)
    if sas_token is not None:
        return AzureStaticCredentials.SasToken(sas_token)
    assert bearer_token is not None
    return AzureStaticCredentials.BearerToken(bearer_token)


def azure_from_env_credentials() -> AzureCredentials.FromEnv:
    """Credentials for Azure Blob Storage from the environment."""
    return AzureCredentials.FromEnv()


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
) -> AnyAzureCredential:
    """Credentials for Azure Blob Storage; from the environment without any argument."""
    fixed = any(value is not None for value in (access_key, sas_token, bearer_token))
    if fixed == bool(from_env) and (fixed or from_env is False):
        raise InvalidInputError("azure_credentials takes from_env or one key or token, not both")
    if not fixed:
        return azure_from_env_credentials()
    return AzureCredentials.Static(
        azure_static_credentials(
            access_key=access_key, sas_token=sas_token, bearer_token=bearer_token
        )
    )
