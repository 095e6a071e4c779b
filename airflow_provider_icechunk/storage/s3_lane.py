"""A short way to objects: GET, HEAD, PUT and DELETE without the layers of a generated client.

A commit is a dozen small requests, and a client made for three hundred services spends several
times as long preparing each of them as a loopback server takes to answer. So the requests that a
repository lives on are put together, signed and sent here; credentials and their renewal, and the
reading of error answers, are botocore's. All else (lists, deletes of many, uploads in parts,
proxies) and every answer that asks for more than an error (another region, another signature) is
left to the client.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from zlib import crc32

from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ClientError, FlexibleChecksumError
from botocore.hooks import first_non_none_response
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.session import Session
from botocore.utils import get_environ_proxies

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.storage.base import Data
from airflow_provider_icechunk.storage.credentials import AnonymousCredentials
from airflow_provider_icechunk.storage.s3_errors import UseClient
from airflow_provider_icechunk.storage.s3_settings import S3Settings
from airflow_provider_icechunk.storage.s3_signing import UNSIGNED, Signer
from airflow_provider_icechunk.storage.s3_wire import Address, Received, Wire

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_CLIENTS_MATTER = frozenset({301, 302, 307, 400, 403})
"""Answers that a client may know how to follow; no request that got one was carried out."""
_CHECKSUM = "x-amz-checksum-crc32"
_NO_BYTES = sha256().hexdigest()
_AGENT = f"airflow-provider-icechunk/{__version__}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store sent."""

    headers: Mapping[str, str]
    """Names in lower case."""
    data: Data


class Lane:
    """Single requests to the objects of one bucket. Raises what the client would raise."""

    def __init__(self, settings: S3Settings, session: Session, *, root: str, region: str) -> None:
        self._address = Address.of(root)
        self._path = urlsplit(root).path
        self._region = region
        self._signed = not isinstance(settings.credentials, AnonymousCredentials)
        self._credentials = session.get_credentials() if self._signed else None
        self._checked = settings.sends_checksums
        self._events: Any = session.get_component("event_emitter")
        self._parser = create_parser("rest-xml")
        bundle = session.get_config_variable("ca_bundle") or True
        self._wire = Wire(
            self._address,
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.read_timeout,
            kept=settings.concurrency,
            bundle=get_cert_path(bundle),
        )

    def listen(self, events: Any) -> None:
        """Let the hooks of a client see requests before they are sent, as its own."""
        self._events = events

    def get(self, name: str, byte_range: str | None, space: memoryview | None = None) -> Answer:
        """The bytes of an object, or those that a `Range` header names.

        If they fit exactly, they are received into `space`.
        """
        headers = {} if byte_range is None else {"Range": byte_range}
        if self._checked:
            headers["x-amz-checksum-mode"] = "ENABLED"
        answer = self._send("GetObject", "GET", name, headers, space=space)
        self._verify(answer)
        return answer

    def head(self, name: str) -> Answer:
        """What the store keeps about an object."""
        return self._send("HeadObject", "HEAD", name, {})

    def delete(self, name: str) -> Answer:
        """Delete an object; one that is not there is deleted."""
        return self._send("DeleteObject", "DELETE", name, {})

    def put(self, name: str, data: bytes, headers: Mapping[str, str]) -> Answer:
        """Write an object in one request."""
        sent = dict(headers)
        if self._checked:
            sent["x-amz-sdk-checksum-algorithm"] = "CRC32"
            sent[_CHECKSUM] = _crc32(data)
        return self._send("PutObject", "PUT", name, sent, data)

    def _send(
        self,
        operation: str,
        method: str,
        name: str,
        headers: dict[str, str],
        data: bytes = b"",
        space: memoryview | None = None,
    ) -> Answer:
        target = self._path + quote(name, safe="/~")
        told = {"Host": self._address.header, **headers}
        if self._signed:
            told = self._sign(method, target, told, data)
        # Not signed: gateways before a store may change them.
        told |= {"Accept-Encoding": "identity", "User-Agent": _AGENT}
        if method == "PUT":
            told["Content-Length"] = str(len(data))
        if not _is_sendable(told):
            raise UseClient
        status, found, body = self._exchange(operation, method, target, told, data, space)
        if 200 <= status < 300:
            return Answer(found, body)
        if status in _CLIENTS_MATTER:
            raise UseClient
        complaint = {"status_code": status, "headers": found, "body": bytes(body)}
        no_shape: Any = None  # errors are read without one
        raise ClientError(self._parser.parse(complaint, no_shape), operation)

    def _exchange(
        self,
        operation: str,
        method: str,
        target: str,
        headers: dict[str, str],
        data: bytes,
        space: memoryview | None,
    ) -> Received:
        """What the store answers, or a hook in its place."""
        url = self._address.url + target
        shown: Any = headers  # any mapping does
        request = AWSPreparedRequest(method, url, shown, data, stream_output=True)
        hooks = self._events.emit(f"before-send.s3.{operation}", request=request)
        answer = first_non_none_response(hooks)
        if answer is None:
            return self._wire.exchange(method, target, headers, data, space)
        found = {str(name).lower(): str(value) for name, value in answer.headers.items()}
        return answer.status_code, found, answer.raw.read()

    def _sign(
        self, method: str, target: str, headers: dict[str, str], data: bytes
    ) -> dict[str, str]:
        frozen = self._credentials.get_frozen_credentials() if self._credentials else None
        if frozen is None or frozen.access_key is None or frozen.secret_key is None:
            raise UseClient
        signer = Signer(frozen.access_key, frozen.secret_key, frozen.token, self._region)
        if self._address.is_secure and _CHECKSUM in headers:
            digest = UNSIGNED
        else:
            digest = sha256(data).hexdigest() if data else _NO_BYTES
        return signer.sign(method, target, headers, digest=digest, moment=datetime.now(UTC))

    def _verify(self, answer: Answer) -> None:
        expected = answer.headers.get(_CHECKSUM)
        # The checksum is that of the whole object, or of the checksums of its parts.
        if not expected or "-" in expected or answer.headers.get("content-range"):
            return
        found = _crc32(answer.data)
        if found != expected:
            raise FlexibleChecksumError(
                error_msg=f"expected checksum {expected} did not match {found}"
            )


def _is_sendable(headers: Mapping[str, str]) -> bool:
    """Whether the values fit into lines; what does not is refused by the client."""
    return all(value.isascii() and value.isprintable() for value in headers.values())


def is_direct(url: str) -> bool:
    """Whether no proxy stands before a host."""
    return urlsplit(url).scheme not in get_environ_proxies(url)


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


def _crc32(data: Data) -> str:
    return b64encode(crc32(data).to_bytes(4, "big")).decode()
