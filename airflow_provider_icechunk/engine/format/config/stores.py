"""Descriptions of external stores, and containers of virtual chunks.

These values describe and never grant: a stored container says where its virtual chunks are, and
nothing is read from there until the caller authorizes it. Free-form options are not printed, since
some of their keys are for secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_icechunk.engine.display import Made, Shown, as_code, official_name

from .settings import U32, Settings, later, one, whole


class ChecksumAlgorithm(Enum):
    """The checksum algorithm for the bodies of writes; for stores that accept only some."""

    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4


@dataclass(slots=True, repr=False)
class S3Options(Settings):
    """How to reach an S3 or S3-compatible service."""

    region: str | None = field(default=None, metadata=one(str))
    endpoint_url: str | None = field(default=None, metadata=one(str))
    allow_http: bool = field(default=False, metadata=one(bool))
    anonymous: bool = field(default=False, metadata=one(bool))
    force_path_style: bool = field(default=False, metadata=one(bool))
    network_stream_timeout_seconds: int | None = field(default=None, metadata=whole(U32))
    requester_pays: bool = field(default=False, metadata=one(bool))
    checksum_algorithm: ChecksumAlgorithm | None = field(
        default=None, metadata=later(one(ChecksumAlgorithm))
    )


class _Store(Made):
    """Shown with its options as its own facts, and made from one argument."""

    __slots__ = ()

    def shown_facts(self) -> Mapping[str, object]:
        """The facts of the options, if there are any."""
        facts = super().shown_facts()
        only = next(iter(facts.values()), None)
        return only.shown_facts() if isinstance(only, Shown) else facts

    def __repr__(self) -> str:
        arguments = ", ".join(map(as_code, self.shown_arguments().values()))
        return f"{official_name(type(self))}({arguments})"


class ObjectStoreConfig:
    """The kinds of stores for virtual chunks."""

    @dataclass(frozen=True, slots=True, repr=False)
    class InMemory(_Store):
        """The memory of this process."""

    @dataclass(frozen=True, slots=True, repr=False)
    class LocalFileSystem(_Store):
        """A directory of this machine."""

        path: str

    @dataclass(frozen=True, repr=False)
    class S3Compatible(_Store):
        """A service that speaks the S3 protocol."""

        options: S3Options

    @dataclass(frozen=True, repr=False)
    class S3(_Store):
        """Amazon S3."""

        options: S3Options

    @dataclass(frozen=True, repr=False)
    class Gcs(_Store):
        """Google Cloud Storage; its options may name another endpoint."""

        opts: Mapping[str, str] | None = field(default=None, repr=False)

    @dataclass(frozen=True, repr=False)
    class Azure(_Store):
        """Azure Blob Storage; its options name the account."""

        opts: Mapping[str, str] | None = field(default=None, repr=False)

    @dataclass(frozen=True, repr=False)
    class Tigris(_Store):
        """Tigris, through its S3 protocol."""

        opts: S3Options

    @dataclass(frozen=True, repr=False)
    class Http(_Store):
        """A web server, read with range requests."""

        opts: Mapping[str, str] | None = field(default=None, repr=False)

    @dataclass(frozen=True, repr=False)
    class Unknown(_Store):
        """An unknown kind in a stored configuration."""

        tag: str
        content: object = field(default=None, repr=False)


AnyObjectStoreConfig = (
    ObjectStoreConfig.InMemory
    | ObjectStoreConfig.LocalFileSystem
    | ObjectStoreConfig.S3
    | ObjectStoreConfig.S3Compatible
    | ObjectStoreConfig.Gcs
    | ObjectStoreConfig.Azure
    | ObjectStoreConfig.Tigris
    | ObjectStoreConfig.Http
    | ObjectStoreConfig.Unknown
)

_SCHEMES: dict[type, tuple[str, ...]] = {
    ObjectStoreConfig.S3: ("s3",),
    ObjectStoreConfig.S3Compatible: ("s3",),
    ObjectStoreConfig.Tigris: ("s3", "tigris"),
    ObjectStoreConfig.Gcs: ("gcs", "gs"),
    ObjectStoreConfig.Azure: ("az", "azure", "abfs"),
    ObjectStoreConfig.Http: ("http", "https"),
    ObjectStoreConfig.LocalFileSystem: ("file",),
}


@dataclass(slots=True, repr=False)
class VirtualChunkContainer(Settings):
    """Virtual chunks below a URL prefix, and the store they are in."""

    url_prefix: str
    store: AnyObjectStoreConfig
    name: str | None = field(default=None, kw_only=True)

    def problem(self) -> str | None:
        """Why this container is unusable, or `None`.

        Old versions often stored unusable containers; they are kept but never used.
        """
        scheme, separator, rest = self.url_prefix.partition("://")
        host, _, path = rest.partition("/")
        schemes = _SCHEMES.get(type(self.store), ())
        if not self.url_prefix.endswith("/"):
            return "the url_prefix must end with `/`"
        if not separator or scheme.lower() not in schemes:
            expected = " or ".join(f"{known}://" for known in schemes) or "another store"
            return f"this kind of store needs {expected}, not {scheme}://"
        if "@" in host:
            return "the url_prefix must not contain a user name or password"
        if scheme.lower() != "file":
            return None if host else "the url_prefix must name a host or bucket"
        if not path.strip("/"):
            return "the url_prefix must name a directory"
        if any(segment in (".", "..") for segment in path.split("/")):
            return "the url_prefix must be a canonical path"
        return None


def http_store(opts: Mapping[str, str] | None = None) -> ObjectStoreConfig.Http:
    """Describe a web server that virtual chunks are read from."""
    return ObjectStoreConfig.Http(opts)


def local_filesystem_store(path: str) -> ObjectStoreConfig.LocalFileSystem:
    """Describe a directory of this machine that virtual chunks are read from."""
    return ObjectStoreConfig.LocalFileSystem(path)


def s3_store(
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    anonymous: bool = False,
    s3_compatible: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
) -> ObjectStoreConfig.S3Compatible | ObjectStoreConfig.S3:
    """Describe an S3 service that virtual chunks are read from."""
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
    )
    return (ObjectStoreConfig.S3Compatible if s3_compatible else ObjectStoreConfig.S3)(options)


def gcs_store(opts: Mapping[str, str] | None = None) -> ObjectStoreConfig.Gcs:
    """Describe a Google Cloud Storage bucket."""
    return ObjectStoreConfig.Gcs(opts)


def azure_store(
    *, account: str, config: Mapping[str, str] | None = None
) -> ObjectStoreConfig.Azure:
    """Describe an Azure storage account."""
    return ObjectStoreConfig.Azure({**(config or {}), "account": account})
