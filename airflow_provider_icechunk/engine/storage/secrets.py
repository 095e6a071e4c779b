"""Who asks: credentials for object stores, as values that never show their secrets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Never

from airflow_provider_icechunk.exceptions import InvalidInputError


class Secret:
    """Text that is shown as asterisks wherever it is printed, and cannot be pickled.

    Only `reveal` gives the text; call it where it leaves for the library that needs it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | Secret) -> None:
        self._text: str = text._text if isinstance(text, Secret) else text

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

    def __reduce__(self) -> Never:
        raise TypeError("a secret is not pickled: let the other side get its own credentials")


@dataclass(frozen=True, slots=True)
class StaticCredentials:
    """A fixed pair of keys, perhaps with a session token. See `static_credentials`."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None
    expires_after: datetime | None = None
    """When a refreshable source has to be asked again."""


@dataclass(frozen=True, slots=True)
class EnvironmentCredentials:
    """What the SDK's default chain finds: environment, profile, web identity, instance."""


@dataclass(frozen=True, slots=True)
class AnonymousCredentials:
    """No credentials: requests are not signed."""


@dataclass(frozen=True, slots=True)
class RefreshableCredentials:
    """Keys from a function that is asked again before they expire."""

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
) -> StaticCredentials:
    """A fixed pair of keys; plain text is wrapped at once."""
    if not access_key_id:
        raise InvalidInputError("the access key id is empty: give one, or use anonymous access")
    if expires_after is not None and expires_after.tzinfo is None:
        raise InvalidInputError("expires_after has no time zone: pass a time in UTC")
    return StaticCredentials(
        access_key_id,
        Secret(secret_access_key),
        None if session_token is None else Secret(session_token),
        expires_after,
    )
