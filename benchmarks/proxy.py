"""A network between a client and a server: bytes arrive later, and requests are counted.

Run as `python -m benchmarks.proxy HOST PORT [SECONDS]`. It prints the port that clients connect to
and the port of its counters, and ends when its input does. A connection to the second port gets the
counts since the last one, as JSON.

Requests are counted by the turns of a connection: HTTP/1.1 clients wait for an answer before they
ask again. The depth of a request is one more than that of the deepest one that had been answered
when it was sent, so the largest depth says how many had to wait for one another.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

ONE_WAY = 0.010
"""Seconds that bytes take in each direction."""
_MOST_UNDER_WAY = 32 << 20
_BUFFER = 4 << 20


@dataclass(slots=True)
class Counts:
    """Requests since the counters were last read."""

    requests: int = 0
    depth: int = 0
    answered: int = 0
    """Largest depth of a request that was answered."""

    def asked(self) -> int:
        """Count a request; returns its depth."""
        self.requests += 1
        self.depth = max(self.depth, self.answered + 1)
        return self.answered + 1

    def taken(self) -> bytes:
        """The counts as JSON; counting starts again at zero."""
        text = json.dumps({"requests": self.requests, "depth": self.depth}).encode()
        self.requests = self.depth = self.answered = 0
        return text


class _Side(asyncio.Protocol):
    """One end of a connection; what it gets is written to the other end after a while."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._ended = False
        self.other: _Side | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_BUFFER)
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.passes(data)
        self._waiting.append((self._loop.time() + self._delay, data))
        self._size += len(data)
        if len(self._waiting) == 1:
            self._loop.call_at(self._waiting[0][0], self._deliver)
        if self._size > _MOST_UNDER_WAY and self.transport is not None:
            self.transport.pause_reading()

    def passes(self, data: bytes) -> None:
        """Examine what was sent."""

    def arrives(self) -> None:
        """Bytes from this side reach the other one."""

    def _deliver(self) -> None:
        other = None if self.other is None else self.other.transport
        due = self._loop.time() + 0.0005
        while self._waiting and self._waiting[0][0] <= due:
            _, data = self._waiting.popleft()
            self._size -= len(data)
            if other is not None and not other.is_closing():
                self.arrives()
                other.write(data)
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._deliver)
        elif self._ended and other is not None:
            other.close()
        mine = self.transport
        if self._size <= _MOST_UNDER_WAY and mine is not None and not mine.is_closing():
            mine.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._ended = True
        if not self._waiting and self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Server(_Side):
    """The end that a server writes to."""

    asker: _Client

    def arrives(self) -> None:
        self.asker.gets_answer()


class _Client(_Side):
    """The end that a client writes to."""

    def __init__(self, delay: float, counts: Counts, host: str, port: int) -> None:
        super().__init__(delay)
        self._counts = counts
        self._target = host, port
        self._asking = 0
        self._answered = True
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._task = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        server = _Server(self._delay)
        server.asker, server.other = self, self
        await self._loop.create_connection(lambda: server, *self._target)
        self.other = server
        assert self.transport is not None
        self.transport.resume_reading()

    def passes(self, data: bytes) -> None:
        del data
        if self._answered:
            self._answered = False
            self._asking = self._counts.asked()

    def gets_answer(self) -> None:
        """The first bytes of an answer reach the client."""
        if not self._answered:
            self._answered = True
            self._counts.answered = max(self._counts.answered, self._asking)


async def serve(host: str, port: int, delay: float) -> None:
    """Stand between clients and a server until the input ends."""
    loop = asyncio.get_running_loop()
    counts = Counts()
    clients = await loop.create_server(
        partial(_Client, delay, counts, host, port), "127.0.0.1", 0, backlog=1024
    )

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(counts.taken())
        writer.close()

    askers = await asyncio.start_server(tell, "127.0.0.1", 0)
    print(*(one.sockets[0].getsockname()[1] for one in (clients, askers)), flush=True)
    await asyncio.to_thread(sys.stdin.read)


@dataclass(frozen=True, slots=True)
class Far:
    """A server that is far away."""

    endpoint: str
    counters: int
    """Port of the counters."""


@contextmanager
def proxy(endpoint: str, *, delay: float = ONE_WAY) -> Iterator[Far]:
    """A server on loopback, and some milliseconds between it and its clients."""
    host, port = endpoint.removeprefix("http://").split(":")
    command = [sys.executable, "-m", "benchmarks.proxy", host, port, str(delay)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        listening, counters = process.stdout.readline().split()
        try:
            yield Far(f"http://127.0.0.1:{listening}", int(counters))
        finally:
            process.stdin.close()


def taken(counters: int) -> dict[str, int]:
    """Requests and their depth since the last call."""
    with (
        socket.create_connection(("127.0.0.1", counters)) as connection,
        connection.makefile("rb") as answer,
    ):
        found: dict[str, int] = json.loads(answer.read())
        return found


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
