"""An Airflow connection of type `icechunk`: storage, root and credentials.

The schema is closed: a connection can neither name code nor reach outside its root, and a misspelt
key is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SecretStr, ValidationError, model_validator

from airflow_provider_icechunk.engine.closed import ClosedModel
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import check_bucket_name
from airflow_provider_icechunk.engine.storage.location import OPTIONS, StorageLocation
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_icechunk.engine.storage.base import Storage


CONN_TYPE = "icechunk"
"""The connection type of this provider; other types give `host` another meaning."""
ROOT = "."
"""The repository path that stands for the connection's root itself."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_ENDPOINT = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?")
_OF_STORAGE = {"s3": "s3", "gcs": "gs", "azure": "az", "file": "file"}
"""The scheme of each kind of storage."""
_BUCKETS = {"s3": "bucket", "gcs": "bucket", "azure": "container"}
_CREDENTIALS: Mapping[str, tuple[str, ...]] = {
    "s3": ("login", "password", "session_token", "anonymous", "aws_conn_id"),
    "gcs": ("password", "service_account_file", "anonymous", "gcp_conn_id"),
    "azure": (
        *("login", "password", "tenant_id", "sas_token", "managed_identity"),
        *("anonymous", "wasb_conn_id"),
    ),
    "file": (),
}
"""The fields for credentials of each kind of storage."""
_ALL = dict.fromkeys((*OPTIONS, *(name for names in _CREDENTIALS.values() for name in names)))
_PARTS = ("login", "password", "session_token", "tenant_id")
"""Fields that go with others."""
_SECRETS = ("password", "session_token", "sas_token")
_EXTRAS = ("storage", "prefix", *(name for name in _ALL if name not in ("login", "password")))


class IcechunkConnection(ClosedModel):
    """The settings of a connection, with defaults; hides secrets when printed."""

    storage: Literal["s3", "gcs", "azure", "file"] = "s3"
    host: str
    """The bucket or container, or an absolute path of a directory."""
    prefix: str = ""
    """Path in the bucket or directory; no repository outside it can be opened."""
    login: str | None = None
    """Access key id; for Azure, the client id of a service principal."""
    password: SecretStr | None = None
    """Secret access key; the JSON key of a service account; account key or client secret."""
    session_token: SecretStr | None = None
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    force_path_style: bool = False
    requester_pays: bool = False
    kms_key_id: str | None = None
    anonymous: bool = False
    aws_conn_id: str | None = None
    """An Amazon connection to take the credentials from."""
    user_project: str | None = None
    service_account_file: str | None = None
    gcp_conn_id: str | None = None
    """A Google connection to take the credentials from."""
    account: str | None = None
    tenant_id: str | None = None
    sas_token: SecretStr | None = None
    managed_identity: bool = False
    wasb_conn_id: str | None = None
    """An Azure connection to take the credentials from."""

    @model_validator(mode="after")
    def _agrees(self) -> IcechunkConnection:
        if self.prefix:
            _check_segments(self.prefix, "prefix")
        self._check_host()
        self._check_fields()
        if self.storage == "s3":
            self._check_s3()
        if self.storage == "azure":
            self._check_azure()
        if self.endpoint_url and not _ENDPOINT.fullmatch(self.endpoint_url):
            raise ValueError("endpoint_url must be an http or https URL without credentials")
        return self

    def _check_host(self) -> None:
        if self.storage == "file":
            if not self.host.startswith("/") or ".." in self.host.split("/"):
                raise ValueError(
                    "with storage 'file' the host must be an absolute path without '..'"
                )
            return
        kind = _BUCKETS[self.storage]
        if self.host.startswith("/"):
            raise ValueError(
                f"the host is a directory but the storage is {self.storage!r}: set the extra "
                f"'storage' to 'file', or enter a {kind}"
            )
        if "/" in self.host:
            raise ValueError(f"the host must be a {kind} without slashes; put the rest in 'prefix'")
        check_bucket_name(self.host)

    def _check_fields(self) -> None:
        """Refuse what belongs to another kind of storage, and more than one kind of credentials."""
        scheme, credentials = _OF_STORAGE[self.storage], _CREDENTIALS[self.storage]
        own = {name for name, option in OPTIONS.items() if scheme in option.schemes}
        used = [
            name
            for name in _ALL
            if getattr(self, name) and name not in own and name not in credentials
        ]
        if used:
            raise ValueError(f"leave empty with storage {self.storage!r}: {', '.join(used)}")
        key = "login" if self.storage == "s3" else "password"
        sources = (key, *(name for name in credentials if name not in _PARTS))
        if sum(bool(getattr(self, name, None)) for name in sources) > 1:
            raise ValueError(f"set only one of {', '.join(sources)}")

    def _check_s3(self) -> None:
        if bool(self.login) != bool(self.password):
            raise ValueError("set both login (access key id) and password (secret), or neither")
        if self.session_token and not self.login:
            raise ValueError("session_token needs login and password")

    def _check_azure(self) -> None:
        if not self.account:
            raise ValueError("account is missing: enter the name of the storage account")
        principal = (self.login, self.tenant_id)
        if any(principal) and not (all(principal) and self.password):
            raise ValueError(
                "a service principal needs login (client id), password (client secret) and "
                "tenant_id; an account key needs the password alone"
            )

    @property
    def secrets(self) -> list[str]:
        """All secret texts, to be masked in logs."""
        given = (getattr(self, name) for name in _SECRETS)
        return [one.get_secret_value() for one in given if one is not None]

    def location(self, repository: str) -> StorageLocation:
        """Where a repository is, without credentials."""
        if self.storage == "file":
            return StorageLocation(self.folder(repository))
        scheme = _OF_STORAGE[self.storage]
        options = {name: getattr(self, name) for name in OPTIONS}
        return StorageLocation(f"{scheme}://{self.host}/{self.key_prefix(repository)}", **options)

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
        raise _wrong(
            where,
            "the host is missing: enter a bucket or container, or the absolute path of a folder",
        )
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


def build_storage(settings: IcechunkConnection, repository: str, *, tries: int = 10) -> Storage:
    """The storage of a repository; `tries` limits how often a failing request is sent."""
    from .borrowed import credentials_of

    location = settings.location(repository)
    return location.storage(credentials_of(settings), retry=Backoff(tries=tries))
