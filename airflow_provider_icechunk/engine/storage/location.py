"""Where a repository is: a URL and options, as one value that is passed around.

Connections, the command line, Spark jobs, data source options and lineage all use this value, so
`OPTIONS` is the only list of options, and `SCHEMES` the only list of kinds of storage.
A location never contains a secret: the process that opens it passes credentials, or has them in
its environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import SplitResult, unquote, urlsplit

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from .base import Storage

if TYPE_CHECKING:
    from .memory import MemoryStorage

_USER = re.compile(r"//[^/@]*@")
_AZURE_HOST = re.compile(r"([^@/:]+)@([a-z0-9]+)\.(?:dfs|blob)\.core\.windows\.net")
_memories: dict[str, MemoryStorage] = {}


@dataclass(frozen=True, slots=True)
class Option:
    """A setting that is not part of a URL."""

    name: str
    help: str
    schemes: tuple[str, ...]
    is_flag: bool = False


_CLOUDS = ("s3", "gs", "az", "abfs", "abfss")
_AZURE = ("az", "abfs", "abfss")
OPTIONS: Mapping[str, Option] = {
    one.name: one
    for one in (
        Option("endpoint_url", "an endpoint other than the vendor's", _CLOUDS),
        Option("region", "the region of the bucket", ("s3",)),
        Option("account", "the storage account, if the URL does not name it", _AZURE),
        Option("user_project", "the project that pays for the requests", ("gs",)),
        Option("anonymous", "do not sign requests", _CLOUDS, is_flag=True),
        Option("allow_http", "allow plain HTTP", (*_CLOUDS, "http"), is_flag=True),
        Option(
            "force_path_style",
            "put the bucket in the path, not the host name",
            ("s3",),
            is_flag=True,
        ),
        Option("requester_pays", "pay for the requests", ("s3",), is_flag=True),
        Option("kms_key_id", "the key of AWS KMS that encrypts what is written", ("s3",)),
    )
}
"""Every option of a location, each with the schemes it is for."""


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """A URL and the options that belong to it. Equal locations mean the same storage."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    url: str
    """`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, an absolute path, ..."""
    endpoint_url: str | None = None
    region: str | None = None
    account: str | None = None
    user_project: str | None = None
    anonymous: bool = False
    allow_http: bool = False
    force_path_style: bool = False
    requester_pays: bool = False
    kms_key_id: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        scheme = self.scheme
        if scheme not in SCHEMES:
            raise _wrong(f"{scheme or 'this'!r} is not a supported kind of storage URL")
        _check(self.url, parts, is_azure=scheme in _AZURE)
        for name, option in OPTIONS.items():
            if getattr(self, name) and scheme not in option.schemes and SCHEMES[scheme].is_closed:
                raise InvalidInputError(
                    f"{name} is not an option of {scheme}:// storage, only of "
                    f"{', '.join(f'{one}://' for one in option.schemes)}",
                    kind=Kind.INVALID_CONFIG,
                )

    @property
    def scheme(self) -> str:
        """The kind of storage: a key of `SCHEMES`."""
        return "file" if self.url.startswith("/") else urlsplit(self.url).scheme

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name != "url" and getattr(self, one.name) != one.default
        }

    def storage(self, credentials: object = None, *, retry: Backoff | None = None) -> Storage:
        """The storage at this location.

        :param credentials: values of `storage.secrets` that fit the scheme; by default those of the
            environment.
        """
        access = AccessOptions(self, credentials, retry)
        if self.url.startswith("/"):
            return _folder(self.url)
        storage = SCHEMES[self.scheme].open(urlsplit(self.url), access)
        if storage is None:
            raise _wrong(f"{shown(self.url)} is not a complete storage URL")
        return storage

    def lineage(self) -> tuple[str, str]:
        """Namespace and name of this location in OpenLineage."""
        parts = urlsplit(self.url)
        if self.scheme == "file":
            return "file", self.url if self.url.startswith("/") else unquote(parts.path)
        name = parts.path.strip("/") or "/"
        if self.scheme not in _AZURE:
            return f"{self.scheme}://{parts.netloc}", name
        container, account = azure_place(parts, self.account)
        return f"abfss://{container}@{account}.dfs.core.windows.net", name


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """How a scheme opens a URL."""

    location: StorageLocation
    credentials: object = None
    retry: Backoff | None = None

    def settings(self) -> dict[str, Any]:
        """Arguments that the settings of all object stores have in common."""
        given: dict[str, Any] = {
            "endpoint_url": self.location.endpoint_url,
            "allow_http": self.location.allow_http,
            "credentials": self.credentials or _default_credentials(self.location.anonymous),
        }
        return given if self.retry is None else {**given, "retry": self.retry}


@dataclass(frozen=True, slots=True)
class Scheme:
    """One kind of storage URL."""

    example: str
    open: Callable[[SplitResult, AccessOptions], Storage | None]
    """Opens the storage; `None` means that a part of the URL is missing or superfluous."""
    is_closed: bool = False
    """Whether options that are not for it are refused rather than ignored."""


