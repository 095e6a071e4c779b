"""HTTP/1.1 to one host, over connections that are kept: no more of it than objects need.

The standard library parses headers as electronic mail and reads bodies in small pieces, each a turn
at the interpreter's lock; with the layers above it, a request takes longer than the store behind
it. Here headers are split, and a large body is received where it stays, in pieces worth waking up
for. Proxies, redirects and encodings are not known: the caller leaves such places to a client.
"""

from __future__ import annotations

import select
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from urllib.parse import urlsplit

from botocore.exceptions import (
    BotoCoreError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    SSLError,
)

from airflow_provider_icechunk.storage.base import Data

Received = tuple[int, dict[str, str], Data]
"""Status, headers by their names in lower case, and body."""

_PIECE = 32 << 10
_LARGE = 64 << 10
_WORTH_WAKING = 256 << 10
_MOST_HEAD = 64 << 10
_MOST_COMPLAINT = 1 << 20
"""How much of an answer is read that is no success."""
_NO_BODY = frozenset({204, 304})
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host listens."""

    name: str
    port: int
    is_secure: bool

    @classmethod
    def of(cls, url: str) -> Address:
        """The host of a URL."""
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        return cls(parts.hostname or "", parts.port or (443 if is_secure else 80), is_secure)

    @property
    def url(self) -> str:
        """The host without a path."""
        return f"http{'s' if self.is_secure else ''}://{self.header}"

    @property
    def header(self) -> str:
        """What the header `Host` says."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port == (443 if self.is_secure else 80) else f"{name}:{self.port}"


class Wire:
    """Requests to one host. Safe to use from many threads.

    Raises what botocore raises where no connection comes about, `OSError` where one breaks.

    :param kept: how many idle connections stay open.
    :param bundle: a file with the certificates to trust.
    """

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float,
        read_timeout: float,
        kept: int,
        bundle: str | None = None,
    ) -> None:
        self._address = address
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._kept = kept
        self._tls = ssl.create_default_context(cafile=bundle) if address.is_secure else None
        self._idle: deque[socket.socket] = deque()
        self.close = weakref.finalize(self, _close_all, self._idle)
        """Let idle connections go, which also happens when nobody asks any more."""

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        space: memoryview | None = None,
    ) -> Received:
        """Send a request and wait for its answer. Header values have no line breaks.

        The body of a success that fits exactly into `space` is received there.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
        connection = self._take()
        try:
            if len(body) > _LARGE:
                connection.sendall(head)
                connection.sendall(body)
            else:
                connection.sendall(head + body)
            received, may_stay = _Answer(connection).read(method, space)
        except BaseException:
            connection.close()
            raise
        if may_stay and len(self._idle) < self._kept:
            self._idle.append(connection)
        else:
            connection.close()
        return received

    def _take(self) -> socket.socket:
        """An idle connection that the host has not ended meanwhile, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect()
            if not _has_news(connection):
                return connection
            connection.close()

    def _connect(self) -> socket.socket:
        place = (self._address.name, self._address.port)
        plain: socket.socket | None = None
        try:
            plain = socket.create_connection(place, self._connect_timeout)
            for option in _OPTIONS:
                plain.setsockopt(*option)
            made = plain
            if self._tls is not None:
                made = self._tls.wrap_socket(plain, server_hostname=self._address.name)
        except OSError as error:
            if plain is not None:
                plain.close()
            raise _unmade(error, self._address.url) from error
        made.settimeout(self._read_timeout)
        return made


