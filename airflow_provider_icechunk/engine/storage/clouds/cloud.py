"""What Google Cloud Storage and Azure Blob Storage do differently, as settings of a bucket."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Expectation, Version
from airflow_provider_icechunk.engine.storage.secrets import RefreshableToken, Token

from .settings import BucketSettings

_EARLY = timedelta(minutes=5)
"""How long before its expiry a token is replaced."""


@dataclass(frozen=True, slots=True)
class CloudSettings(BucketSettings):
    """Settings of a bucket that only the native client accesses."""

    vendor: ClassVar[str]
    """For messages."""
    suffix_ranges: ClassVar[bool] = True
    """Whether the last bytes of an object can be requested without knowing its size."""
    real_folders: ClassVar[bool] = False
    """Whether folders may exist without objects in them."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Bucket and prefix as a URL."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The web address of the bucket's objects."""

    @property
    @abstractmethod
    def source(self) -> object:
        """The credentials."""

    @property
    def reads_only(self) -> bool:
        """Whether writes cannot be sent at all."""
        return False

    @abstractmethod
    def version_of(self, meta: Any) -> Version:
        """The version in the properties that the client returns."""

    def may_be_version(self, version: Version) -> bool:
        """Whether an object of this cloud could have this version; others are refused as wrong."""
        return bool(version)

    @abstractmethod
    def version_condition(self, version: Version) -> dict[str, str]:
        """The client's words for "only if the object still has this version"."""

    @abstractmethod
    def make(self, token: Token | None, client: Mapping[str, Any], retry: Mapping[str, Any]) -> Any:
        """A store of the native client; `token` is the current one of a refreshable source."""

    def mode(self, expect: Expectation) -> Any:
        """The client's words for a condition."""
        if isinstance(expect, Absent):
            return "create"
        return (
            "overwrite" if isinstance(expect, Anything) else self.version_condition(expect.version)
        )


class Tokens:
    """The current token of a refreshable source; requested again before it expires."""

    def __init__(self, source: object) -> None:
        self._source = source
        self._present: Token | None = None

    def present(self) -> Token | None:
        """The token; `None` if the client gets its own."""
        if isinstance(self._source, Token):
            return self._source
        if not isinstance(self._source, RefreshableToken):
            return None
        held = self._present
        if held is None or _ends(held):
            held = self._present = self._source.fetch()
        return held


def _ends(token: Token) -> bool:
    return token.expires_after is not None and token.expires_after - _EARLY < datetime.now(UTC)


def bearer(token: Token) -> Any:
    """A credential provider that hands out one token; the store is replaced when that changes."""
    given = {"token": token.token.reveal(), "expires_at": None}
    return lambda: given
