"""From the official kinds of credentials for Google and Azure to those of the storage layer."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from . import secrets
from .credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AzureCredentials,
    AzureStaticCredentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
)
from .secrets import Secret


def google_credentials(credential: AnyGcsCredential | None) -> secrets.GcsCredentials:
    """The value that the storage layer uses; `None` means the environment."""
    match credential:
        case None | GcsCredentials.FromEnv():
            return secrets.EnvironmentCredentials()
        case GcsCredentials.Anonymous():
            return secrets.AnonymousCredentials()
        case GcsCredentials.Refreshable(function, current):
            return secrets.RefreshableToken(_Tokens(current, function))
        case GcsCredentials.Static(GcsStaticCredentials.ServiceAccount(path)):
            return secrets.ServiceAccountFile(path)
        case GcsCredentials.Static(GcsStaticCredentials.ServiceAccountKey(key)):
            return secrets.ServiceAccountKey(Secret(key))
        case GcsCredentials.Static(GcsStaticCredentials.ApplicationCredentials(path)):
            return secrets.ApplicationCredentialsFile(path)
        case GcsCredentials.Static(GcsStaticCredentials.BearerToken(token)):
            return _token(token)
    raise _wrong(credential, "Google Cloud Storage")


def microsoft_credentials(credential: AnyAzureCredential | None) -> secrets.AzureCredentials:
    """The value that the storage layer uses; `None` means the environment."""
    match credential:
        case None | AzureCredentials.FromEnv():
            return secrets.EnvironmentCredentials()
        case AzureCredentials.Static(AzureStaticCredentials.AccessKey(key)):
            return secrets.AccountKey(Secret(key))
        case AzureCredentials.Static(AzureStaticCredentials.SasToken(token)):
            return secrets.SharedAccessSignature(Secret(token))
        case AzureCredentials.Static(AzureStaticCredentials.BearerToken(token)):
            return secrets.Token(Secret(token))
    raise _wrong(credential, "Azure Blob Storage")


def _token(given: str | GcsBearerCredential) -> secrets.Token:
    if isinstance(given, str):
        return secrets.Token(Secret(given))
    return secrets.Token(Secret(given.bearer), given.expires_after)


class _Tokens:
    """Returns a given token first, then those of a function."""

    def __init__(
        self, first: GcsBearerCredential | None, then: Callable[[], GcsBearerCredential]
    ) -> None:
        self._first = first
        self._then = then

    def __call__(self) -> secrets.Token:
        first, self._first = self._first, None
        return _token(self._then() if first is None else first)


def _wrong(credential: object, store: str) -> InvalidInputError:
    return InvalidInputError(
        f"{type(credential).__qualname__} is not a kind of credentials for {store}",
        kind=Kind.INVALID_CONFIG,
    )
