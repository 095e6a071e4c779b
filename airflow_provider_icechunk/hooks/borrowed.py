"""The credentials of a connection: its own fields, or those of another provider's connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from airflow_provider_icechunk.exceptions import AccessDeniedError, InvalidInputError, Kind

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.storage.secrets import (
        AzureCredentials,
        GcsCredentials,
        S3Credentials,
        StaticCredentials,
        Token,
    )

    from .connection import IcechunkConnection

_BORROWED_FOR = timedelta(minutes=15)
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_AZURE_SCOPE = "https://storage.azure.com/.default"


def credentials_of(settings: IcechunkConnection) -> object:
    """The credentials for the storage of a connection; `None` if there are none."""
    find = _BY_STORAGE.get(settings.storage)
    return None if find is None else find(settings)


def _for_s3(settings: IcechunkConnection) -> S3Credentials:
    from airflow_provider_icechunk.engine.storage import secrets

    if settings.anonymous:
        return secrets.AnonymousCredentials()
    if settings.aws_conn_id:
        return secrets.RefreshableCredentials(partial(_amazon, settings.aws_conn_id))
    if settings.login and settings.password:
        token = settings.session_token
        return secrets.static_credentials(
            settings.login,
            settings.password.get_secret_value(),
            None if token is None else token.get_secret_value(),
        )
    return secrets.EnvironmentCredentials()


def _for_gcs(settings: IcechunkConnection) -> GcsCredentials:
    from airflow_provider_icechunk.engine.storage import secrets

    if settings.anonymous:
        return secrets.AnonymousCredentials()
    if settings.gcp_conn_id:
        return secrets.RefreshableToken(partial(_google, settings.gcp_conn_id))
    if settings.service_account_file:
        return secrets.ServiceAccountFile(settings.service_account_file)
    if settings.password:
        return secrets.ServiceAccountKey(secrets.Secret(settings.password.get_secret_value()))
    return secrets.EnvironmentCredentials()


def _for_azure(settings: IcechunkConnection) -> AzureCredentials:
    from airflow_provider_icechunk.engine.storage import secrets

    if settings.anonymous:
        return secrets.AnonymousCredentials()
    if settings.wasb_conn_id:
        return _azure(settings.wasb_conn_id)
    if settings.managed_identity:
        return secrets.ManagedIdentity()
    if settings.sas_token:
        return secrets.SharedAccessSignature(secrets.Secret(settings.sas_token.get_secret_value()))
    if settings.password is None:
        return secrets.EnvironmentCredentials()
    secret = secrets.Secret(settings.password.get_secret_value())
    if settings.login and settings.tenant_id:
        return secrets.ServicePrincipal(settings.tenant_id, settings.login, secret)
    return secrets.AccountKey(secret)


_BY_STORAGE: Mapping[str, Callable[[IcechunkConnection], object]] = {
    "s3": _for_s3,
    "gcs": _for_gcs,
    "azure": _for_azure,
}


def _amazon(aws_conn_id: str) -> StaticCredentials:
    """The current keys of an Amazon connection, which expire so that they are read again."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

    from airflow_provider_icechunk.engine.storage.secrets import static_credentials

    keys = AwsGenericHook(aws_conn_id=aws_conn_id).get_credentials()
    if not keys.access_key or not keys.secret_key:
        raise AccessDeniedError(f"the Amazon connection {aws_conn_id!r} has no credentials")
    for secret in (keys.secret_key, keys.token):
        if secret:
            mask_secret(secret)
    until = datetime.now(UTC) + _BORROWED_FOR
    return static_credentials(keys.access_key, keys.secret_key, keys.token, expires_after=until)


def _google(gcp_conn_id: str) -> Token:
    """A current token of a Google connection."""
    base = _module_of(
        "airflow.providers.google.common.hooks.base_google",
        needed_by="gcp_conn_id",
        package="apache-airflow-providers-google",
    )

    from airflow_provider_icechunk.engine.storage.secrets import Secret, Token

    found = base.GoogleBaseHook(gcp_conn_id=gcp_conn_id).get_credentials()
    if getattr(found, "requires_scopes", False):
        found = found.with_scopes([_GOOGLE_SCOPE])
    # Of google-auth, which comes with the provider.
    found.refresh(import_module("google.auth.transport.requests").Request())
    if not found.token:
        raise AccessDeniedError(f"the Google connection {gcp_conn_id!r} gives no token")
    mask_secret(found.token)
    # google-auth tells times in UTC, without a time zone.
    until = found.expiry.replace(tzinfo=UTC) if found.expiry else datetime.now(UTC) + _BORROWED_FOR
    return Token(Secret(found.token), until)


def _azure(wasb_conn_id: str) -> AzureCredentials:
    """What an Azure Blob Storage connection holds: a SAS token, a key, or an identity."""
    from airflow.sdk import BaseHook

    from airflow_provider_icechunk.engine.storage import secrets

    found = BaseHook.get_connection(wasb_conn_id)
    if found.conn_type != "wasb":
        raise InvalidInputError(
            f"wasb_conn_id: the connection {wasb_conn_id!r} has the type {found.conn_type!r}, not "
            "'wasb'",
            kind=Kind.INVALID_CONFIG,
        )
    extra = found.extra_dejson

    def field(name: str) -> str:
        return str(extra.get(name) or extra.get(f"extra__wasb__{name}") or "")

    for secret in (found.password, field("sas_token"), field("shared_access_key")):
        if secret:
            mask_secret(secret)
    if field("sas_token"):
        # The field may also hold a URL that ends with the token.
        token = field("sas_token").rpartition("?")[2]
        return secrets.SharedAccessSignature(secrets.Secret(token))
    if field("shared_access_key"):
        return secrets.AccountKey(secrets.Secret(field("shared_access_key")))
    if field("tenant_id") and found.login and found.password:
        return secrets.ServicePrincipal(
            field("tenant_id"), found.login, secrets.Secret(found.password)
        )
    if found.password:
        return secrets.AccountKey(secrets.Secret(found.password))
    if field("connection_string"):
        raise InvalidInputError(
            f"wasb_conn_id: the connection {wasb_conn_id!r} has a connection string: give it the "
            "account key as its password, or a sas_token",
            kind=Kind.INVALID_CONFIG,
        )
    return secrets.RefreshableToken(partial(_entra, wasb_conn_id))


def _entra(wasb_conn_id: str) -> Token:
    """A current token of the identity behind an Azure connection without keys."""
    utils = _module_of(
        "airflow.providers.microsoft.azure.utils",
        needed_by="wasb_conn_id",
        package="apache-airflow-providers-microsoft-azure",
    )
    from airflow.sdk import BaseHook

    from airflow_provider_icechunk.engine.storage.secrets import Secret, Token

    extra = BaseHook.get_connection(wasb_conn_id).extra_dejson
    found = utils.get_sync_default_azure_credential(
        managed_identity_client_id=extra.get("managed_identity_client_id"),
        workload_identity_tenant_id=extra.get("workload_identity_tenant_id"),
    ).get_token(_AZURE_SCOPE)
    mask_secret(found.token)
    return Token(Secret(found.token), datetime.fromtimestamp(found.expires_on, UTC))


def _module_of(name: str, *, needed_by: str, package: str) -> Any:
    """A module of a provider that is installed if a connection of its type is used."""
    try:
        return import_module(name)
    except ImportError:
        raise InvalidInputError(
            f"{needed_by} needs the package {package}: install it", kind=Kind.INVALID_CONFIG
        ) from None
