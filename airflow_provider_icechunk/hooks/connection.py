"""An Airflow connection of type `icechunk`: storage, root and credentials.

The schema is closed: a connection can neither name code nor reach outside its root, and a misspelt
key is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.log import mask_secret
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, model_validator

from airflow_provider_icechunk.engine.storage.base import check_bucket_name
from airflow_provider_icechunk.exceptions import AccessDeniedError, InvalidInputError, Kind

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_icechunk.engine.storage.base import Storage
    from airflow_provider_icechunk.engine.storage.secrets import S3Credentials, StaticCredentials


CONN_TYPE = "icechunk"
"""The connection type of this provider; other types give `host` another meaning."""
ROOT = "."
"""The repository path that stands for the connection's root itself."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_ENDPOINT = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?")
_EXTRAS = (
    "storage",
    "prefix",
    "region",
    "endpoint_url",
    "allow_http",
    "force_path_style",
    "session_token",
    "anonymous",
    "aws_conn_id",
)
_ONLY_S3 = _EXTRAS[2:]


class IcechunkConnection(BaseModel):
    """The settings of a connection, with defaults; hides secrets when printed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    storage: Literal["s3", "file"] = "s3"
    host: str
    """The bucket, or an absolute path of a directory."""
    prefix: str = ""
    """Path in the bucket or directory; no repository outside it can be opened."""
    login: str | None = None
    """Access key id."""
    password: SecretStr | None = None
    """Secret access key."""
    session_token: SecretStr | None = None
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    force_path_style: bool = False
    anonymous: bool = False
    aws_conn_id: str | None = None
    """An Amazon connection to take the credentials from."""

    @model_validator(mode="after")
    def _agrees(self) -> IcechunkConnection:
        if self.prefix:
            _check_segments(self.prefix, "prefix")
        if self.storage == "file":
            self._check_file()
        else:
            self._check_s3()
        return self

    def _check_file(self) -> None:
        if not self.host.startswith("/") or ".." in self.host.split("/"):
            raise ValueError("with storage 'file' the host must be an absolute path without '..'")
        used = [name for name in _ONLY_S3 if getattr(self, name)]
        used += [name for name in ("login", "password") if getattr(self, name)]
        if used:
            raise ValueError(f"leave empty with storage 'file': {', '.join(used)}")

    def _check_s3(self) -> None:
        if self.host.startswith("/"):
            raise ValueError(
                "the host is a directory but the storage is 's3': set the extra 'storage' to "
                "'file', or enter a bucket"
            )
        if "/" in self.host:
            raise ValueError("the host must be a bucket without slashes; put the rest in 'prefix'")
        check_bucket_name(self.host)
        if bool(self.login) != bool(self.password):
            raise ValueError("set both login (access key id) and password (secret), or neither")
        if self.session_token and not self.login:
            raise ValueError("session_token needs login and password")
        sources = {
            "login": bool(self.login),
            "anonymous": self.anonymous,
            "aws_conn_id": bool(self.aws_conn_id),
        }
        if sum(sources.values()) > 1:
            raise ValueError(f"set only one of {', '.join(sources)}")
        if self.endpoint_url and not _ENDPOINT.fullmatch(self.endpoint_url):
            raise ValueError("endpoint_url must be an http or https URL without credentials")

    def key_prefix(self, repository: str) -> str:
        """The key prefix of a repository in the bucket, or its path in the directory."""
        below = [self.prefix.strip("/"), _relative(repository)]
        return "/".join(part for part in below if part)

    def folder(self, repository: str) -> str:
        """The directory of a repository; refused if symbolic links lead outside the root."""
        root = Path(self.host, self.prefix).resolve()
        folder = (root / _relative(repository)).resolve()
        if not folder.is_relative_to(root):
            raise _outside(repository, "a symbolic link leads outside the root")
        return str(folder)


def parse_connection(connection: Connection) -> IcechunkConnection:
    """The settings of an Airflow connection; errors name the wrong field, never its value."""
    where = f"connection {connection.conn_id!r}"
    if connection.conn_type != CONN_TYPE:
        raise _wrong(
            where,
            f"its type is {connection.conn_type or ''!r}, not {CONN_TYPE!r}: set its conn_type, or "
            "pass another connection as icechunk_conn_id",
        )
    extras = _extras(connection.extra, where)
    unknown = sorted(set(extras) - set(_EXTRAS))
    if unknown:
        raise _wrong(where, f"unknown extra {', '.join(unknown)}; choose from {', '.join(_EXTRAS)}")
    unused = [name for name in ("port", "schema") if getattr(connection, name)]
    if unused:
        raise _wrong(where, f"leave empty, not used: {', '.join(unused)}")
    values = {
        "host": connection.host or "",
        "login": connection.login,
        "password": connection.password,
        **extras,
    }
    if not values["host"]:
        raise _wrong(where, "the host is missing: enter a bucket, or the absolute path of a folder")
    # Airflow's form stores empty strings for empty fields.
    given = {name: value for name, value in values.items() if value not in (None, "")}
    try:
        return IcechunkConnection.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        raise _wrong(where, f"{place}: {text}" if place else text) from None


def _extras(text: str | None, where: str) -> Mapping[str, Any]:
    try:
        extras = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise _wrong(where, "the extra field is not valid JSON") from None
    if not isinstance(extras, dict):
        raise _wrong(where, "the extra field is not a JSON object")
    return extras


def _relative(repository: str) -> str:
    """A repository's path, proven to stay inside the root; empty for the root itself."""
    if repository == ROOT:
        return ""
    if not repository:
        raise InvalidInputError(
            "the repository path is empty: pass a path relative to the connection's root, or '.' "
            "for the root itself"
        )
    try:
        return _check_segments(repository, "repository")
    except ValueError as error:
        raise _outside(repository, str(error)) from None


