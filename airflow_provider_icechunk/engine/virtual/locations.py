"""Parsed locations of virtual chunks, and references to them as callers pass them.

A location is compared with grants and later turned into a request. Both must mean the same object,
so everything that two programs could interpret differently is refused: dot segments in any
encoding, user names, queries and fragments, control characters, unusual hosts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv6Address
from posixpath import normpath
from typing import Any
from urllib.parse import quote, unquote

from airflow_provider_icechunk.engine.format.chunk_refs import Checksum, ETag, LastModified, Virtual
from airflow_provider_icechunk.engine.storage.location import shown
from airflow_provider_icechunk.exceptions import InvalidInputError, VirtualAccessDeniedError

from .addresses import is_private_address

BY_NAME = "vcc"
"""Scheme of locations that name a container instead of a host."""

_OBJECT_SCHEMES = frozenset(("s3", "tigris", "gcs", "gs", "az", "azure", "abfs"))
_WEB_PORTS = {"http": 80, "https": 443}
_SCHEMES = _OBJECT_SCHEMES | set(_WEB_PORTS) | {"file", BY_NAME}

_MAX_LOCATION = 16_384
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed URL; equal locations are the same object."""

    scheme: str
    host: str
    """Host or bucket; empty for files."""
    port: int | None
    """`None` for the default port of the scheme."""
    path: str
    """Decoded, starting with the `/` after the host."""

    @property
    def key(self) -> str:
        """The path without its first `/`: the key in object stores."""
        return self.path[1:]

    @property
    def netloc(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def covers(self, other: Location) -> bool:
        """Whether `other` is below this one, which ends with `/`."""
        same_place = (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
        return same_place and self.path.endswith("/") and other.path.startswith(self.path)

    def quoted_path(self) -> str:
        """The path as sent to a web server."""
        return quote(self.path, safe="/~!$&'()*+,;=:@")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.quoted_path()}"


def parse_location(url: str) -> Location:
    """Parse `url`; `VirtualAccessDeniedError` if it is ambiguous."""
    parts = _URL.fullmatch(url) if len(url) <= _MAX_LOCATION else None
    if parts is None:
        raise _refused(url, "error parsing it as an absolute URL like s3://bucket/key")
    scheme = parts[1].lower()
    if scheme not in _SCHEMES:
        raise _refused(url, f"{scheme}:// is not supported")
    if "?" in url or "#" in url:
        raise _refused(url, "it has a query or fragment; write `?` as %3F and `#` as %23")
    host, port = _authority(url, scheme, parts[2])
    return Location(scheme, host, port, _path(url, scheme, parts[3] or "/"))


def has_known_scheme(url: str) -> bool:
    """Whether it is not a URL at all, or has a scheme that a container can have."""
    parts = _URL.fullmatch(url)
    return parts is None or parts[1].lower() in _SCHEMES


def _refused(url: str, why: str) -> VirtualAccessDeniedError:
    return VirtualAccessDeniedError(f"invalid chunk location {shown(url)}: {why}")


def _authority(url: str, scheme: str, text: str) -> tuple[str, int | None]:
    if "@" in text:
        raise _refused(url, "it contains a user name or password")
    if scheme == "file":
        if text.lower() not in ("", "localhost"):
            raise _refused(url, "a file on another host cannot be read; use file:///path")
        return "", None
    if scheme in _WEB_PORTS:
        return _web_host(url, scheme, text)
    if not _BUCKET.fullmatch(text):
        raise _refused(url, "its bucket or container name is invalid")
    return text, None


def _web_host(url: str, scheme: str, text: str) -> tuple[str, int | None]:
    host, separator, digits = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, digits = text, ""
    if separator and not text.endswith("]") and not re.fullmatch(r"[0-9]{1,5}", digits):
        raise _refused(url, "its port is not a number")
    port = int(digits) if digits else None
    if port is not None and not 0 < port < 1 << 16:
        raise _refused(url, "its port is out of range")
    host = host.lower()
    if host.startswith("[") and host.endswith("]"):
        host = _ipv6(url, host[1:-1])
    elif not _HOST.fullmatch(host) or ".." in host:
        raise _refused(url, "its host is not a plain host name (write others in punycode)")
    return host, None if port == _WEB_PORTS[scheme] else port


def _ipv6(url: str, text: str) -> str:
    try:
        address = IPv6Address(text)
    except ValueError:
        address = None
    if address is None or address.scope_id is not None:
        raise _refused(url, "its host is not a valid address")
    return str(address)


def _path(url: str, scheme: str, text: str) -> str:
    try:
        path = unquote(text, errors="strict")
        path.encode()
    except UnicodeError:
        raise _refused(url, "its path is not valid UTF-8") from None
    if _CONTROL.search(path):
        raise _refused(url, "it has control characters")
    if scheme == "file":
        # Only the normalized path is opened, so dots cannot lead out of a grant.
        tail = "/" if path.endswith(("/", "/.", "/..")) else ""
        return "/" + (normpath(path).lstrip("/") + tail).lstrip("/")
    if scheme in _WEB_PORTS:
        _check_web_path(url, path)
    elif _has_dots(path):
        raise _refused(url, "it has `.` or `..` segments")
    return path


def _check_web_path(url: str, path: str) -> None:
    # Servers and proxies may decode more than once, or take `\` for `/`.
    for _ in range(3):
        if _has_dots(path) or "\\" in path or _CONTROL.search(path):
            raise _refused(url, "it has `.` or `..` segments, or backslashes")
        path = unquote(path, errors="replace")


def _has_dots(path: str) -> bool:
    return any(segment.partition(";")[0] in (".", "..") for segment in path.split("/"))


def is_private_host(host: str) -> bool:
    """Whether `host`, by its name, is this machine or on a private network.

    A public name may still resolve to a private address: `guarded` checks that.
    """
    try:
        return is_private_address(host)
    except ValueError:
        pass
    labels = host.rstrip(".").split(".")
    odd_number = labels[-1].isdecimal() or labels[-1].startswith("0x")
    local = labels[-1] in ("localhost", "local", "internal", "lan", "home", "corp", "localdomain")
    return len(labels) == 1 or odd_number or local


@dataclass(frozen=True, slots=True)
class VirtualChunkSpec:
    """One virtual chunk: its coordinates in the array, and its range of an external object.

    With a checksum the chunk is read only if the object has not changed; without one, it is read
    in any case.
    """

    index: Sequence[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: datetime | None = None

    def reference(self) -> Virtual:
        """The reference to store in a manifest."""
        return reference_of(self)


def checksum_of(value: str | datetime | None) -> Checksum | None:
    """An entity tag or a modification time as a checksum. A naive time is taken as UTC."""
    if value is None:
        return None
    if isinstance(value, str):
        return ETag(value)
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
    seconds = int(moment.timestamp())
    if not 0 < seconds < 1 << 32:
        raise InvalidInputError("a last-modified checksum must be a time from 1970 to 2106")
    return LastModified(seconds)


def reference_of(spec: Any) -> Virtual:
    """The target of a spec; the official class has the same attributes."""
    checksum = checksum_of(spec.etag_checksum or spec.last_updated_at_checksum)
    return Virtual(spec.location, spec.offset, spec.length, checksum)
