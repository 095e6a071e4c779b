"""Read virtual chunks: find the grant, fetch the range, verify the response."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from airflow_provider_icechunk.engine.concurrency import PerProcess, run_all
from airflow_provider_icechunk.engine.format.chunk_refs import Checksum, Virtual
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.credentials import AuthorizeMapping
from airflow_provider_icechunk.engine.storage.location import shown
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    VirtualAccessDeniedError,
    VirtualChunkError,
)

from .clouds import cloud_bucket, describe_cloud, fetch_cloud
from .grants import CloudAccess, FileAccess, Grant, Grants, HttpAccess, S3Access
from .locations import BY_NAME, Location, parse_location
from .sources import ForeignFile, describe_file, describe_http, describe_s3
from .transports import Part, changed_error, fetch_file, fetch_http, fetch_s3, http_pool, s3_client

if TYPE_CHECKING:
    import urllib3
    from mypy_boto3_s3.client import S3Client

    from airflow_provider_icechunk.engine.storage.clouds.bucket import CloudBucket

TRUSTED_ENDPOINTS = "ICECHUNK_TRUSTED_ENDPOINTS"
"""Environment variable: comma-separated endpoints that may get signed requests."""

Request = tuple[Virtual, int, int | None]
"""A reference and the wanted range of its bytes; `None` means its end."""


class Transport(Protocol):
    """Fetches ranges. Called only with locations that the grant covers."""

    def fetch(
        self, grant: Grant, location: Location, start: int, stop: int, checksum: Checksum | None
    ) -> Part:
        """Bytes from `start` to `stop` of the object."""
        ...


@runtime_checkable
class Describing(Protocol):
    """A transport that can describe an external object without reading it."""

    def describe(self, grant: Grant, location: Location, url: str) -> ForeignFile:
        """The object at a location that the grant covers; `url` is the caller's name for it."""
        ...


class NetworkTransport:
    """Fetches from object stores, web servers and local files."""

    def __init__(self, retry: Backoff | None = None) -> None:
        self._retry = retry or Backoff(tries=5, longest_pause=5.0)
        self._clients: PerProcess[_Clients] = PerProcess(_Clients)

    def fetch(
        self, grant: Grant, location: Location, start: int, stop: int, checksum: Checksum | None
    ) -> Part:
        """Bytes from `start` to `stop` of the object."""
        match grant.access:
            case FileAccess():
                return fetch_file(grant, location, start, stop, checksum)
            case HttpAccess(guarded):
                pool = self._clients.get().http(guarded=guarded)
                return fetch_http(pool, grant, location, start, stop, checksum, self._retry)
            case S3Access() as access:
                client = self._clients.get().s3(grant, access, location.host)
                return fetch_s3(client, access, location, start, stop, checksum, self._retry)
            case CloudAccess() as access:
                bucket = self._clients.get().cloud(grant, access, location.host)
                return fetch_cloud(bucket, location, start, stop, checksum, self._retry)

    def describe(self, grant: Grant, location: Location, url: str) -> ForeignFile:
        """The current state of the object: its size, and how to detect changes."""
        match grant.access:
            case FileAccess():
                return describe_file(grant, location, url)
            case HttpAccess(guarded):
                return describe_http(self._clients.get().http(guarded=guarded), location, url)
            case S3Access() as access:
                client = self._clients.get().s3(grant, access, location.host)
                return describe_s3(client, location, url, self._retry)
            case CloudAccess() as access:
                bucket = self._clients.get().cloud(grant, access, location.host)
                return describe_cloud(bucket, location, url, self._retry)


class _Clients:
    """Connections of one process, created on first use."""

    def __init__(self) -> None:
        self._lock = PerProcess(threading.Lock)
        self._s3: dict[tuple[str, str], S3Client] = {}
        self._clouds: dict[tuple[str, str], CloudBucket] = {}
        self._http: dict[bool, urllib3.PoolManager] = {}

    def s3(self, grant: Grant, access: S3Access, bucket: str) -> S3Client:
        with self._lock.get():
            client = self._s3.get((grant.url_prefix, bucket))
            if client is None:
                client = s3_client(access, bucket)
                self._s3[grant.url_prefix, bucket] = client
            return client

    def cloud(self, grant: Grant, access: CloudAccess, bucket: str) -> CloudBucket:
        with self._lock.get():
            found = self._clouds.get((grant.url_prefix, bucket))
            if found is None:
                found = self._clouds[grant.url_prefix, bucket] = cloud_bucket(access, bucket)
            return found

    def http(self, *, guarded: bool) -> urllib3.PoolManager:
        with self._lock.get():
            if guarded not in self._http:
                self._http[guarded] = http_pool(guarded=guarded)
            return self._http[guarded]


@dataclass(frozen=True, slots=True)
class _Piece:
    grant: Grant
    location: Location
    start: int
    stop: int
    checksum: Checksum | None