def _check_segments(path: str, what: str) -> str:
    whole = path.removesuffix("/")
    if path.startswith("/") or "://" in path or _FORBIDDEN.search(path):
        raise ValueError(f"the {what} must be a relative path without a scheme or backslashes")
    if any(segment in {"", ".", ".."} for segment in whole.split("/")):
        raise ValueError(f"the {what} must not have empty, '.' or '..' parts")
    return whole


def _outside(repository: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"{repository!r} is not a path inside the connection's root: {reason}",
        kind=Kind.OUTSIDE_ROOT,
    )


def _wrong(where: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{where}: {problem}", kind=Kind.INVALID_CONFIG)


_BORROWED_FOR = timedelta(minutes=15)


def build_storage(settings: IcechunkConnection, repository: str, *, tries: int = 10) -> Storage:
    """The storage of a repository; `tries` limits how often a failing S3 request is sent."""
    if settings.storage == "file":
        from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

        return LocalStorage(settings.folder(repository))
    from airflow_provider_icechunk.engine.retry import Backoff
    from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
    from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage

    return S3Storage(
        S3Settings(
            settings.host,
            settings.key_prefix(repository),
            region=settings.region,
            endpoint_url=settings.endpoint_url,
            credentials=_credentials(settings),
            force_path_style=settings.force_path_style,
            allow_http=settings.allow_http,
            retry=Backoff(tries=tries),
        )
    )


def _credentials(settings: IcechunkConnection) -> S3Credentials:
    from airflow_provider_icechunk.engine.storage import secrets

    if settings.anonymous:
        return secrets.AnonymousCredentials()
    if settings.aws_conn_id:
        return secrets.RefreshableCredentials(partial(_borrowed, settings.aws_conn_id))
    if settings.login and settings.password:
        token = settings.session_token
        return secrets.static_credentials(
            settings.login,
            settings.password.get_secret_value(),
            None if token is None else token.get_secret_value(),
        )
    return secrets.EnvironmentCredentials()


def _borrowed(aws_conn_id: str) -> StaticCredentials:
    """The current keys of an Amazon connection, which expire so that they are read again."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

    from airflow_provider_icechunk.engine.storage.secrets import static_credentials

    keys = AwsGenericHook(aws_conn_id=aws_conn_id).get_credentials()
    if not keys.access_key or not keys.secret_key:
        raise AccessDeniedError(f"the Amazon connection {aws_conn_id!r} has no credentials")
    for secret in (keys.secret_key, keys.token):
        if secret:
            mask_secret(secret)
    until = datetime.now(UTC) + _BORROWED_FOR
    return static_credentials(keys.access_key, keys.secret_key, keys.token, expires_after=until)
