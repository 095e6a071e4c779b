"""Credentials for object stores, as values that never show their secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_icechunk.exceptions import InvalidInputError

_TALKATIVE = ("botocore.auth", "botocore.endpoint")
"""Loggers that print the requests they sign and send, with the session token, at level DEBUG."""


class _NoDetails(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


_NO_DETAILS = _NoDetails()


def hide_signatures() -> None:
    """Keep signed requests out of the logs. Call before anything is signed."""
    for name in _TALKATIVE:
        logging.getLogger(name).addFilter(_NO_DETAILS)


class Secret:
    """Text that prints as asterisks and cannot be pickled, unless its owner allowed that.

    Only `reveal` returns the text; call it where it is passed to the library that needs it.
    """

    __slots__ = ("_text", "_travels")

    def __init__(self, text: str | Secret, *, travels: bool = False) -> None:
        self._text: str = text._text if isinstance(text, Secret) else text
        self._travels: bool = travels or (isinstance(text, Secret) and text._travels)

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._travels:
            raise TypeError(
                "secrets cannot be pickled: let the other process find its own credentials "
                "(from_env, or get_credentials with a function that can be imported there), or "
                "allow it with allow_pickling_credentials=True, which puts the keys into the "
                "pickle as plain text"
            )
        return (_revived, (self._text,))


def _revived(text: str) -> Secret:
    return Secret(text, travels=True)


@dataclass(frozen=True, slots=True)
class StaticCredentials:
    """A fixed key pair, optionally with a session token. See `static_credentials`."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None
    expires_after: datetime | None = None
    """When a refreshable source has to be called again."""


@dataclass(frozen=True, slots=True)
class EnvironmentCredentials:
    """The SDK's default chain: environment, profile, web identity, instance."""


@dataclass(frozen=True, slots=True)
class AnonymousCredentials:
    """No credentials: requests are not signed."""


@dataclass(frozen=True, slots=True)
class RefreshableCredentials:
    """Keys from a function that is called again before they expire."""

    fetch: Callable[[], StaticCredentials]


S3Credentials = (
    StaticCredentials | EnvironmentCredentials | AnonymousCredentials | RefreshableCredentials
)


def static_credentials(
    access_key_id: str,
    secret_access_key: str | Secret,
    session_token: str | Secret | None = None,
    *,
    expires_after: datetime | None = None,
    travels: bool = False,
) -> StaticCredentials:
    """A fixed key pair; plain text is wrapped as `Secret`.

    :param travels: whether the keys may be pickled, as plain text.
    """
    if not access_key_id:
        raise InvalidInputError("the access key id is empty: set one, or use anonymous access")
    if expires_after is not None and expires_after.tzinfo is None:
        raise InvalidInputError("expires_after has no time zone: pass a time in UTC")
    return StaticCredentials(
        access_key_id,
        Secret(secret_access_key, travels=travels),
        None if session_token is None else Secret(session_token, travels=travels),
        expires_after,
    )


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token."""

    token: Secret
    expires_after: datetime | None = None
    """When a refreshable source has to be called again."""


@dataclass(frozen=True, slots=True)
class RefreshableToken:
    """Tokens from a function that is called again before they expire."""

    fetch: Callable[[], Token]


@dataclass(frozen=True, slots=True)
class ServiceAccountFile:
    """A key file of a Google service account."""

    path: str


@dataclass(frozen=True, slots=True)
class ServiceAccountKey:
    """The text of such a file."""

    key: Secret


@dataclass(frozen=True, slots=True)
class ApplicationCredentialsFile:
    """A file of Google's application default credentials."""

    path: str


GcsCredentials = (
    EnvironmentCredentials
    | AnonymousCredentials
    | ServiceAccountFile
    | ServiceAccountKey
    | ApplicationCredentialsFile
    | Token
    | RefreshableToken
)


@dataclass(frozen=True, slots=True)
class AccountKey:
    """The key of an Azure storage account."""

    key: Secret


@dataclass(frozen=True, slots=True)
class SharedAccessSignature:
    """A SAS token for an Azure container or account."""

    token: Secret


@dataclass(frozen=True, slots=True)
class ServicePrincipal:
    """An application that is registered with Microsoft Entra, and its secret."""

    tenant_id: str
    client_id: str
    client_secret: Secret


@dataclass(frozen=True, slots=True)
class ManagedIdentity:
    """The identity of the machine, or the one of several that `client_id` names."""

    client_id: str | None = None


AzureCredentials = (
    EnvironmentCredentials
    | AnonymousCredentials
    | AccountKey
    | SharedAccessSignature
    | Token
    | RefreshableToken
    | ServicePrincipal
    | ManagedIdentity
)
