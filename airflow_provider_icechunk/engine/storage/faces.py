"""The official interface of storages: constructors as class methods, settings, listings, display.

The engine itself needs only the protocol in `base`. The constructors create classes with this
interface, so they are imported when they are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from .credentials import S3Credentials, S3StaticCredentials

if TYPE_CHECKING:
    from .base import Storage as _Protocol
else:
    _Protocol = object


@dataclass(frozen=True, slots=True)
class StorageObjectInfo:
    """An object of a storage."""

    key: str
    size_bytes: int
    created_at: datetime


class OfficialStorage(Shown, _Protocol):
    """A storage under its official name: what the constructors return."""

    __slots__ = ()
    __qualname__ = "Storage"

    def shown_name(self) -> str:
        """As in the official package, whatever the class."""
        return "icechunk.Storage"

    def shown_facts(self) -> Mapping[str, object]:
        """Where it is; never with credentials."""
        kind, _, rest = self.location.partition("://")
        match kind:
            case "memory":
                return {"type": "in-memory"}
            case "file":
                return {"type": "local filesystem", "path": rest}
            case _:
                bucket, _, prefix = rest.partition("/")
                region = getattr(getattr(self, "settings", None), "region", None)
                facts = {"bucket": bucket, "prefix": prefix, "region": region}
                return {"type": kind.upper(), **{k: v for k, v in facts.items() if v}}

    def list_objects(
        self, settings: object | None = None, prefix: str | None = None
    ) -> list[tuple[str, int]]:
        """Key and size of every object below `prefix`."""
        return [(one.key, one.size_bytes) for one in self.list_objects_metadata(settings, prefix)]

    def list_objects_metadata(
        self, settings: object | None = None, prefix: str | None = None
    ) -> list[StorageObjectInfo]:
        """Every object below `prefix`; the storage's own settings apply."""
        del settings
        found = self.scan(prefix or "")
        return [StorageObjectInfo(one.key, one.size, one.created_at) for one in found]

    @staticmethod
    def new_in_memory() -> _Protocol:
        """See `in_memory_storage`."""
        from .constructors import in_memory_storage

        return in_memory_storage()

    @staticmethod
    def new_local_filesystem(path: str) -> _Protocol:
        """See `local_filesystem_storage`."""
        from .constructors import local_filesystem_storage

        return local_filesystem_storage(path)

    @staticmethod
    def new_s3(
        config: Any, bucket: str, prefix: str | None, credentials: Any = None, **more: Any
    ) -> _Protocol:
        """See `s3_storage`."""
        from .constructors import s3_storage

        return s3_storage(bucket=bucket, prefix=prefix, **_s3(config, credentials), **_given(more))

    @staticmethod
    def new_s3_object_store(
        config: Any, bucket: str, prefix: str | None, credentials: Any = None, **more: Any
    ) -> _Protocol:
        """The same as `new_s3`: there is one client for S3."""
        return OfficialStorage.new_s3(config, bucket, prefix, credentials, **more)

    @staticmethod
    def new_r2(
        config: Any,
        bucket: str | None = None,
        prefix: str | None = None,
        account_id: str | None = None,
        credentials: Any = None,
        **more: Any,
    ) -> _Protocol:
        """See `r2_storage`."""
        chosen = _s3(config, credentials)
        from .constructors import r2_storage

        return r2_storage(
            bucket=bucket,
            prefix=prefix,
            account_id=account_id,
            **{name: one for name, one in chosen.items() if name in _R2},
            **_credentials(credentials),
            **_given(more),
        )

    @staticmethod
    def new_http(base_url: str, config: Any = None, headers: Any = None) -> _Protocol:
        """See `http_storage`."""
        options = {} if config is None else {"opts": config}
        from .constructors import http_storage

        return http_storage(base_url, **options, **_given({"headers": headers}))


Storage = OfficialStorage
"""Its name in the public API."""


def s3_object_store_storage(**options: Any) -> _Protocol:
    """The same as `s3_storage`: there is one client for S3."""
    from .constructors import s3_storage

    return s3_storage(**options)


_R2 = ("endpoint_url", "region", "allow_http", "network_stream_timeout_seconds")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Only the given options: most constructors support few of the official ones."""
    options = {name: one for name, one in options.items() if one is not None}
    options.pop("legacy_rooted_keys", None)
    return options


def _s3(config: Any, credentials: Any) -> dict[str, Any]:
    timeout = config.network_stream_timeout_seconds
    return {
        "region": config.region,
        "endpoint_url": config.endpoint_url,
        "allow_http": config.allow_http,
        "force_path_style": config.force_path_style,
        "network_stream_timeout_seconds": 60 if timeout is None else timeout,
        **({"requester_pays": True} if config.requester_pays else {}),
        **({"anonymous": True} if config.anonymous else _credentials(credentials)),
    }


def _credentials(credentials: Any) -> dict[str, Any]:
    """The arguments of a constructor that a credential of the official kinds stands for."""
    match credentials:
        case None:
            return {}
        case S3Credentials.FromEnv():
            return {"from_env": True}
        case S3Credentials.Anonymous():
            return {"anonymous": True}
        case S3Credentials.Static(keys):
            return _credentials(keys)
        case S3StaticCredentials():
            return {
                "access_key_id": credentials.access_key_id,
                "secret_access_key": credentials.secret_access_key,
                "session_token": credentials.session_token,
                "expires_after": credentials.expires_after,
            }
        case S3Credentials.Refreshable(get_credentials):
            return {"get_credentials": get_credentials}
        case _:
            raise InvalidInputError(
                f"{type(credentials).__name__} is not a credential for S3; use s3_credentials",
                kind=Kind.INVALID_CONFIG,
            )
