"""A short way to objects: GET, HEAD and PUT without the layers of a generated client.

A commit is a dozen small requests, and a client made for three hundred services spends several
times as long preparing each of them as a loopback server takes to answer. So the three requests
that a repository lives on are put together here and signed and sent by the parts of botocore that
do that well: its credentials, its signer, its connections, its reading of error answers. All else
(lists, deletes, uploads in parts) and every answer that asks for more than an error (another
region, another signature) is left to the client.
"""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from zlib import crc32

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, FlexibleChecksumError
from botocore.hooks import first_non_none_response
from botocore.httpsession import URLLib3Session
from botocore.parsers import create_parser
from botocore.session import Session
from botocore.utils import get_environ_proxies

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.storage.credentials import AnonymousCredentials
from airflow_provider_icechunk.storage.s3_errors import UseClient
from airflow_provider_icechunk.storage.s3_settings import S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_CLIENTS_MATTER = frozenset({301, 302, 307, 400, 403})
"""Answers that a client may know how to follow; no request that got one was carried out."""
_CHECKSUM = "x-amz-checksum-crc32"
_AGENT = f"airflow-provider-icechunk/{__version__}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store sent."""

    headers: Mapping[str, str]
    """Names in any case."""
    data: bytes


class Lane:
    """Single requests to the objects of one bucket. Raises what the client would raise."""

    def __init__(self, settings: S3Settings, session: Session, *, root: str, region: str) -> None:
        self._root = root
        self._region = region
        self._signed = not isinstance(settings.credentials, AnonymousCredentials)
        self._credentials = session.get_credentials() if self._signed else None
        self._checked = settings.sends_checksums
        self._events: Any = session.get_component("event_emitter")
        self._parser = create_parser("rest-xml")
        # The published types of these two know less than the library takes.
        timeout: Any = (settings.connect_timeout, settings.read_timeout)
        options: Any = [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        ]
        self._http = URLLib3Session(
            verify=session.get_config_variable("ca_bundle") or True,
            proxies=get_environ_proxies(root),
            timeout=timeout,
            max_pool_connections=settings.concurrency,
            socket_options=options,
        )

    def listen(self, events: Any) -> None:
        """Let the hooks of a client see requests before they are sent, as its own."""
        self._events = events

    def get(self, name: str, byte_range: str | None) -> Answer:
        """The bytes of an object, or those that a `Range` header names."""
        headers = {} if byte_range is None else {"Range": byte_range}
        if self._checked:
            headers["x-amz-checksum-mode"] = "ENABLED"
        answer = self._send("GetObject", "GET", name, headers)
        self._verify(answer)
        return answer

    def head(self, name: str) -> Answer:
        """What the store keeps about an object."""
        return self._send("HeadObject", "HEAD", name, {})

    def put(self, name: str, data: bytes, headers: Mapping[str, str]) -> Answer:
        """Write an object in one request."""
        sent = dict(headers)
        if self._checked:
            sent["x-amz-sdk-checksum-algorithm"] = "CRC32"
            sent[_CHECKSUM] = _crc32(data)
        return self._send("PutObject", "PUT", name, sent, data)

    def _send(
        self, operation: str, method: str, name: str, headers: dict[str, str], data: bytes = b""
    ) -> Answer:
        request = AWSRequest(
            method=method,
            url=self._root + quote(name, safe="/~"),
            data=data,
            headers={"User-Agent": _AGENT, **headers},
        )
        if self._signed:
            self._sign(request)
        prepared = request.prepare()
        prepared.stream_output = True
        hooks = self._events.emit(f"before-send.s3.{operation}", request=prepared)
        response = first_non_none_response(hooks) or self._http.send(prepared)
        status: int = response.status_code
        try:
            body: bytes = response.raw.read()
        finally:
            response.raw.close()
        if 200 <= status < 300:
            return Answer(response.headers, body)
        if status in _CLIENTS_MATTER:
            raise UseClient
        told = {"status_code": status, "headers": response.headers, "body": body}
        no_shape: Any = None  # errors are read without one
        raise ClientError(self._parser.parse(told, no_shape), operation)

    def _sign(self, request: AWSRequest) -> None:
        if self._credentials is None:
            raise UseClient
        if _CHECKSUM in request.headers:
            # What the signer wants to know before it leaves the bytes to checksum and encryption.
            request.context["checksum"] = {"request_algorithm": {"in": "header", "name": _CHECKSUM}}
            request.context["has_streaming_input"] = True
        frozen = self._credentials.get_frozen_credentials()
        S3SigV4Auth(frozen, "s3", self._region).add_auth(request)

    def _verify(self, answer: Answer) -> None:
        expected = answer.headers.get(_CHECKSUM)
        # The checksum is that of the whole object, or of the checksums of its parts.
        if not expected or "-" in expected or answer.headers.get("Content-Range"):
            return
        found = _crc32(answer.data)
        if found != expected:
            raise FlexibleChecksumError(
                error_msg=f"expected checksum {expected} did not match {found}"
            )


def find_root(settings: S3Settings) -> str | None:
    """Where the objects of the bucket are, if that can be said without asking a client."""
    if settings.endpoint_url is None or not _is_plain(settings.bucket):
        return None
    if not (settings.force_path_style or _is_address(settings.endpoint_url)):
        return None
    return f"{settings.endpoint_url.rstrip('/')}/{settings.bucket}/"


def ask_root(settings: S3Settings, client: S3Client) -> str | None:
    """Where the client would go for the objects of the bucket; `None` where it does more."""
    if not _is_plain(settings.bucket):
        return None
    url = client.generate_presigned_url("get_object", {"Bucket": settings.bucket, "Key": "x"})
    return url.partition("?")[0].removesuffix("x")


def _is_plain(bucket: str) -> bool:
    return ":" not in bucket and not bucket.endswith("--x-s3")


def _is_address(endpoint: str) -> bool:
    try:
        ip_address(urlsplit(endpoint).hostname or "")
    except ValueError:
        return False
    return True


def _crc32(data: bytes) -> str:
    return b64encode(crc32(data).to_bytes(4, "big")).decode()
