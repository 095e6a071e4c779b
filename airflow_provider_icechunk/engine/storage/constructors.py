"""Storage constructors with the official names.

The libraries of a store are imported only when it is used: that takes longer than importing the
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Never, TypedDict, Unpack, cast
from urllib.parse import urljoin, urlsplit

from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    Kind,
    StorageError,
    UnsupportedError,
)

from .attribution import checked_headers
from .base import Storage
from .cloud_credentials import google_credentials, microsoft_credentials
from .credentials import (
    GcsBearerCredential,
    S3StaticCredentials,
    azure_credentials,
    gcs_credentials,
    s3_credentials,
    storage_credentials,
)
from .location import StorageLocation, shown
from .memory import MemoryStorage


class OfficialS3Credentials(TypedDict, total=False):
    """Credentials. Without any of these the SDK's default chain is used."""

    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None
    expires_after: datetime | None
    anonymous: bool | None
    from_env: bool | None
    get_credentials: Callable[[], S3StaticCredentials] | None
    scatter_initial_credentials: bool


class S3CredentialArguments(OfficialS3Credentials, total=False):
    """Credentials, and where they may go."""

    allow_pickling_credentials: bool
    """Whether pickles of the storage contain the keys, as plain text; an addition."""


def in_memory_storage() -> Storage:
    """A storage in memory that lives as long as this object; for tests."""
    return MemoryStorage()


def local_filesystem_storage(path: str | Path) -> Storage:
    """A folder. Concurrent commits are safe if the file system has working locks."""
    return LocalStorage(path)


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    headers: Mapping[str, str] | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    **credentials: Unpack[S3CredentialArguments],
) -> Storage:
    """A prefix of a bucket on S3 or a compatible store.

    Without any credential argument the SDK's default chain is used: environment, profile,
    web identity, instance.

    :param headers: sent with every request, besides `read_headers` with those that read and
        `write_headers` with the others. With any of these boto3 makes all requests, since they have
        to be signed. They are part of pickles.
    """
    return _s3(
        bucket,
        prefix,
        credentials,
        region=region,
        endpoint_url=endpoint_url,
        force_path_style=force_path_style,
        allow_http=allow_http,
        requester_pays=requester_pays,
        read_timeout=network_stream_timeout_seconds or _NO_TIMEOUT,
        read_headers=checked_headers({**(headers or {}), **(read_headers or {})}),
        write_headers=checked_headers({**(headers or {}), **(write_headers or {})}),
    )


def _s3(
    bucket: str, prefix: str | None, credentials: S3CredentialArguments, **settings: Any
) -> Storage:
    from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
    from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage

    travels = credentials.pop("allow_pickling_credentials", False)
    official = cast(OfficialS3Credentials, credentials)
    chosen = storage_credentials(s3_credentials(**official), travels=travels)
    return S3Storage(S3Settings(bucket, prefix or "", credentials=chosen, **settings))


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    network_stream_timeout_seconds: int = 60,
    **credentials: Unpack[S3CredentialArguments],
) -> Storage:
    """A prefix of a bucket on Tigris, with strongly consistent reads.

    With `use_weak_consistency` the nearest region answers: use it only to read what has not changed
    for a while.
    """
    headers = {} if use_weak_consistency else {"X-Tigris-Consistent": "true"}
    return _s3(
        bucket,
        prefix,
        credentials,
        region=region or "auto",
        endpoint_url=endpoint_url or _TIGRIS,
        allow_http=allow_http,
        headers=headers,
        read_timeout=network_stream_timeout_seconds or _NO_TIMEOUT,
    )


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    network_stream_timeout_seconds: int = 60,
    **credentials: Unpack[S3CredentialArguments],
) -> Storage:
    """A prefix of a bucket on Cloudflare R2, given an account or an endpoint.

    Without `bucket` the first part of `prefix` is the bucket.
    """
    if (account_id is None) == (endpoint_url is None):
        raise InvalidInputError(
            "R2 needs either account_id or endpoint_url", kind=Kind.INVALID_CONFIG
        )
    if bucket is None:
        bucket, _, prefix = (prefix or "").partition("/")
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=region or "auto",
        endpoint_url=endpoint_url or f"https://{account_id}.r2.cloudflarestorage.com",
        allow_http=allow_http,
        force_path_style=True,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        **credentials,
    )


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
) -> Storage:
    """A prefix of a bucket of Google Cloud Storage.

    Without any credential argument the environment's are used: a service account that a variable
    names, the application default, the machine's.

    :param config: further settings by the names of the `object_store` library: `base_url`,
        `user_project`; credentials have arguments of their own.
    """
    from .clouds.gcs import GcsSettings, GcsStorage

    chosen = gcs_credentials(
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    names = {"google_base_url": "endpoint_url", "user_project": "user_project"}
    return GcsStorage(
        GcsSettings(
            bucket,
            prefix or "",
            credentials=google_credentials(chosen),
            **_configured(config, names, vendor="google"),
        )
    )


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
) -> Storage:
    """A prefix of a container of Azure Blob Storage.

    Without any credential argument the environment's are used: what variables name, a workload
    identity, the machine's managed identity.

    :param config: further settings by the names of the `object_store` library: `endpoint`;
        credentials have arguments of their own.
    """
    from .clouds.azure import AzureSettings, AzureStorage

    chosen = azure_credentials(
        access_key=access_key, sas_token=sas_token, bearer_token=bearer_token, from_env=from_env
    )
    names = {"azure_endpoint": "endpoint_url"}
    return AzureStorage(
        AzureSettings(
            container,
            prefix,
            account=account,
            credentials=microsoft_credentials(chosen),
            **_configured(config, names, vendor="azure"),
        )
    )


