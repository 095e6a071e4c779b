"""Reading ahead in packed chunk files when reads move along them.

Zarr asks for a few chunks at a time, in order. Neighbours lie in one packed file, so once reads
are seen to continue where the last one ended, the next request takes more than was asked for, twice
as much each time, and what follows is answered from memory. A read somewhere else starts anew with
exactly what was asked: random access pays nothing. What is on its way already is not asked for
again, but waited for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from airflow_provider_icechunk.format.ids import ChunkId


@dataclass(frozen=True, slots=True)
class Flight:
    """Bytes of a file that somebody is bringing."""

    start: int
    stop: int
    landed: threading.Event = field(default_factory=threading.Event)


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
        self._flights: dict[ChunkId, Flight] = {}
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
        """Up to where to read when bytes from `start` to `stop` are asked for.

        Whoever reads further than that calls `land` afterwards, whatever happened.
        """
        with self._lock:
            last = self._ends.get(chunk_id)
            goes_on = last is not None and abs(start - last) <= self.gap
            begins_next = last is None and start <= self.gap and self._window > 0
            if goes_on:
                self._window = min(max(self.first, 2 * self._window), self._widest)
            elif not begins_next:
                self._window = 0
            self._note(chunk_id, stop)
            if self._window:
                self._flights.setdefault(chunk_id, Flight(start, stop + self._window))
            return stop + self._window

    def coming(self, chunk_id: ChunkId, start: int, stop: int) -> Flight | None:
        """The request that will bring these bytes, if one is under way."""
        with self._lock:
            flight = self._flights.get(chunk_id)
            covered = flight is not None and flight.start <= start and stop <= flight.stop
            return flight if covered else None

    def land(self, chunk_id: ChunkId, start: int) -> None:
        """End the request for bytes from `start` on: what it brought is kept, or it failed."""
        with self._lock:
            flight = self._flights.get(chunk_id)
            if flight is not None and flight.start == start:
                del self._flights[chunk_id]
                flight.landed.set()

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
