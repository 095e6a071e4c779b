"""Chunks that Zarr asks for in one turn of the event loop, read together.

Zarr awaits many `get` calls at once. Handing each to a thread of its own costs more than reading a
small chunk, and hides that neighbours lie in one file. So requests that arrive in the same turn are
collected and answered by one call in one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Batcher(Generic[Request, Answer]):
    """Turns single awaited requests into calls of `answer_all` in a worker thread.

    If a batch fails, each of its requests is tried alone, so that only the culprit fails.
    """

    def __init__(self, answer_all: Callable[[Sequence[Request]], Sequence[Answer]]) -> None:
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
        batch = self._waiting.pop(loop)
        task = loop.create_task(self._answer(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, batch: list[tuple[Request, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await asyncio.to_thread(self._answer_all, [request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 - handed to whoever asked
            if len(batch) == 1:
                _fail(batch[0][1], error)
            else:
                for alone in batch:
                    await self._answer([alone])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
