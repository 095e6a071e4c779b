"""A small server with Google Cloud Storage's XML interface: objects have generations.

It knows what the native client uses: conditional writes by generation, ranges, metadata, pages of
listings, uploads in parts, and tokens with the right to write or only to read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock, Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
WRITER = "writers-token"
READER = "readers-token"
BLIND_READER = "token-of-a-reader-that-may-not-list"
_numbers = count()


@dataclass
class Object:
    data: bytes
    generation: int
    headers: dict[str, str]
    modified: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def tag(self) -> str:
        return f'"{md5(self.data, usedforsecurity=False).hexdigest()}"'

    def told(self) -> dict[str, str]:
        return {
            **self.headers,
            "ETag": self.tag,
            "Last-Modified": format_datetime(self.modified, usegmt=True),
            "x-goog-generation": str(self.generation),
        }


@dataclass
class GcsServer:
    """Where the server is, what it holds and the requests it received."""

    url: str = ""
    page: int = 1000
    objects: dict[str, Object] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Token, method and path of every request with a token."""
    lock: Lock = field(default_factory=Lock)
    generations: Iterator[int] = field(default_factory=lambda: count(1_700_000_000_000_000))

    def fresh_prefix(self) -> str:
        return f"prefix-{next(_numbers)}/some"

    def writes_of(self, token: str) -> list[tuple[str, str]]:
        return [
            (m, path) for who, m, path in self.asked if who == token and m not in ("GET", "HEAD")
        ]


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: GcsServer

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        place = urlsplit(self.path)
        bucket, _, key = unquote(place.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(place.query, True).items()}
        try:
            self._authorize(key, place.path)
            if bucket != BUCKET:
                raise _Refused(404, "NoSuchBucket")
            self._serve(key, query, body)
        except _Refused as refused:
            text = f"<?xml version='1.0'?><Error><Code>{refused.code}</Code></Error>".encode()
            self._answer(refused.status, text)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    def log_message(self, *_: object) -> None:
        """Be quiet."""

    def _authorize(self, key: str, path: str) -> None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or token not in (WRITER, READER, BLIND_READER):
            raise _Refused(401, "AuthenticationRequired")
        self.state.asked.append((token, self.command, path))
        if token != WRITER and self.command not in ("GET", "HEAD"):
            raise _Refused(403, "AccessDenied")
        if token == BLIND_READER and not key:
            raise _Refused(403, "AccessDenied")

    def _serve(self, key: str, query: dict[str, str], body: bytes) -> None:
        if not key:
            self._list(query)
        elif self.command in ("GET", "HEAD"):
            self._get(key)
        elif "uploads" in query or "uploadId" in query:
            self._upload(key, query, body)
        elif self.command == "PUT":
            self._put(key, body)
        else:
            with self.state.lock:
                gone = self.state.objects.pop(key, None)
            if gone is None:
                raise _Refused(404, "NoSuchKey")
            self._answer(204, b"")

    def _put(self, key: str, body: bytes) -> None:
        kept = {
            name: value
            for name, value in self.headers.items()
            if name.lower().startswith("x-goog-meta-") or name.lower() == "content-type"
        }
        expected = self.headers.get("x-goog-if-generation-match")
        if expected is not None and not expected.isdigit():
            raise _Refused(400, "InvalidArgument")
        with self.state.lock:
            before = self.state.objects.get(key)
            if expected is not None and int(expected) != (before.generation if before else 0):
                raise _Refused(412, "PreconditionFailed")
            made = Object(body, next(self.state.generations), kept)
            self.state.objects[key] = made
        self._answer(200, b"", made.told())

    def _upload(self, key: str, query: dict[str, str], body: bytes) -> None:
        parts = self.state.parts
        if "uploads" in query:
            name = str(next(_numbers))
            parts[name] = {}
            text = (
                f"<InitiateMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key>"
                f"<UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            )
            self._answer(200, text.encode())
        elif "partNumber" in query:
            parts[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, b"", {"ETag": f'"{md5(body, usedforsecurity=False).hexdigest()}"'})
        elif self.command == "POST":
            sent = parts.pop(query["uploadId"])
            self._put_parts(key, b"".join(sent[number] for number in sorted(sent)))
        else:
            parts.pop(query["uploadId"], None)
            self._answer(204, b"")

    def _put_parts(self, key: str, data: bytes) -> None:
        with self.state.lock:
            made = Object(data, next(self.state.generations), {})
            self.state.objects[key] = made
        text = (
            f"<CompleteMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key>"
            f"<ETag>{escape(made.tag)}</ETag></CompleteMultipartUploadResult>"
        )
        self._answer(200, text.encode(), {"x-goog-generation": str(made.generation)})

    def _get(self, key: str) -> None:
        found = self.state.objects.get(key)
        if found is None:
            raise _Refused(404, "NoSuchKey")
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted not in (found.tag, "*"):
            raise _Refused(412, "PreconditionFailed")
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self._answer(200, found.data, found.told())
            return
        size = len(found.data)
        start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        stop = min(size, int(asked[2]) + 1) if asked[1] and asked[2] else size
        if start >= size:
            raise _Refused(416, "InvalidRange")
        there = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        self._answer(206, found.data[start:stop], {**found.told(), **there})

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        with self.state.lock:
            names = sorted(name for name in self.state.objects if name.startswith(prefix))
            found = {name: self.state.objects[name] for name in names}
        entries: dict[str, str] = {}
        for name, one in found.items():
            inside = name[len(prefix) :]
            if delimiter and delimiter in inside:
                folder = prefix + inside.partition(delimiter)[0] + delimiter
                text = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                entries[folder] = text
            else:
                entries[name] = (
                    f"<Contents><Key>{escape(name)}</Key><Size>{len(one.data)}</Size>"
                    f"<ETag>{escape(one.tag)}</ETag>"
                    f"<LastModified>{one.modified:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified></Contents>"
                )
        left = [name for name in sorted(entries) if name > after]
        page = left[: self.state.page]
        more = (
            f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
            if len(left) > len(page)
            else ""
        )
        text = (
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix>{more}"
            f"{''.join(entries[name] for name in page)}</ListBucketResult>"
        )
        self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed break their connections."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def running(*, page: int = 1000) -> Iterator[GcsServer]:
    """A server with an empty bucket."""
    state = GcsServer(page=page)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
