"""Settings for access to a bucket that all object stores share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self
from urllib.parse import urlsplit

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.attribution import AGENT
from airflow_provider_icechunk.engine.storage.base import check_bucket_name, check_key
from airflow_provider_icechunk.engine.storage.tuning import Tuning
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """Where the objects are, and how requests are made."""

    bucket: str
    prefix: str = ""
    """Key prefix of the repository, without leading or trailing slash."""
    endpoint_url: str | None = None
    """For addresses other than the vendor's. Plain `http` only with `allow_http`."""
    allow_http: bool = False
    use_metadata: bool = True
    """Whether to store metadata. Without it more lost responses remain unresolved."""
    concurrency: int = 64
    """Maximum number of concurrent requests, and of connections kept."""
    multipart_threshold: int = 64 * MIB
    """Unconditional writes of at least this size are multipart uploads."""
    part_size: int = 16 * MIB
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    """For everything but chunks; `storage_class` if not given."""
    chunks_storage_class: str | None = None
    """For chunks; `storage_class` if not given."""
    chunks_prefix: str = "chunks/"
    """Start of the keys of chunks."""
    retry: Backoff = field(default_factory=Backoff)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers for every request; the native client does not sign them."""
    read_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    write_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers of requests that read, and of those that write or delete."""
    user_agent: str = AGENT

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", self.prefix.strip("/"))
        if self.prefix:
            check_key(self.prefix)
        check_bucket_name(self.bucket)
        if self.part_size < 5 * MIB:
            raise invalid("part_size must be at least 5 MiB, the smallest part that stores take")
        if self.concurrency < 1:
            raise invalid("concurrency must be at least 1")
        self._check_endpoint()

    def storage_class_of(self, key: str) -> str | None:
        """The storage class for an object, depending on its key."""
        special = (
            self.chunks_storage_class
            if key.startswith(self.chunks_prefix)
            else self.metadata_storage_class
        )
        return special or self.storage_class

    def tuned(self, tuning: Tuning) -> Self:
        """These settings with those of a repository; itself if nothing changes."""
        pauses = {
            "tries": tuning.tries,
            "first_pause": tuning.first_pause,
            "longest_pause": tuning.longest_pause,
        }
        retry = _changes(self.retry, pauses, tuning.only_defaults)
        chosen = {
            "concurrency": tuning.requests_at_once,
            "use_metadata": tuning.use_metadata,
            "storage_class": tuning.storage_class,
            "metadata_storage_class": tuning.metadata_storage_class,
            "chunks_storage_class": tuning.chunks_storage_class,
            "chunks_prefix": tuning.chunks_prefix,
            "multipart_threshold": tuning.multipart_threshold,
            "connect_timeout": tuning.connect_timeout,
            "read_timeout": tuning.read_timeout,
            "user_agent": tuning.user_agent,
        }
        changes = _changes(self, chosen, tuning.only_defaults)
        if retry:
            changes["retry"] = replace(self.retry, **retry)
        return replace(self, **changes) if changes else self

    def _check_endpoint(self) -> None:
        if self.endpoint_url is None:
            return
        parts = urlsplit(self.endpoint_url)
        if parts.username is not None or parts.password is not None:
            raise invalid("endpoint_url contains a user or a password: pass credentials separately")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise invalid(f"endpoint_url {self.endpoint_url!r} is not an http or https URL")
        if parts.scheme == "http" and not self.allow_http:
            raise invalid(
                f"endpoint_url {self.endpoint_url!r} is not encrypted: use https, or set "
                "allow_http if the network is trusted"
            )


def _changes(
    made: BucketSettings | Backoff, chosen: Mapping[str, Any], only_defaults: bool
) -> dict[str, Any]:
    """Chosen values that differ; with `only_defaults`, only for settings still at their default."""
    default = {one.name: one.default for one in fields(made)}
    return {
        name: value
        for name, value in chosen.items()
        if value not in (None, getattr(made, name))
        and not (only_defaults and getattr(made, name) != default[name])
    }


def invalid(message: str) -> InvalidInputError:
    """The error for settings that make no sense."""
    return InvalidInputError(message, kind=Kind.INVALID_CONFIG)
