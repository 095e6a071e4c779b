"""An Airflow connection of type `icechunk`, judged: which storage, which root, as whom.

The schema is closed. Whoever may edit connections can neither name code nor reach a place outside
of the root, and a misspelt key is refused instead of ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, model_validator

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind
from airflow_provider_icechunk.storage.keys import check_bucket_name

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_TYPE = "icechunk"
"""The type of the connections that are ours; a host means something else in any other."""
ROOT = "."
"""The path of a repository that is the root of its connection itself."""

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
    """What a connection says, with defaults filled in; shows no secrets when printed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    storage: Literal["s3", "file"] = "s3"
    host: str
    """The bucket, or an absolute directory."""
    prefix: str = ""
    """Path below the bucket or directory; repositories are found below it and nowhere else."""
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
            raise ValueError("with storage 'file' the host is an absolute directory without '..'")
        used = [name for name in _ONLY_S3 if getattr(self, name)]
        used += [name for name in ("login", "password") if getattr(self, name)]
        if used:
            raise ValueError(f"{', '.join(used)} mean nothing with storage 'file'")

    def _check_s3(self) -> None:
        if self.host.startswith("/"):
            raise ValueError(
                "the host is a directory, but the storage is 's3': set the extra 'storage' to "
                "'file', or give a bucket"
            )
        if "/" in self.host:
            raise ValueError("the host is a bucket without slashes; the rest goes into 'prefix'")
        check_bucket_name(self.host)
        if bool(self.login) != bool(self.password):
            raise ValueError("login and password (access key and secret) are needed together")
        if self.session_token and not self.login:
            raise ValueError("session_token needs login and password")
        sources = {
            "login": bool(self.login),
            "anonymous": self.anonymous,
            "aws_conn_id": bool(self.aws_conn_id),
        }
        if sum(sources.values()) > 1:
            raise ValueError(f"choose one of {', '.join(sources)}")
        if self.endpoint_url and not _ENDPOINT.fullmatch(self.endpoint_url):
            raise ValueError("endpoint_url is an http or https address without user and password")

    def key_prefix(self, repository: str) -> str:
        """The prefix of a repository's keys in the bucket, or its path below the directory."""
        below = [self.prefix.strip("/"), _relative(repository)]
        return "/".join(part for part in below if part)

    def folder(self, repository: str) -> str:
        """The folder of a repository, proven to lie below the root even through links."""
        root = Path(self.host, self.prefix).resolve()
        folder = (root / _relative(repository)).resolve()
        if not folder.is_relative_to(root):
            raise _outside(repository, "a link leads out of the root")
        return str(folder)


def parse_connection(connection: Connection) -> IcechunkConnection:
    """The settings in an Airflow connection; says which field is wrong, never what it holds."""
    where = f"connection {connection.conn_id!r}"
    if connection.conn_type != CONN_TYPE:
        raise _wrong(
            where,
            f"its type is {connection.conn_type or ''!r}, and a connection of type {CONN_TYPE!r} "
            "is needed: name such a one as icechunk_conn_id, or set its conn_type",
        )
    extras = _extras(connection.extra, where)
    unknown = sorted(set(extras) - set(_EXTRAS))
    if unknown:
        raise _wrong(where, f"unknown extra {', '.join(unknown)}; known are: {', '.join(_EXTRAS)}")
    unused = [name for name in ("port", "schema") if getattr(connection, name)]
    if unused:
        raise _wrong(where, f"{' and '.join(unused)} mean nothing here; leave them empty")
    values = {
        "host": connection.host or "",
        "login": connection.login,
        "password": connection.password,
        **extras,
    }
    if not values["host"]:
        raise _wrong(where, "the host is missing: the bucket, or an absolute directory")
    # A form leaves empty texts behind for what nobody filled in.
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
        raise _wrong(where, "the extra field is no JSON") from None
    if not isinstance(extras, dict):
        raise _wrong(where, "the extra field is no JSON object")
    return extras


def _relative(repository: str) -> str:
    """A repository's path, if it can only lead below the root; empty for the root itself."""
    if repository == ROOT:
        return ""
    if not repository:
        raise InvalidInputError(
            "the repository has no name: give its path below the connection's root, or '.' for "
            "the root itself"
        )
    try:
        return _check_segments(repository, "repository")
    except ValueError as error:
        raise _outside(repository, str(error)) from None


def _check_segments(path: str, what: str) -> str:
    whole = path.removesuffix("/")
    if path.startswith("/") or "://" in path or _FORBIDDEN.search(path):
        raise ValueError(f"the {what} is a relative path without scheme and backslashes")
    if any(segment in {"", ".", ".."} for segment in whole.split("/")):
        raise ValueError(f"the {what} has no empty, '.' or '..' parts")
    return whole


def _outside(repository: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"{repository!r} is no repository below the connection's root: {reason}",
        kind=Kind.OUTSIDE_ROOT,
    )


def _wrong(where: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{where}: {problem}", kind=Kind.INVALID_CONFIG)
