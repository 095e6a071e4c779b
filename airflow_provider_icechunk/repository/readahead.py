"""Reading ahead in packed chunk files when reads move along them.

Zarr asks for a few chunks at a time, in order. Neighbours lie in one packed file, so once reads
are seen to continue where the last one ended, the next request takes more than was asked for, twice
as much each time, and what follows is answered from memory. A read somewhere else starts anew with
exactly what was asked: random access pays nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from airflow_provider_icechunk.format.ids import ChunkId


class ReadAhead:
    """Remembers where reads ended and what was read beyond them. Safe to use from many threads.

    :param widest: most bytes that one request takes beyond what was asked for.
    :param memory: most bytes that are kept.
    """

    first = 512 << 10
    gap = 64 << 10
    """A read that starts this near to where the last one ended goes on with it."""

    def __init__(self, *, widest: int = 8 << 20, memory: int = 64 << 20) -> None:
        self._widest = widest
        self._memory = memory
        self._kept: OrderedDict[ChunkId, tuple[int, bytes]] = OrderedDict()
        self._size = 0
        self._ends: OrderedDict[ChunkId, int] = OrderedDict()
        self._window = 0
        self._lock = threading.Lock()

    def find(self, chunk_id: ChunkId, start: int, stop: int) -> bytes | None:
        """Bytes that an earlier request brought along."""
        with self._lock:
            kept = self._kept.get(chunk_id)
            if kept is None:
                return None
            first, data = kept
            if start < first or stop > first + len(data):
                return None
            self._kept.move_to_end(chunk_id)
            self._note(chunk_id, stop)
            return data[start - first : stop - first]

    def extend(self, chunk_id: ChunkId, start: int, stop: int) -> int:
        """Up to where to read when bytes from `start` to `stop` are asked for."""
        with self._lock:
            last = self._ends.get(chunk_id)
            goes_on = last is not None and abs(start - last) <= self.gap
            begins_next = last is None and start <= self.gap and self._window > 0
            if goes_on:
                self._window = min(max(self.first, 2 * self._window), self._widest)
            elif not begins_next:
                self._window = 0
            self._note(chunk_id, stop)
            return stop + self._window

    def keep(self, chunk_id: ChunkId, start: int, data: bytes) -> None:
        """Remember what a request brought."""
        if len(data) > self._memory:
            return
        with self._lock:
            self._drop(chunk_id)
            self._kept[chunk_id] = (start, data)
            self._size += len(data)
            while self._size > self._memory:
                self._drop(next(iter(self._kept)))

    def _note(self, chunk_id: ChunkId, stop: int) -> None:
        self._ends.pop(chunk_id, None)
        self._ends[chunk_id] = stop
        if len(self._ends) > 1024:
            self._ends.popitem(last=False)

    def _drop(self, chunk_id: ChunkId) -> None:
        kept = self._kept.pop(chunk_id, None)
        if kept is not None:
            self._size -= len(kept[1])
