"""Single requests to objects, by the native client: GET, HEAD, PUT and DELETE.

A commit is a dozen small requests, and a client made for three hundred services takes several times
as long to prepare each as a nearby store takes to respond. Listings are signed by botocore and sent
by urllib3 (`listing`). Credentials and their renewal are botocore's, and everything else is left to
boto3: large deletes, multipart uploads, proxies, and every response that calls for more than an
error (another region, another signature).

The native client never retries: sent again by it, a write that landed would fail its own condition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from os import environ
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from airflow_provider_icechunk.engine.storage.base import ByteRange, Unfinished, Until, Version
from airflow_provider_icechunk.engine.storage.clouds.forks import Holder, claim, usable
from airflow_provider_icechunk.engine.storage.clouds.native import (
    ONCE,
    SLOW,
    client_options,
    fetch,
    is_sendable,
    look,
    tag_of,
)
from airflow_provider_icechunk.engine.storage.clouds.requests import Body, ObjectHead
from airflow_provider_icechunk.engine.storage.clouds.troubles import is_unreadable, native_error
from airflow_provider_icechunk.engine.storage.secrets import AnonymousCredentials

from .errors import UseClient
from .settings import S3Settings

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef
    from obstore.store import S3Store
    from urllib3 import PoolManager

T = TypeVar("T")
Keys = tuple[str, str, str | None]
"""Access key, secret key and session token."""
_log = logging.getLogger(__name__)

_CLIENTS_MATTER = frozenset({301, 302, 307, 308, 400, 403})
"""Responses that a client may be able to follow; their requests were not carried out."""
_TOKENS = ("AWS_SESSION_TOKEN", "AWS_TOKEN")
_NAMED = {"ContentType": "Content-Type", "StorageClass": "Storage-Class"}


class NativeObjects:
    """The objects of one bucket. Raises `UseClient` for what only the client can do."""

    def __init__(
        self,
        settings: S3Settings,
        credentials: Keys | Credentials | None,
        *,
        root: str,
        region: str,
        bundle: str | None,
    ) -> None:
        self._settings = settings
        self._root = root.rstrip("/")
        self._region = region
        self._signed = not isinstance(settings.credentials, AnonymousCredentials)
        self._credentials = credentials
        self._bundle = bundle
        self._held: dict[bool, tuple[Any, Holder]] = {}
        self._making = Lock()
        self._readable = True
        self._pool: PoolManager | None = None

    def get(self, name: str, asked: ByteRange | None) -> Body:
        """The bytes of an object, or of a range that HTTP can express."""
        if isinstance(asked, Until):
            raise UseClient
        return self._reading(lambda store: fetch(store, name, asked, tag_of))

    def head(self, name: str) -> ObjectHead:
        """The properties of an object."""
        return self._reading(lambda store: look(store, name, tag_of))

    def put(self, name: str, data: bytes, request: Mapping[str, Any]) -> Version:
        """Write an object in one request, with the arguments that the client would get."""
        import obstore

        mode, attributes = _mode(request), _attributes(request)
        made = self._calling(
            lambda store: obstore.put(
                store, name, data, mode=mode, attributes=attributes, use_multipart=False
            ),
            large=len(data) > SLOW,
        )
        return tag_of(made)

    def date(self, name: str) -> str | None:
        """The `Date` of a response, which the native client does not show.

        The request is not signed: a refusal has a date too.
        """
        url = f"{self._root}/{quote(name)}"
        return self._connections().request("HEAD", url, redirect=False).headers.get("Date")

    def page(self, request: Mapping[str, Any]) -> ListObjectsV2OutputTypeDef:
        """A page of a listing, with the arguments that the client would get.

        The native client cannot: it takes a listing that ends too early for a whole one.
        """
        # Late, like boto3 itself: most processes never list.
        from .listing import ask_page

        headers = {"User-Agent": self._settings.user_agent}
        if self._settings.requester_pays:
            headers["x-amz-request-payer"] = "requester"
        return ask_page(
            self._connections(),
            self._root,
            request,
            region=self._region,
            keys=self._keys(),
            headers={**self._settings.headers, **headers},
        )

    def delete(self, name: str) -> bool:
        """Delete an object; a missing one counts as deleted."""
        import obstore

        self._calling(lambda store: obstore.delete(store, name))
        return True

    def _connections(self) -> PoolManager:
        """Connections of urllib3, for what the native client cannot ask or does not show."""
        import urllib3

        if self._pool is None:
            settings = self._settings
            self._pool = urllib3.PoolManager(
                maxsize=settings.concurrency,
                retries=False,
                timeout=urllib3.Timeout(settings.connect_timeout, settings.read_timeout),
                ca_certs=self._bundle,
            )
        return self._pool

    def _reading(self, call: Callable[[S3Store], T]) -> T:
        """A request that the client may repeat if the native one cannot read the answer."""
        return self._calling(call, repeatable=True)

    def _calling(
        self, call: Callable[[S3Store], T], *, large: bool = False, repeatable: bool = False
    ) -> T:
        from obstore.exceptions import BaseError

        if repeatable and not self._readable:
            raise UseClient
        store = self._store(large)
        try:
            return call(store)
        except Unfinished:
            raise
        except (BaseError, OSError) as error:
            if repeatable and is_unreadable(error):
                self._readable = False
                _log.info("Reads of %s are made by boto3: answers without a length", self._root)
                raise UseClient from None
            failure = native_error(error)
        if failure.status in _CLIENTS_MATTER:
            raise UseClient
        # Not chained to the error: its text repeats the store's, which may contain anything.
        raise failure

    def _store(self, large: bool) -> S3Store:
        """The store with the current credentials, which may have been renewed."""
        if not usable():
            raise UseClient
        keys = self._keys()
        # The first requests come at once, and creating a store costs more than sending them.
        with self._making:
            held = self._held.get(large)
            if held is None or held[0] != keys:
                claim()
                held = (keys, Holder(self._made(keys, large)))
                self._held[large] = held
        store: S3Store = held[1].store
        return store

    def _keys(self) -> Keys | None:
        if not self._signed:
            return None
        if isinstance(self._credentials, tuple):
            return self._credentials
        frozen = self._credentials.get_frozen_credentials() if self._credentials else None
        if frozen is None or frozen.access_key is None or frozen.secret_key is None:
            raise UseClient
        return (frozen.access_key, frozen.secret_key, frozen.token)

    def _made(self, keys: Any, large: bool) -> S3Store:
        from obstore.exceptions import BaseError

        try:
            return self._make(keys, large)
        except (BaseError, OSError, ValueError) as error:
            # Its text may repeat its input, including secrets.
            kind = type(error).__name__
            _log.warning("%s is accessed by boto3 alone: no native client (%s)", self._root, kind)
            raise UseClient from None

    def _make(self, keys: Any, large: bool) -> S3Store:
        from obstore.store import S3Store

        settings = self._settings
        client = client_options(settings, large=large)
        if self._root.startswith("https:") and self._bundle is not None:
            client["root_certificate"] = Path(self._bundle).read_bytes()
        # Settings not given here come from the environment, under the library's own names.
        chosen: dict[str, Any] = {
            "endpoint": self._root,
            "aws_endpoint_url_s3": self._root,
            "virtual_hosted_style_request": True,  # the root names the bucket already
            "region": self._region,
            "skip_signature": not self._signed,
            "unsigned_payload": False,
            "request_payer": settings.requester_pays,
            "s3_express": False,
            "disable_bulk_delete": True,
            "conditional_put": "etag",
        }
        if self._signed:
            chosen |= _given(keys)
        options: Any = client
        retries: Any = ONCE
        return S3Store(settings.bucket, client_options=options, retry_config=retries, **chosen)


def _given(keys: tuple[str, str, str | None]) -> dict[str, Any]:
    """Credentials of a store, which is replaced when they change, so they do not expire."""
    access, secret, token = keys
    given = {"access_key_id": access, "secret_access_key": secret}
    if token is not None:
        return {**given, "session_token": token}
    if not any(map(environ.get, _TOKENS)):
        return given
    # Keys given by value would be completed with a token that belongs to others. Only then is
    # a function used: what a signal handler raises while the library calls it is lost.
    return {"credential_provider": lambda: {**given, "token": None, "expires_at": None}}


def _mode(request: Mapping[str, Any]) -> Any:
    if "IfNoneMatch" in request:
        return "create"
    return {"e_tag": request["IfMatch"]} if "IfMatch" in request else "overwrite"


def _attributes(request: Mapping[str, Any]) -> dict[str, str]:
    """Metadata and the like in the native client's form."""
    metadata: Mapping[str, str] = request.get("Metadata", {})
    named = {_NAMED[name]: str(request[name]) for name in _NAMED if name in request}
    known = _NAMED.keys() | {"Metadata", "IfMatch", "IfNoneMatch"}
    is_plain = all(name.isascii() and name.isalnum() and name.islower() for name in metadata)
    values = (*metadata.values(), *named.values())
    if not is_plain or not request.keys() <= known or not all(map(is_sendable, values)):
        raise UseClient
    return {**metadata, **named}


def is_direct(url: str) -> bool:
    """Whether there is no proxy for a host."""
    place = urlsplit(url)
    return place.scheme not in getproxies() or bool(proxy_bypass(place.netloc))


def find_root(settings: S3Settings) -> str | None:
    """The address of the bucket's objects, if it is known without a client."""
    if settings.endpoint_url is None or not _is_plain(settings.bucket):
        return None
    if not (settings.force_path_style or _is_address(settings.endpoint_url)):
        return None
    return f"{settings.endpoint_url.rstrip('/')}/{settings.bucket}/"


def ask_root(settings: S3Settings, client: S3Client) -> str | None:
    """The address that the client would use for the bucket; `None` if that is not enough."""
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
