"""Credentials with the official names, and the functions that create them.

`s3_storage` and `authorize_virtual_chunk_access` take them. `storage_credentials` converts
them to the values that the storage layer uses. They are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from . import secrets as internal
from .secrets import Secret


class S3StaticCredentials:
    """A key pair for S3, optionally with a session token and an expiry."""

    __slots__ = ("_secret_access_key", "_session_token", "access_key_id", "expires_after")

    def __init__(
        self,
        access_key_id: str,
        secret_access_key: str,
        session_token: str | None = None,
        expires_after: datetime | None = None,
    ) -> None:
        self.access_key_id = access_key_id
        self._secret_access_key = Secret(secret_access_key)
        self._session_token = None if session_token is None else Secret(session_token)
        self.expires_after = expires_after

    @property
    def secret_access_key(self) -> str:
        """The secret in plain text; do not print it."""
        return self._secret_access_key.reveal()

    @property
    def session_token(self) -> str | None:
        """The token in plain text; do not print it."""
        return None if self._session_token is None else self._session_token.reveal()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, S3StaticCredentials) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash((self.access_key_id, self._secret_access_key))

    def __repr__(self) -> str:
        return (
            f"S3StaticCredentials(access_key_id={self.access_key_id[:4]}****, "
            f"secret_access_key=****, "
            f"session_token={'None' if self._session_token is None else '****'}, "
            f"expires_after={self.expires_after!r})"
        )


def _check_callable(function: object) -> None:
    if not callable(function):
        raise InvalidInputError(
            "refreshable credentials need a function; pickled functions are never loaded"
        )


class S3Credentials:
    """Kinds of credentials for S3."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """Credentials from the environment, a profile or the instance."""

    @dataclass(frozen=True, slots=True)
    class Anonymous:
        """No credentials: requests are not signed."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """A fixed key pair."""

        credentials: S3StaticCredentials

    @dataclass(frozen=True, slots=True)
    class Refreshable:
        """Keys from a function, called again before they expire. The function is never pickled."""

        get_credentials: Callable[[], S3StaticCredentials] = field(repr=False)
        current: S3StaticCredentials | None = field(default=None, repr=False)

        def __post_init__(self) -> None:
            _check_callable(self.get_credentials)


class GcsBearerCredential:
    """A bearer token for Google Cloud Storage."""

    __slots__ = ("_bearer", "expires_after")

    def __init__(self, bearer: str, *, expires_after: datetime | None = None) -> None:
        self._bearer = Secret(bearer)
        self.expires_after = expires_after

    @property
    def bearer(self) -> str:
        """The token in plain text; do not print it."""
        return self._bearer.reveal()

    def __repr__(self) -> str:
        return f"GcsBearerCredential(bearer=***, expires_after={self.expires_after!r})"


class GcsStaticCredentials:
    """Fixed credentials for Google Cloud Storage."""

    @dataclass(frozen=True, slots=True)
    class ServiceAccount:
        """A service account file."""

        path: str

    @dataclass(frozen=True, slots=True)
    class ServiceAccountKey:
        """The text of a service account file."""

        key: str = field(repr=False)

    @dataclass(frozen=True, slots=True)
    class ApplicationCredentials:
        """An application credentials file."""

        path: str

    @dataclass(frozen=True, slots=True)
    class BearerToken:
        """A bearer token."""

        token: str | GcsBearerCredential = field(repr=False)


class GcsCredentials:
    """Kinds of credentials for Google Cloud Storage."""

    @dataclass(frozen=True, slots=True)
    class Anonymous:
        """No credentials."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """Credentials from the environment."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """Fixed credentials."""

        credentials: AnyGcsStaticCredential

    @dataclass(frozen=True, slots=True)
    class Refreshable:
        """A token from a function. The function is never pickled."""

        get_credentials: Callable[[], GcsBearerCredential] = field(repr=False)
        current: GcsBearerCredential | None = field(default=None, repr=False)

        def __post_init__(self) -> None:
            _check_callable(self.get_credentials)


class AzureStaticCredentials:
    """Fixed credentials for Azure Blob Storage."""

    @dataclass(frozen=True, slots=True)
    class AccessKey:
        """The key of an account."""

        key: str = field(repr=False)

    @dataclass(frozen=True, slots=True)
    class SasToken:
        """A shared access signature."""

        token: str = field(repr=False)

    @dataclass(frozen=True, slots=True)
    class BearerToken:
        """A bearer token."""

        token: str = field(repr=False)


class AzureCredentials:
    """Kinds of credentials for Azure Blob Storage."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """Credentials from the environment."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """Fixed credentials."""

        credentials: AnyAzureStaticCredential


AnyS3Credential = (
    S3Credentials.Static
    | S3Credentials.Anonymous
    | S3Credentials.FromEnv
    | S3Credentials.Refreshable
)
AnyGcsStaticCredential = (
    GcsStaticCredentials.ServiceAccount
    | GcsStaticCredentials.ServiceAccountKey
    | GcsStaticCredentials.ApplicationCredentials
    | GcsStaticCredentials.BearerToken
)
AnyGcsCredential = (
    GcsCredentials.Anonymous
    | GcsCredentials.FromEnv
    | GcsCredentials.Static
    | GcsCredentials.Refreshable
)
AnyAzureStaticCredential = (
    AzureStaticCredentials.AccessKey
    | AzureStaticCredentials.SasToken
    | AzureStaticCredentials.BearerToken
)
AnyAzureCredential = AzureCredentials.FromEnv | AzureCredentials.Static


class Credentials:
    """Credentials for any kind of store, for virtual chunk containers."""

    @dataclass(frozen=True, slots=True)
    class S3:
        """For S3 and compatible services."""

        credentials: AnyS3Credential

    @dataclass(frozen=True, slots=True)
    class Gcs:
        """For Google Cloud Storage."""

        credentials: AnyGcsCredential

    @dataclass(frozen=True, slots=True)
    class Azure:
        """For Azure Blob Storage."""

        credentials: AnyAzureCredential

    @dataclass(frozen=True, slots=True)
    class LocalFileSystemAccess:
        """Allows files of this machine to be read, which takes no credentials."""

    @dataclass(frozen=True, slots=True)
    class HttpAccess:
        """Allows a web server to be read, which takes no credentials."""


LocalFileSystemAccess = Credentials.LocalFileSystemAccess()
HttpAccess = Credentials.HttpAccess()

NoCredential = Credentials.LocalFileSystemAccess | Credentials.HttpAccess
AnyCredential = Credentials.S3 | Credentials.Gcs | Credentials.Azure | NoCredential
AuthorizeMapping = Mapping[
    str, AnyCredential | AnyS3Credential | AnyGcsCredential | AnyAzureCredential | None
]


def containers_credentials(
    m: Mapping[str, AnyS3Credential | AnyGcsCredential | AnyAzureCredential | NoCredential | None],
) -> dict[str, AnyCredential | None]:
    """A grant per URL prefix, as `authorize_virtual_chunk_access` takes them."""
    return {prefix: _wrapped(credential) for prefix, credential in m.items()}


def _wrapped(
    credential: AnyS3Credential | AnyGcsCredential | AnyAzureCredential | NoCredential | None,
) -> AnyCredential | None:
    if credential is None or isinstance(credential, NoCredential):
        return credential
    if isinstance(credential, AnyS3Credential):
        return Credentials.S3(credential)
    if isinstance(credential, AnyGcsCredential):
        return Credentials.Gcs(credential)
    if isinstance(credential, AnyAzureCredential):
        return Credentials.Azure(credential)
    raise InvalidInputError(f"{type(credential).__name__} is not a kind of credentials")


def storage_credentials(
    credential: AnyS3Credential | None, *, travels: bool = False
) -> internal.S3Credentials:
    """The value that the storage layer uses; `None` means the environment.

    :param travels: whether keys may be pickled, as plain text.
    """
    match credential:
        case None | S3Credentials.FromEnv():
            return internal.EnvironmentCredentials()
        case S3Credentials.Anonymous():
            return internal.AnonymousCredentials()
        case S3Credentials.Static(keys):
            return _static(keys, travels=travels)
        case S3Credentials.Refreshable(function, current):
            first = None if current is None else _static(current, travels=True)
            return internal.RefreshableCredentials(_FirstThen(first, function))
    raise InvalidInputError(
        f"{type(credential).__name__} is not a kind of S3 credentials", kind=Kind.INVALID_CONFIG
    )


def _static(keys: S3StaticCredentials, *, travels: bool = False) -> internal.StaticCredentials:
    if not isinstance(keys, S3StaticCredentials):
        raise InvalidInputError(
            f"get_credentials returned a {type(keys).__name__}, not S3StaticCredentials",
            kind=Kind.INVALID_CONFIG,
        )
    return internal.static_credentials(
        keys.access_key_id,
        keys.secret_access_key,
        keys.session_token,
        expires_after=keys.expires_after,
        travels=travels,
    )


class _FirstThen:
    """Returns given keys first, then those of a function.

    A pickle includes the first keys: other processes begin with them, too.
    """

    def __init__(
        self,
        first: internal.StaticCredentials | None,
        then: Callable[[], S3StaticCredentials],
    ) -> None:
        self._scattered = first
        self._first = first
        self._then = then

    def __call__(self) -> internal.StaticCredentials:
        first, self._first = self._first, None
        return _static(self._then()) if first is None else first

    def __reduce__(self) -> tuple[Any, ...]:
        return (_FirstThen, (self._scattered, self._then))


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials], scatter_initial_credentials: bool = False
) -> S3Credentials.Refreshable:
    """Keys from `get_credentials`, which is called again before they expire.

    With `scatter_initial_credentials` the function is called now and its result used first, even
    by processes that receive the storage in a pickle, which then contains these keys in plain
    text.
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
    """A fixed key pair."""
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
    """Credentials of the kind that the arguments name; without any, from the environment."""
    has_keys = any(
        value is not None
        for value in (access_key_id, secret_access_key, session_token, expires_after)
    )
    chosen = [bool(anonymous), bool(from_env), get_credentials is not None, has_keys]
    if sum(chosen) > 1 or (sum(chosen) == 0 and from_env is False):
        raise InvalidInputError(
            "s3_credentials takes exactly one of: keys, anonymous, from_env, get_credentials"
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
    get_credentials: Callable[[], GcsBearerCredential], scatter_initial_credentials: bool = False
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
    """Credentials for Google Cloud Storage; without any argument, from the environment."""
    given = (service_account_file, service_account_key, application_credentials, bearer_token)
    if anonymous:
        return gcs_anonymous_credentials()
    if get_credentials is not None:
        return gcs_refreshable_credentials(get_credentials, scatter_initial_credentials)
    if all(value is None for value in given) and from_env is not False:
        return gcs_from_env_credentials()
    if from_env:
        raise InvalidInputError("gcs_credentials takes from_env or fixed credentials, not both")
    return GcsCredentials.Static(
        gcs_static_credentials(
            service_account_file=service_account_file,
            service_account_key=service_account_key,
            application_credentials=application_credentials,
            bearer_token=bearer_token,
        )
    )


def azure_static_credentials(
    *, access_key: str | None = None, sas_token: str | None = None, bearer_token: str | None = None
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
    """Credentials for Azure Blob Storage; without any argument, from the environment."""
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
