"""A server between a client and an S3 server: records requests, and can corrupt responses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


class Between(ThreadingHTTPServer):
    """The server: which methods were requested, and what is done to requests."""

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.behind = behind
        self.methods: list[str] = []
        self.denies = False
        self.drops_conditions = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Passing(BaseHTTPRequestHandler):
    """Forwards one request without a body."""

    server: Between

    def do_GET(self) -> None:
        self.server.methods.append(self.command)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.denies:
            self.answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
            return
        headers = dict(self.headers)
        if self.server.drops_conditions:
            headers.pop("If-Match", None)
        wanted = Request(self.server.behind + self.path, method=self.command, headers=headers)
        try:
            with urlopen(wanted) as found:
                self.answer(found.status, found.headers, found.read())
        except HTTPError as error:
            with error:
                self.answer(error.code, error.headers, error.read())

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def answer(self, status: int, headers: Any, body: bytes) -> None:
        self.send_response(status)
        for name in ("Content-Type", "Content-Range", "ETag", "Last-Modified"):
            if name in headers:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", headers.get("Content-Length", str(len(body))))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to the terminal."""


@contextmanager
def standing_before(endpoint: str) -> Iterator[Between]:
    """A server in front of the one at `endpoint`."""
    with Between(endpoint) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