def locate(url: str, *, credentials: object = None, **options: Any) -> Storage:
    """The storage at a URL or an absolute path; `options` are those of `StorageLocation`.

    Within a process, equal `memory` names are the same storage.
    """
    unknown = sorted(options.keys() - OPTIONS.keys())
    if unknown:
        raise TypeError(f"unknown option {', '.join(unknown)}; there are {', '.join(OPTIONS)}")
    return StorageLocation(url, **options).storage(credentials)


def azure_place(url: SplitResult, account: str | None) -> tuple[str, str]:
    """Container and account of an Azure URL: the account is in its host, or an option."""
    named = _AZURE_HOST.fullmatch(url.netloc)
    if named is None:
        return url.netloc, account or ""
    if account and account != named[2]:
        raise InvalidInputError(
            f"the URL names the account {named[2]!r} and the option {account!r}: leave one out",
            kind=Kind.INVALID_CONFIG,
        )
    return named[1], named[2]


def _open_s3(url: SplitResult, access: AccessOptions) -> Storage | None:
    # Importing the S3 back end imports botocore, which a local repository never needs.
    from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
    from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage

    if not url.netloc:
        return None
    return S3Storage(
        S3Settings(
            url.netloc,
            url.path,
            region=access.location.region,
            force_path_style=access.location.force_path_style,
            requester_pays=access.location.requester_pays,
            kms_key_id=access.location.kms_key_id,
            **access.settings(),
        )
    )


def _open_gcs(url: SplitResult, access: AccessOptions) -> Storage | None:
    from airflow_provider_icechunk.engine.storage.clouds.gcs import GcsSettings, GcsStorage

    if not url.netloc:
        return None
    project = access.location.user_project
    return GcsStorage(GcsSettings(url.netloc, url.path, user_project=project, **access.settings()))


def _open_azure(url: SplitResult, access: AccessOptions) -> Storage | None:
    from airflow_provider_icechunk.engine.storage.clouds.azure import AzureSettings, AzureStorage

    container, account = azure_place(url, access.location.account)
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if not container:
        return None
    if not account:
        raise InvalidInputError(
            f"{shown(url.geturl())} does not name the storage account: add the option `account`, "
            "or use abfs://container@account.dfs.core.windows.net/prefix",
            kind=Kind.INVALID_CONFIG,
        )
    return AzureStorage(AzureSettings(container, url.path, account=account, **access.settings()))


def _open_web(url: SplitResult, access: AccessOptions) -> Storage | None:
    from .web import WebStorage

    if not url.netloc:
        return None
    return WebStorage(url.geturl(), allow_http=access.location.allow_http, retry=access.retry)


def _open_folder(url: SplitResult, _: AccessOptions) -> Storage | None:
    if url.netloc not in {"", "localhost"} or not url.path.startswith("/"):
        return None
    return _folder(unquote(url.path))


def _folder(path: str) -> Storage:
    from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

    return LocalStorage(Path(path))


def _open_memory(url: SplitResult, _: AccessOptions) -> Storage | None:
    from .memory import MemoryStorage

    if not url.netloc or url.path.strip("/"):
        return None
    return _memories.setdefault(url.netloc, MemoryStorage(name=url.netloc))


SCHEMES: dict[str, Scheme] = {
    "s3": Scheme("s3://bucket/prefix", _open_s3, is_closed=True),
    "gs": Scheme("gs://bucket/prefix", _open_gcs, is_closed=True),
    "az": Scheme("az://container/prefix", _open_azure, is_closed=True),
    "abfs": Scheme(
        "abfs://container@account.dfs.core.windows.net/prefix", _open_azure, is_closed=True
    ),
    "abfss": Scheme(
        "abfss://container@account.dfs.core.windows.net/prefix", _open_azure, is_closed=True
    ),
    "https": Scheme("https://host/path (read-only)", _open_web, is_closed=True),
    "http": Scheme("http://host/path (read-only)", _open_web, is_closed=True),
    "file": Scheme("file:///absolute/path", _open_folder),
    "memory": Scheme("memory://name", _open_memory),
}
"""Every kind of storage URL. A new back end is one more row."""


def shown(url: str) -> str:
    """`url` for a message: short, without user names, passwords and queries."""
    return repr(_USER.sub("//***@", url.split("?", 1)[0])[:300])


def _default_credentials(anonymous: bool) -> object:
    from .secrets import AnonymousCredentials, EnvironmentCredentials

    return AnonymousCredentials() if anonymous else EnvironmentCredentials()


def _check(url: str, parts: SplitResult, *, is_azure: bool) -> None:
    named = is_azure and _AZURE_HOST.fullmatch(parts.netloc)
    if "@" in parts.netloc and not named:
        raise InvalidInputError(
            "a storage URL must not contain a user or password: pass credentials separately",
            kind=Kind.INVALID_CONFIG,
        )
    if not url.startswith("/") and (parts.query or parts.fragment):
        raise InvalidInputError(
            f"the storage URL {shown(url)} has a query or a fragment: remove it",
            kind=Kind.INVALID_CONFIG,
        )


def _wrong(problem: str) -> InvalidInputError:
    known = ", ".join(one.example for one in SCHEMES.values())
    return InvalidInputError(
        f"{problem}. Use {known} or an absolute path", kind=Kind.INVALID_CONFIG
    )