class _Answer:
    """One answer on a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ahead = b""

    def read(self, method: str, space: memoryview | None) -> tuple[Received, bool]:
        """The answer, and whether the connection can be used again."""
        version, status, headers = self._head()
        while 100 <= status < 200:
            version, status, headers = self._head()
        may_stay = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        body: Data = b""
        if method == "HEAD" or status in _NO_BODY:
            pass
        elif "transfer-encoding" in headers:
            body = self._chunked(headers["transfer-encoding"])
        elif "content-length" in headers:
            size = _length(headers["content-length"], status)
            if space is not None and status < 300 and size == len(space):
                body = self._fill(space)
            else:
                body = self._exactly(size)
        else:
            body, may_stay = self._rest(status), False
        return (status, headers, body), may_stay and not self._ahead

    def _head(self) -> tuple[str, int, dict[str, str]]:
        head = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not status.isdecimal():
            raise _garbled("its first line is not that of an answer")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip():
                raise _garbled("a header has no name")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return version, int(status), headers

    def _until(self, end: bytes) -> bytes:
        """What comes before `end`, which is taken as well."""
        data, searched = self._ahead, 0
        while (at := data.find(end, searched)) < 0:
            if len(data) > _MOST_HEAD:
                raise _garbled(f"its head has more than {_MOST_HEAD} bytes")
            searched = max(0, len(data) - len(end))
            data += self._more(_PIECE)
        self._ahead = data[at + len(end) :]
        return data[:at]

    def _exactly(self, size: int) -> bytes:
        begin, self._ahead = self._ahead[:size], self._ahead[size:]
        if len(begin) == size:
            return begin
        if size >= _LARGE:
            return self._large(begin, size)
        parts, left = [begin], size - len(begin)
        while left:
            parts.append(self._more(left))
            left -= len(parts[-1])
        return b"".join(parts)

    def _large(self, begin: bytes, size: int) -> bytes:
        # A file in memory gives its bytes away uncopied.
        whole = BytesIO()
        whole.seek(size - 1)
        whole.write(b"\0")
        whole.seek(0)
        whole.write(begin)
        with whole.getbuffer() as space:
            self._receive(space, len(begin))
        return whole.getvalue()

    def _fill(self, space: memoryview) -> memoryview:
        begin, self._ahead = self._ahead[: len(space)], self._ahead[len(space) :]
        space[: len(begin)] = begin
        self._receive(space, len(begin))
        return space

    def _receive(self, space: memoryview, at: int) -> None:
        """Fill the rest of `space`, from `at` on."""
        with _seldom_woken(self._connection) as expect:
            while at < len(space):
                expect(len(space) - at)
                got = self._connection.recv_into(space[at:])
                if not got:
                    raise _torn()
                at += got

    def _chunked(self, encoding: str) -> bytes:
        if encoding.lower() != "chunked":
            raise _garbled(f"its transfer encoding is {encoding!r}")
        parts = []
        while size := _chunk_size(self._until(b"\r\n")):
            parts.append(self._exactly(size))
            if self._until(b"\r\n"):
                raise _garbled("a piece of its body is longer than it says")
        while self._until(b"\r\n"):
            pass  # Trailers say nothing about objects.
        return b"".join(parts)

    def _rest(self, status: int) -> bytes:
        """What comes until the connection ends. Whether that is all of it, the caller finds out."""
        parts, self._ahead = [self._ahead], b""
        received = len(parts[0])
        while piece := self._connection.recv(_PIECE):
            parts.append(piece)
            received += len(piece)
            if status >= 300 and received > _MOST_COMPLAINT:
                raise _garbled(f"status {status} comes with more than {_MOST_COMPLAINT} bytes")
        return b"".join(parts)

    def _more(self, most: int) -> bytes:
        piece = self._connection.recv(min(most, _PIECE))
        if not piece:
            raise _torn()
        return piece


@contextmanager
def _seldom_woken(connection: socket.socket) -> Iterator[Callable[[int], None]]:
    """Let the kernel collect bytes before it wakes the reader, who says how many are to come.

    Behind TLS the kernel does not know how many of them were already taken out.
    """
    if isinstance(connection, ssl.SSLSocket):
        yield lambda _: None
        return

    def expect(left: int) -> None:
        with suppress(OSError):
            least = min(left, _WORTH_WAKING)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    try:
        yield expect
    finally:
        expect(1)


def _close_all(connections: deque[socket.socket]) -> None:
    while connections:
        connections.pop().close()


def _has_news(connection: socket.socket) -> bool:
    """Whether something can be read where nothing is awaited: the end, as a rule."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _length(text: str, status: int) -> int:
    if not text.isdecimal():
        raise _garbled(f"its length is {text[:40]!r}")
    size = int(text)
    if status >= 300 and size > _MOST_COMPLAINT:
        raise _garbled(f"status {status} comes with {size} bytes")
    return size


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF") or len(digits) > 15:
        raise _garbled("the size of a piece of its body is no number")
    return int(digits, 16)


def _unmade(error: OSError, url: str) -> BotoCoreError:
    """The error of botocore for a connection that did not come about."""
    match error:
        case ssl.SSLError():
            return SSLError(endpoint_url=url, error=error)
        case TimeoutError():
            return ConnectTimeoutError(endpoint_url=url, error=error)
        case _:
            return EndpointConnectionError(endpoint_url=url, error=error)


def _torn() -> ConnectionResetError:
    return ConnectionResetError("the connection ended in the middle of an answer")


def _garbled(problem: str) -> HTTPClientError:
    return HTTPClientError(error=f"not an answer in HTTP: {problem}")
