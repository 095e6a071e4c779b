"""A repository behind a web server: read-only, by ranges, without listings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Never
from urllib.parse import quote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from airflow_provider_icechunk.engine.concurrency import PerProcess, run_all
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    InvalidInputError,
    Kind,
    StorageError,
)

from .base import (
    Bounded,
    ByteRange,
    Data,
    Deleted,
    Expectation,
    Fetched,
    From,
    Listed,
    Put,
    PutOutcome,
    Version,
    check_finished,
    check_key,
    check_part,
    check_prefix,
    resolve,
)
from .faces import OfficialStorage

_AT_ONCE = 32
_PASSING = frozenset((408, 429, 500, 502, 503, 504))


class WebStorage(OfficialStorage):
    """Objects below a URL. Redirects are not followed: use the URL that they lead to."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        allow_http: bool = False,
        retry: Backoff | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._allow_http = allow_http
        self._retry = retry or Backoff()
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidInputError("not an http or https URL", kind=Kind.INVALID_CONFIG)
        if parts.username is not None or parts.query or parts.fragment:
            raise InvalidInputError(
                "the URL of a repository must have no user, query or fragment",
                kind=Kind.INVALID_CONFIG,
            )
        if parts.scheme == "http" and not allow_http:
            raise InvalidInputError(
                f"{self._url!r} is not encrypted: use https, or set allow_http if the network is "
                "trusted",
                kind=Kind.INVALID_CONFIG,
            )
        self._pool = PerProcess(
            lambda: urllib3.PoolManager(
                maxsize=_AT_ONCE, retries=False, timeout=urllib3.Timeout(connect=10.0, read=60.0)
            )
        )

    @property
    def location(self) -> str:
        """The URL."""
        return self._url

    @property
    def endpoint_url(self) -> str | None:
        """The URL: every web server is its own."""
        return self._url

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if it does not exist."""
        check_key(key)
        resolve(byte_range, 0)
        answer = self._ask("GET", key, byte_range)
        if answer is None:
            return None
        if answer.status == 416:
            return Fetched(b"", _version(answer))
        if answer.status == 206:
            return Fetched(answer.data, _version(answer))
        start, stop = resolve(byte_range, len(answer.data))
        return Fetched(answer.data[start:stop], _version(answer))

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """`get` many at once; results in the order of requests."""
        return run_all(lambda request: self.get(*request), requests, at_once=_AT_ONCE)

    def head(self, key: str) -> Listed | None:
        """Size and time of the object; `None` if it does not exist."""
        answer = self._ask("HEAD", check_key(key), None)
        if answer is None:
            return None
        modified = _moment(answer.headers.get("Last-Modified"))
        return Listed.at(key, int(answer.headers.get("Content-Length", 0)), modified)

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """Not possible."""
        del data, expect, metadata, content_type
        self._refuse(f"write {key}")

    def put_many(self, puts: Sequence[Put]) -> None:
        """Not possible."""
        if puts:
            self._refuse(f"write {puts[0].key}")

    def settle(self) -> None:
        """Do nothing: nothing was written."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Not possible; readers that need no listing work without."""
        self._refuse(f"list {check_prefix(prefix) or 'everything'}")

    def list_folders(self, prefix: str) -> list[str]:
        """Not possible."""
        self._refuse(f"list {check_prefix(prefix) or 'everything'}")

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """Not possible."""
        del immutable
        return Deleted(failed=dict.fromkeys(keys, "a web server is read-only"))

    def now(self) -> datetime:
        """The server's clock, from the `Date` of a response."""
        try:
            answer = self._pool.get().request("HEAD", self._url, redirect=False)
        except (HTTPError, OSError) as error:
            raise self._unreachable("get the time of", error) from None
        return _moment(answer.headers.get("Date"))

    def check_conditional_writes(self) -> None:
        """Not possible."""
        self._refuse("write")

    def _ask(
        self, method: str, key: str, asked: ByteRange | None
    ) -> urllib3.BaseHTTPResponse | None:
        url = f"{self._url}/{quote(key)}"
        headers = {**self._headers, **_header(asked), "Accept-Encoding": "identity"}
        for last in self._retry.attempts():
            try:
                answer = self._pool.get().request(method, url, headers=headers, redirect=False)
                if answer.status in _PASSING and not last:
                    continue
                if answer.status in (200, 206) and method == "GET":
                    told = {name.lower(): value for name, value in answer.headers.items()}
                    check_finished(told, len(answer.data))
                    if answer.status == 206:
                        check_part(told, asked)
            # A chunked body of negative size causes a ValueError.
            except (HTTPError, OSError, ValueError) as error:
                if not last:
                    continue
                raise self._unreachable(f"read {key} from", error) from None
            return self._judged(answer, key)
        raise AssertionError("there is at least one try")

    def _judged(
        self, answer: urllib3.BaseHTTPResponse, key: str
    ) -> urllib3.BaseHTTPResponse | None:
        if answer.status in (404, 410):
            return None
        if answer.status in (200, 206, 416):
            return answer
        text = f"cannot read {self._url}/{key}: the server responds with {answer.status}"
        if answer.status in (401, 403):
            raise AccessDeniedError(text)
        if answer.status in (301, 302, 303, 307, 308):
            raise StorageError(f"{text}, a redirect: use the URL that it leads to")
        raise StorageError(text)

    def _refuse(self, what: str) -> Never:
        raise AccessDeniedError(
            f"cannot {what} at {self._url}: a repository on a web server can be read, but neither "
            "written nor listed. Open it by the store behind the server"
        )

    def _unreachable(self, doing: str, error: BaseException) -> StorageError:
        return StorageError(
            f"cannot {doing} {self._url}: {type(error).__name__}. Check the URL and the network",
            kind=Kind.STORAGE_UNREACHABLE,
        )


def _header(byte_range: ByteRange | None) -> dict[str, str]:
    match byte_range:
        case Bounded(start, stop) if stop > start:
            return {"Range": f"bytes={start}-{stop - 1}"}
        case From(start):
            return {"Range": f"bytes={start}-"}
        case _:
            return {}


def _version(answer: urllib3.BaseHTTPResponse) -> Version:
    return Version(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")


def _moment(header: str | None) -> datetime:
    try:
        return parsedate_to_datetime(header or "").astimezone(UTC)
    except (ValueError, TypeError):
        raise StorageError("the server does not tell the time") from None
