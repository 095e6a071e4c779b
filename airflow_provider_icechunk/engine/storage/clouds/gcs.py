"""Google Cloud Storage: conditions by generation, which never repeats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from airflow_provider_icechunk.engine.storage.base import Unfinished, Version
from airflow_provider_icechunk.engine.storage.secrets import (
    AnonymousCredentials,
    ApplicationCredentialsFile,
    EnvironmentCredentials,
    GcsCredentials,
    RefreshableToken,
    ServiceAccountFile,
    ServiceAccountKey,
    Token,
)

from .cloud import CloudSettings, bearer
from .native_storage import NativeStorage
from .settings import invalid

_ADDRESS = "https://storage.googleapis.com"
_ACCOUNTS = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)


@dataclass(frozen=True, slots=True)
class GcsSettings(CloudSettings):
    """All settings of a `GcsStorage`; its repr never contains a secret."""

    vendor = "Google Cloud Storage"

    credentials: GcsCredentials = field(default_factory=EnvironmentCredentials)
    user_project: str | None = None
    """The project that pays for requests to a requester-pays bucket."""

    @property
    def location(self) -> str:
        """Bucket and prefix as a URL."""
        return "/".join(filter(None, ("gs:/", self.bucket, self.prefix)))

    @property
    def address(self) -> str:
        """The web address of the bucket's objects."""
        return f"{(self.endpoint_url or _ADDRESS).rstrip('/')}/{self.bucket}"

    @property
    def source(self) -> object:
        """The credentials."""
        return self.credentials

    @property
    def reads_only(self) -> bool:
        """Whether there is no token to write with; the client would look for one elsewhere."""
        return isinstance(self.credentials, AnonymousCredentials)

    def version_of(self, meta: Any) -> Version:
        """The generation."""
        generation = meta["version"]
        if not generation:
            raise Unfinished("the response has no generation")
        return Version(str(generation))

    def may_be_version(self, version: Version) -> bool:
        """Generations are positive numbers; a write conditional on 0 would create an object."""
        return version.isascii() and version.isdigit() and int(version) > 0

    def version_condition(self, version: Version) -> dict[str, str]:
        """By generation."""
        return {"version": version}

    def make(self, token: Token | None, client: Mapping[str, Any], retry: Mapping[str, Any]) -> Any:
        """A store of the native client."""
        from obstore.store import GCSStore

        options: Any = dict(client)
        if self.user_project:
            headers = {
                **options.get("default_headers", {}),
                "x-goog-user-project": self.user_project,
            }
            options["default_headers"] = headers
        retries: Any = dict(retry)
        return GCSStore(
            self.bucket,
            client_options=options,
            retry_config=retries,
            # Settings not given here come from the environment.
            base_url=(self.endpoint_url or _ADDRESS).rstrip("/"),
            **self._credentials(token),
        )

    def _credentials(self, token: Token | None) -> dict[str, Any]:
        match self.credentials:
            case Token() | RefreshableToken():
                assert token is not None
                return {"credential_provider": bearer(token), "skip_signature": False}
            case AnonymousCredentials():
                return {"skip_signature": True}
            case EnvironmentCredentials():
                return {}
            case ServiceAccountFile(path):
                return _alone({"service_account": path})
            case ServiceAccountKey(key):
                return _alone({"service_account_key": key.reveal()})
            case ApplicationCredentialsFile(path):
                return _alone({"application_credentials": path})
            case _:
                assert_never(self.credentials)


def _alone(given: dict[str, Any]) -> dict[str, Any]:
    """Credentials by value, which the client would mix with those of the environment."""
    other = next(filter(os.environ.get, _ACCOUNTS), None)
    if other is not None:
        raise invalid(
            f"the variable {other} names another service account than the one that was given: "
            "unset it, or take the credentials from the environment (from_env)"
        )
    return {**given, "skip_signature": False}


class GcsStorage(NativeStorage):
    """Objects below a prefix of a bucket of Google Cloud Storage."""

    settings: GcsSettings
