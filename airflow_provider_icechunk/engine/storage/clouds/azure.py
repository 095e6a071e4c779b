"""Azure Blob Storage: conditions by entity tag, which changes with every write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from airflow_provider_icechunk.engine.storage.base import Version
from airflow_provider_icechunk.engine.storage.secrets import (
    AccountKey,
    AnonymousCredentials,
    AzureCredentials,
    EnvironmentCredentials,
    ManagedIdentity,
    RefreshableToken,
    ServicePrincipal,
    SharedAccessSignature,
    Token,
)

from .cloud import CloudSettings, bearer
from .native import tag_of
from .native_storage import NativeStorage
from .settings import invalid

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


@dataclass(frozen=True, slots=True)
class AzureSettings(CloudSettings):
    """All settings of an `AzureStorage`, without secrets in its repr. The bucket is a container."""

    vendor = "Azure Blob Storage"
    suffix_ranges = False
    real_folders = True

    account: str = ""
    credentials: AzureCredentials = field(default_factory=EnvironmentCredentials)

    def __post_init__(self) -> None:
        CloudSettings.__post_init__(self)
        if _ACCOUNT.fullmatch(self.account) is None:
            raise invalid(
                f"{self.account[:30]!r} is not the name of an Azure storage account: 3 to 24 "
                "lower-case letters and digits"
            )

    @property
    def location(self) -> str:
        """Account, container and prefix as a URL."""
        root = f"abfs://{self.bucket}@{self.account}.dfs.core.windows.net"
        return f"{root}/{self.prefix}" if self.prefix else root

    @property
    def address(self) -> str:
        """The web address of the container's blobs."""
        return f"{self._endpoint}/{self.bucket}"

    @property
    def source(self) -> object:
        """The credentials."""
        return self.credentials

    def version_of(self, meta: Any) -> Version:
        """The entity tag."""
        return tag_of(meta)

    def version_condition(self, version: Version) -> dict[str, str]:
        """By entity tag."""
        return {"e_tag": version}

    def make(self, token: Token | None, client: Mapping[str, Any], retry: Mapping[str, Any]) -> Any:
        """A store of the native client."""
        from obstore.store import AzureStore

        options: Any = dict(client)
        retries: Any = dict(retry)
        return AzureStore(
            self.bucket,
            client_options=options,
            retry_config=retries,
            # Settings not given here come from the environment.
            account_name=self.account,
            endpoint=self._endpoint,
            use_emulator=False,
            use_fabric_endpoint=False,
            disable_tagging=True,
            **self._credentials(token),
        )

    @property
    def _endpoint(self) -> str:
        return (self.endpoint_url or f"https://{self.account}.blob.core.windows.net").rstrip("/")

    def _credentials(self, token: Token | None) -> dict[str, Any]:
        match self.credentials:
            case Token() | RefreshableToken():
                assert token is not None
                return _by_value(bearer(token)())
            case AccountKey(key):
                return _by_value({"access_key": key.reveal(), "expires_at": None})
            case SharedAccessSignature(signature):
                text = signature.reveal().removeprefix("?")
                return _by_value({"sas_token": text, "expires_at": None})
            case ServicePrincipal(tenant, client, secret):
                return {
                    "tenant_id": tenant,
                    "client_id": client,
                    "client_secret": secret.reveal(),
                    "credential_type": "client_secret",
                    "skip_signature": False,
                }
            case ManagedIdentity(client_id):
                chosen = {} if client_id is None else {"client_id": client_id}
                return {**chosen, "credential_type": "managed_identity", "skip_signature": False}
            case AnonymousCredentials():
                return {"skip_signature": True}
            case EnvironmentCredentials():
                return {}
            case _:
                assert_never(self.credentials)


def _by_value(given: dict[str, Any]) -> dict[str, Any]:
    """As a function: keys given by value would be mixed with those of the environment."""
    return {"credential_provider": lambda: given, "skip_signature": False}


class AzureStorage(NativeStorage):
    """Objects below a prefix of a container of Azure Blob Storage."""

    settings: AzureSettings