class VirtualReader:
    """Reads virtual chunks that the caller's grants cover. Thread-safe."""

    def __init__(
        self,
        grants: Grants,
        transport: Transport | None = None,
        *,
        part_size: int = 12 * 1024 * 1024,
        parts_at_once: int = 18,
        reads_at_once: int = 32,
    ) -> None:
        self._grants = grants
        self._transport = transport or NetworkTransport()
        self._part_size = part_size
        self._parts_at_once = parts_at_once
        self._reads_at_once = reads_at_once

    @classmethod
    def from_config(
        cls,
        config: RepositoryConfig,
        authorize: AuthorizeMapping | None = None,
        *,
        given: RepositoryConfig | None = None,
        trusted_endpoints: Collection[str] = (),
        transport: Transport | None = None,
    ) -> Self:
        """A reader for the effective configuration and the caller's grants.

        `given` is the configuration that the caller passed, if any: only endpoints named there, in
        `trusted_endpoints` (which should include that of the repository's own storage) or in the
        environment variable `ICECHUNK_TRUSTED_ENDPOINTS` (comma-separated) get signed requests.
        """
        named = os.environ.get(TRUSTED_ENDPOINTS, "").split(",")
        trusted = {*trusted_endpoints, *(url.strip() for url in named if url.strip())}
        grants = Grants.of(config, authorize, given=given, trusted_endpoints=trusted)
        storage = config.resolved().storage
        return cls(
            grants,
            transport,
            part_size=storage.ideal_concurrent_request_size,
            parts_at_once=storage.max_concurrent_requests_for_object,
        )

    def validate_location(self, url: str) -> None:
        """Raise for a location that no declared container covers. Needs no grant."""
        self._grants.container_of(self._grants.resolve(url))

    def is_declared(self, url: str) -> bool:
        """Whether a declared container covers the location."""
        try:
            self.validate_location(url)
        except VirtualAccessDeniedError:
            return False
        return True

    def expanded(self, url: str) -> str:
        """The full URL of a location that names its container; others unchanged."""
        is_whole = parse_location(url).scheme != BY_NAME
        return url if is_whole else str(self._grants.resolve(url))

    def describe(self, url: str) -> ForeignFile:
        """The current state of an external file. Needs the same grant as reading it."""
        location = self._grants.resolve(url)
        grant = self._grants.grant_for(location)
        if not isinstance(self._transport, Describing):
            raise VirtualChunkError(f"{shown(url)}: this transport cannot describe files")
        return self._transport.describe(grant, location, url)

    def read(self, ref: Virtual, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of a chunk, or of its range from `start` to `stop`.

        Returns exactly the requested bytes or raises; ranges are cut at the end of the chunk.
        """
        stop = ref.length if stop is None else min(stop, ref.length)
        if start < 0 or ref.offset < 0:
            raise InvalidInputError("a range of a virtual chunk cannot start before the chunk")
        location = self._grants.resolve(ref.location)
        grant = self._grants.grant_for(location)
        if start >= stop:
            return b""
        first, last = ref.offset + start, ref.offset + stop
        if last >= 1 << 63:
            raise VirtualChunkError(
                f"a reference to {shown(ref.location)} is beyond the end of any file"
            )
        pieces = [
            _Piece(grant, location, begin, end, ref.checksum)
            for begin, end in self._cut(grant, first, last)
        ]
        parts = run_all(self._fetch, pieces, at_once=self._parts_at_once)
        if len({part.version for part in parts}) > 1:
            raise changed_error(shown(ref.location))
        return parts[0].data if len(parts) == 1 else b"".join(part.data for part in parts)

    def read_many(self, requests: Sequence[Request]) -> list[bytes]:
        """`read` many with bounded concurrency; results in the order of requests."""
        return run_all(lambda request: self.read(*request), requests, at_once=self._reads_at_once)

    def _cut(self, grant: Grant, first: int, last: int) -> Iterable[tuple[int, int]]:
        """Ranges to request: of the ideal size, but never more of them than allowed."""
        wished = 1 if isinstance(grant.access, FileAccess) else -((first - last) // self._part_size)
        size = -((first - last) // max(1, min(wished, self._parts_at_once)))
        for begin in range(first, last, size):
            yield begin, min(begin + size, last)

    def _fetch(self, piece: _Piece) -> Part:
        part = self._transport.fetch(
            piece.grant, piece.location, piece.start, piece.stop, piece.checksum
        )
        if len(part.data) != piece.stop - piece.start:
            raise VirtualChunkError(
                f"{shown(str(piece.location))} returned {len(part.data)} bytes for the range from "
                f"{piece.start} to {piece.stop}: the object is shorter than its reference says, or "
                "the store does not serve ranges"
            )
        return part
