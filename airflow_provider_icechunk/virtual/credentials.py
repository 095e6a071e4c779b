"""Credentials under the names of the official package, with their secrets kept out of sight.

They are what `s3_storage` and `authorize_virtual_chunk_access` take. `storage_credentials` turns
them into the values the storage layer works with. None of them is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind
from airflow_provider_icechunk.storage import credentials as internal
from airflow_provider_icechunk.storage.credentials import Secret


class S3StaticCredentials:
    """A pair of keys for S3, perhaps with a session token and an end."""

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
        """The secret in clear; do not print it."""
        return self._secret_access_key.reveal()

    @property
    def session_token(self) -> str | None:
        """The token in clear; do not print it."""
        return None if self._session_token is None else self._session_token.reveal()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, S3StaticCredentials) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash((self.access_key_id, self._secret_access_key))

    def __repr__(self) -> str:
        return (
            f"S3StaticCredentials(access_key_id=***, secret_access_key=***, "
            f"session_token={'None' if self._session_token is None else '***'}, "
            f"expires_after={self.expires_after!r})"
        )


def _check_callable(function: object) -> None:
    if not callable(function):
        raise InvalidInputError(
            "refreshable credentials need a function; pickled functions are never loaded"
        )


class S3Credentials:
    """The ways to prove oneself to S3."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """What the environment, a profile or the instance offers."""

    @dataclass(frozen=True, slots=True)
    class Anonymous:
        """Nothing: requests are not signed."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """A fixed pair of keys."""

        credentials: S3StaticCredentials

    @dataclass(frozen=True, slots=True)
    class Refreshable:
        """Keys from a function, asked again before they expire. The function is never pickled."""

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
        """The token in clear; do not print it."""
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
    """The ways to prove oneself to Google Cloud Storage."""

    @dataclass(frozen=True, slots=True)
    class Anonymous:
        """Nothing."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """What the environment offers."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """Something fixed."""

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
    """The ways to prove oneself to Azure Blob Storage."""

    @dataclass(frozen=True, slots=True)
    class FromEnv:
        """What the environment offers."""

    @dataclass(frozen=True, slots=True)
    class Static:
        """Something fixed."""

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
    """Credentials of any kind of store, for virtual chunk containers."""

    @dataclass(frozen=True, slots=True)
    class S3:
        """For S3 and services like it."""

        credentials: AnyS3Credential

    @dataclass(frozen=True, slots=True)
    class Gcs:
        """For Google Cloud Storage."""

        credentials: AnyGcsCredential

    @dataclass(frozen=True, slots=True)
    class Azure:
        """For Azure Blob Storage."""

        credentials: AnyAzureCredential


AnyCredential = Credentials.S3 | Credentials.Gcs | Credentials.Azure
AuthorizeMapping = Mapping[
    str, AnyCredential | AnyS3Credential | AnyGcsCredential | AnyAzureCredential | None
]


def containers_credentials(
    m: Mapping[str, AnyS3Credential | AnyGcsCredential | AnyAzureCredential | None],
) -> dict[str, AnyCredential | None]:
    """A grant for each URL prefix, as `authorize_virtual_chunk_access` takes it."""
    return {prefix: _wrapped(credential) for prefix, credential in m.items()}


def _wrapped(
    credential: AnyS3Credential | AnyGcsCredential | AnyAzureCredential | None,
) -> AnyCredential | None:
    if credential is None:
        return None
    if isinstance(credential, AnyS3Credential):
        return Credentials.S3(credential)
    if isinstance(credential, AnyGcsCredential):
        return Credentials.Gcs(credential)
    if isinstance(credential, AnyAzureCredential):
        return Credentials.Azure(credential)
    raise InvalidInputError(f"{type(credential).__name__} is not a kind of credentials")


def storage_credentials(credential: AnyS3Credential | None) -> internal.S3Credentials:
    """The value the storage layer works with; `None` means the environment."""
    match credential:
        case None | S3Credentials.FromEnv():
            return internal.EnvironmentCredentials()
        case S3Credentials.Anonymous():
            return internal.AnonymousCredentials()
        case S3Credentials.Static(keys):
            return _static(keys)
        case S3Credentials.Refreshable(function, current):
            return internal.RefreshableCredentials(_FirstThen(current, function))
    raise InvalidInputError(
        f"{type(credential).__name__} is not a kind of S3 credentials", kind=Kind.INVALID_CONFIG
    )


def _static(keys: S3StaticCredentials) -> internal.StaticCredentials:
    return internal.static_credentials(
        keys.access_key_id,
        keys.secret_access_key,
        keys.session_token,
        expires_after=keys.expires_after,
    )


class _FirstThen:
    """Keys that are at hand once, then those of a function."""

    def __init__(
        self, first: S3StaticCredentials | None, then: Callable[[], S3StaticCredentials]
    ) -> None:
        self._first = first
        self._then = then

    def __call__(self) -> internal.StaticCredentials:
        first, self._first = self._first, None
        return _static(self._then() if first is None else first)
