"""Read the chunks that Zarr requests in one turn of the event loop together.

Zarr awaits many `get` calls at once. Handing each to a thread of its own costs more than reading a
small chunk, and hides that neighbours are in one file. So requests that arrive in the same turn are
collected and answered by one call in one thread. Large chunks are different: each is worth a
thread, and waiting for the slowest of a batch would leave the decoder idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from airflow_provider_icechunk.engine.concurrency import submit
from airflow_provider_icechunk.engine.format.chunk_refs import Inline, Payload
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.tree.tree import WorkingTree

from .keys import ChunkKey

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Later(Generic[Answer]):
    """A slow answer: computed in a thread of its own, and returned when it is ready."""

    find: Callable[[], Answer]


class Batcher(Generic[Request, Answer]):
    """Turns single awaited requests into calls of `answer_all` in a worker thread.

    If a batch fails, each of its requests is tried separately, so that only the faulty one fails.
    """

    def __init__(
        self, answer_all: Callable[[Sequence[Request]], Sequence[Answer | Later[Answer]]]
    ) -> None:
        self._answer_all = answer_all
        self._waiting: WeakKeyDictionary[
            asyncio.AbstractEventLoop, list[tuple[Request, asyncio.Future[Answer]]]
        ] = WeakKeyDictionary()
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, request: Request) -> Answer:
        """The answer to one request."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        waiting.append((request, future))
        if len(waiting) == 1:
            loop.call_soon(self._dispatch, loop)
        return await future

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._start(loop, self._answer(self._waiting.pop(loop)))

    def _start(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, None]
    ) -> None:
        task = loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, batch: list[tuple[Request, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await asyncio.to_thread(self._answer_all, [request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 - handed to the caller
            if len(batch) == 1:
                _fail(batch[0][1], error)
            else:
                for alone in batch:
                    await self._answer([alone])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Later):
                self._start(asyncio.get_running_loop(), _answer_later(answer, future))
            elif not future.done():
                future.set_result(answer)


async def _answer_later(later: Later[Answer], future: asyncio.Future[Answer]) -> None:
    try:
        answer = await asyncio.wrap_future(submit(later.find))
    except Exception as error:  # noqa: BLE001 - handed to the caller
        _fail(future, error)
    else:
        if not future.done():
            future.set_result(answer)


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


@dataclass(frozen=True, slots=True)
class Ask:
    """A chunk, or a part of it, that Zarr wants."""

    key: ChunkKey
    byte_range: ByteRequest | None


@dataclass(frozen=True, slots=True)
class ChunkReads:
    """The chunks of one tree; `None` for a chunk that was never written."""

    tree: WorkingTree

    def cached(self, ask: Ask) -> bytes | None:
        """A chunk that is in memory; `None` where finding out needs a thread."""
        payload = self.tree.chunk_at_hand(ask.key.path, ask.key.index)
        if payload is None:
            return None
        return self.tree.cached(Wanted(payload, *span(ask.byte_range, length(payload))))

    def together(self, asked: Sequence[Ask]) -> list[bytes | None]:
        """All of them at once, with as few requests as possible."""
        wanted = self._wanted(asked)
        found = dict(zip(wanted, self.tree.read(list(wanted.values())), strict=True))
        return [found.get(position) for position in range(len(asked))]

    def large_apart(self, asked: Sequence[Ask]) -> list[bytes | Later[bytes | None] | None]:
        """Small chunks together; large ones, if there are several, each by itself."""
        wanted = self._wanted(asked)
        large = {place: want for place, want in wanted.items() if want.is_large}
        if len(large) < 2:
            large = {}
        small = {place: want for place, want in wanted.items() if place not in large}
        found: dict[int, bytes | Later[bytes | None]] = {}
        found |= zip(small, self.tree.read(list(small.values())), strict=True)
        found |= {place: Later(partial(self._one, want)) for place, want in large.items()}
        return [found.get(position) for position in range(len(asked))]

    def _one(self, wanted: Wanted) -> bytes | None:
        return self.tree.read([wanted])[0]

    def _wanted(self, asked: Sequence[Ask]) -> dict[int, Wanted]:
        wanted: dict[int, Wanted] = {}
        for position, ask in enumerate(asked):
            payload = self.tree.chunk(ask.key.path, ask.key.index)
            if payload is not None:
                start, stop = span(ask.byte_range, length(payload))
                wanted[position] = Wanted(payload, start, stop)
        return wanted


def span(byte_range: ByteRequest | None, size: int) -> tuple[int, int]:
    """Start and end of the requested part of a value of `size` bytes."""
    match byte_range:
        case None:
            return 0, size
        case RangeByteRequest(start, end):
            return min(start, size), min(end, size)
        case OffsetByteRequest(offset):
            return min(offset, size), size
        case SuffixByteRequest(suffix):
            return max(0, size - suffix), size
        case _:
            raise TypeError(f"Unexpected byte_range, got {byte_range}.")


def length(payload: Payload) -> int:
    """Bytes of a chunk."""
    return len(payload.data) if isinstance(payload, Inline) else payload.length