def _configured(
    config: Mapping[str, str] | None, names: Mapping[str, str], *, vendor: str
) -> dict[str, Any]:
    """Settings by the names of the library that the official package is built on."""
    found: dict[str, Any] = {}
    for name, value in (config or {}).items():
        plain = name.lower().removeprefix("azure_storage_").removeprefix(f"{vendor}_")
        if plain == "allow_http":
            found["allow_http"] = value.lower() in {"true", "1"}
            continue
        ours = names.get(plain) or names.get(f"{vendor}_{plain}")
        if ours is None:
            known = ", ".join((*(one.removeprefix(f"{vendor}_") for one in names), "allow_http"))
            raise InvalidInputError(
                f"config[{name!r}] is not supported, only {known}; credentials have arguments of "
                "their own",
                kind=Kind.INVALID_CONFIG,
            )
        found[ours] = value
    return found


_TIGRIS = "https://t3.storage.dev"
_NO_TIMEOUT = 24 * 3600


def http_storage(
    base_url: str, opts: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> Storage:
    """A repository on a web server, for reading: branches and tags by name, without listings.

    :param opts: `allow_http` is the only known option.
    :param headers: for every request; do not put them into a configuration that is stored.
    """
    from .web import WebStorage

    unknown = sorted((opts or {}).keys() - {"allow_http"})
    if unknown:
        raise InvalidInputError(
            f"opts has {', '.join(unknown)}; only allow_http is known", kind=Kind.INVALID_CONFIG
        )
    allowed = (opts or {}).get("allow_http", "").lower() in {"true", "1"}
    return WebStorage(base_url, headers=headers, allow_http=allowed)


def redirect_storage(base_url: str) -> Storage:
    """The storage that a web server redirects to, for reading: `Location: s3://bucket/prefix`.

    Asked once, now. The credentials are those of the environment.
    """
    url = base_url
    for _ in range(_REDIRECTS):
        if urlsplit(url).scheme not in {"http", "https"}:
            break
        url = _redirected(url)
    if urlsplit(url).scheme not in _REDIRECTED:
        # A server must not redirect anyone to files of this machine.
        raise StorageError(
            f"{shown(base_url)} does not lead to a storage but to {shown(url)}: it has to redirect "
            f"to a URL with {', '.join(f'{one}://' for one in _REDIRECTED)}"
        )
    return StorageLocation(url).storage()


def _redirected(url: str) -> str:
    """Where a web server redirects to; empty if it does not."""
    import urllib3
    from urllib3.exceptions import HTTPError

    if urlsplit(url).username is not None:
        raise InvalidInputError(
            f"{shown(url)} contains a user or password: remove it", kind=Kind.INVALID_CONFIG
        )
    try:
        answer = urllib3.request("GET", url, redirect=False, retries=False, timeout=30.0)
    except (HTTPError, OSError) as error:
        raise StorageError(
            f"cannot ask {shown(url)} where the repository is: {type(error).__name__}",
            kind=Kind.STORAGE_UNREACHABLE,
        ) from None
    target = answer.headers.get("Location", "") if 300 <= answer.status < 400 else ""
    return urljoin(url, target) if target else ""


_REDIRECTS = 4
_REDIRECTED = ("s3", "gs", "az", "abfs", "abfss")


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    **credentials: Unpack[S3CredentialArguments],
) -> Never:
    """Not supported: Hugging Face buckets are untested; their S3 gateway may work."""
    del prefix, network_stream_timeout_seconds, legacy_rooted_keys, credentials
    del read_headers, write_headers, headers
    raise UnsupportedError(
        f"Hugging Face buckets (here {namespace}/{bucket}) are not supported directly; use "
        "s3_storage with the endpoint_url of their S3 gateway and the S3 keys of your token: "
        "whether it honours conditional writes is tested before the first commit"
    )
