"""A server between clients and a store that loses requests or their responses on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit


class Fate(Enum):
    """The fate of a request."""

    PASSES = "it is carried out and answered"
    LOSES_ANSWER = "it is carried out, and the connection breaks before the answer"
    HALF_ANSWERED = "it is carried out, and the connection breaks in the middle of the answer"
    FAULTS = "it is carried out, and the answer is an internal error"
    SWALLOWED = "the connection breaks before anything is carried out"


_CONDITIONS = {"if-match", "if-none-match", "x-goog-if-generation-match"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""

    @property
    def is_conditional_write(self) -> bool:
        """Whether it is a write that may lose a race."""
        return self.method == "PUT" and bool(_CONDITIONS & self.headers.keys())


Judge = Callable[[Asked], Fate]
"""Called before a request is carried out."""
After = Callable[[Asked], None]
"""Called after a request was carried out, before its answer is lost."""


@contextmanager
def losing(behind: str, judge: Judge, after: After = lambda _: None) -> Iterator[str]:
    """The address of a server in front of `behind`; signatures stay valid only for a lax store."""

    class Passing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            place = urlsplit(behind)
            self.store = HTTPConnection(place.hostname or "", place.port)

        def finish(self) -> None:
            self.store.close()
            super().finish()

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            named = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, named)
            fate = judge(asked)
            if fate is Fate.SWALLOWED:
                self.close_connection = True
                return
            status, headers, data = _forwarded(self.store, asked, body)
            if fate is not Fate.PASSES:
                after(asked)
            if fate is Fate.LOSES_ANSWER:
                self.close_connection = True
                return
            if fate is Fate.FAULTS:
                status, headers, data = 500, {}, b"<Error><Code>InternalError</Code></Error>"
            head = [f"HTTP/1.1 {status} Answer\r\n"]
            headers.setdefault("content-length", str(len(data)))
            head += [f"{name}: {value}\r\n" for name, value in headers.items()]
            text = "".join([*head, "\r\n"]).encode("latin-1")
            if fate is Fate.HALF_ANSWERED:
                self.close_connection = True
                text, data = text[: len(text) // 2], b""
            self.wfile.write(text)
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_PER_HOP = {"connection", "transfer-encoding", "keep-alive"}


def _forwarded(
    store: HTTPConnection, asked: Asked, body: bytes
) -> tuple[int, dict[str, str], bytes]:
    store.putrequest(asked.method, asked.path, skip_host=True, skip_accept_encoding=True)
    for name, value in asked.headers.items():
        if name not in _PER_HOP:
            store.putheader(name, value)
    store.endheaders(body or None)
    answer = store.getresponse()
    data = answer.read()
    headers = {
        name.lower(): value for name, value in answer.getheaders() if name.lower() not in _PER_HOP
    }
    return answer.status, headers, data
