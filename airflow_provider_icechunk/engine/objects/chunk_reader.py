"""Reading chunks: neighbours in one request, packed files ahead of time.

Zarr requests a few chunks at a time, in order. Neighbours are in one packed file, so when a read
continues where the last one ended, the next request reads ahead, twice as far each time, and later
reads are served from memory. A read elsewhere starts again with exactly the requested bytes, so
random access costs nothing extra. Bytes that another thread is already reading are awaited, not
requested again.

A large selection becomes one flat list of ranges instead (`read_each`): as many as the storage
allows are under way, and each is handed over when it arrives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_icechunk.engine.concurrency import THREADS, PerProcess, run_all
from airflow_provider_icechunk.engine.format.chunk_refs import Inline, Native, Payload, Virtual
from airflow_provider_icechunk.engine.format.codec import Layout
from airflow_provider_icechunk.engine.format.ids import ChunkId
from airflow_provider_icechunk.engine.storage.base import Bounded, Data, Readable, read_into
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.exceptions import Kind, StorageError

from .cache import WeightedCache
from .chunk_writer import ChunkWriter


@dataclass(frozen=True, slots=True)
class Flight:
    """Bytes of a file that some thread is reading."""

    start: int
    stop: int
    landed: threading.Event = field(default_factory=threading.Event)


class ReadAhead:
    """Remembers where reads ended and what was read ahead. Thread-safe.

    :param widest: maximum number of bytes that one request reads ahead.
    :param memory: maximum number of bytes kept.
    """

    first = 512 << 10
    gap = 64 << 10
    """A read that starts this close to the end of the last one continues it."""

    def __init__(self, *, widest: int = 8 << 20, memory: int = 64 << 20) -> None:
        self._widest = widest
        self._memory = memory
        self._kept: OrderedDict[ChunkId, tuple[int, bytes]] = OrderedDict()
        self._size = 0
        self._ends: OrderedDict[ChunkId, int] = OrderedDict()
        self._flights: dict[ChunkId, Flight] = {}
        self._window = 0
        self._lock = PerProcess(threading.Lock)

    def find(self, chunk_id: ChunkId, start: int, stop: int) -> bytes | None:
        """Bytes that an earlier request read ahead."""
        with self._lock.get():
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
        """How far to read when bytes from `start` to `stop` are requested.

        A caller that reads ahead must call `land` afterwards, even on failure.
        """
        with self._lock.get():
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
        """The running request that covers these bytes, if there is one."""
        with self._lock.get():
            flight = self._flights.get(chunk_id)
            covered = flight is not None and flight.start <= start and stop <= flight.stop
            return flight if covered else None

    def land(self, chunk_id: ChunkId, start: int) -> None:
        """End the request for bytes from `start` on, whether it succeeded or failed."""
        with self._lock.get():
            flight = self._flights.get(chunk_id)
            if flight is not None and flight.start == start:
                del self._flights[chunk_id]
                flight.landed.set()

    def keep(self, chunk_id: ChunkId, start: int, data: bytes) -> None:
        """Keep the bytes of a request."""
        if len(data) > self._memory:
            return
        with self._lock.get():
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


_Span = tuple[ChunkId, int, int]
"""A range of a chunk file."""
_SMALL = 1 << 20
"""Larger reads are worth a request each, without read-ahead."""
_LONGEST_FLIGHT = 60.0
"""Seconds after which bytes that another thread is reading are requested again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range of one chunk."""

    payload: Payload
    start: int
    stop: int

    @property
    def is_large(self) -> bool:
        """Whether reading it is worth a thread."""
        return not isinstance(self.payload, Inline) and self.stop - self.start >= _SMALL


Take = Callable[[int, Data], None]
"""Gets the position of a wanted range and its bytes, in any thread and in any order."""


@dataclass(frozen=True, slots=True)
class _Request:
    """One ranged read that serves several wanted ranges."""

    chunk_id: Any
    """What the range belongs to: a chunk file, or a foreign one."""
    start: int
    stop: int
    pieces: tuple[int, ...]


class ChunkReader:
    """Reads the bytes of references. A missing file is an error, not a missing chunk.

    :param kept_bytes: size of the cache of chunk bytes.
    """

    gap = 256 << 10
    """Ranges of one file at most this far apart are read in one request."""
    widest = 32 << 20
    """Maximum size of such a request."""
    under_way = 32 << 20
    """Maximum number of bytes of requests that are under way for one selection."""
    always_under_way = 8 << 20
    """At least this many, even if that is a lot compared with what is read."""
    lanes = 8
    """The minimum number of those requests, if there is enough to read."""

    def __init__(
        self, storage: Readable, layout: Layout, virtual: VirtualReader, *, kept_bytes: int = 0
    ) -> None:
        self._storage = storage
        self._layout = layout
        self._virtual = virtual
        self._ahead = ReadAhead()
        self._kept = WeightedCache[_Span, bytes](kept_bytes, len) if kept_bytes else None

    def read(self, wanted: Wanted, writer: ChunkWriter | None = None) -> bytes:
        """The bytes of one wanted range."""
        return self.read_many([wanted], writer)[0]

    def read_into(self, wanted: Wanted, writer: ChunkWriter, space: memoryview) -> None:
        """Read a wanted range into `space`, which has its size."""
        native = wanted.payload
        if isinstance(native, Native) and self.cached(wanted, writer) is None:
            key = self._layout.chunk(native.chunk_id)
            start = native.offset + wanted.start
            size = read_into(self._storage, key, start, space)
            if size is None or size < len(space):
                raise self._lost(key, size)
            if self._kept is not None:
                self._kept.put((native.chunk_id, start, start + len(space)), bytes(space))
        else:
            space[:] = self.read(wanted, writer)

    def cached(self, wanted: Wanted, writer: ChunkWriter) -> bytes | None:
        """The bytes of a range, if they are in memory."""
        match wanted.payload:
            case Inline(data):
                return data[wanted.start : wanted.stop]
            case Native(chunk_id, offset):
                span = chunk_id, offset + wanted.start, offset + wanted.stop
                waiting = writer.pending_range(*span)
                return self._in_memory(span) if waiting is None else waiting
            case Virtual():
                return None

    def read_many(self, wanted: Sequence[Wanted], writer: ChunkWriter | None = None) -> list[bytes]:
        """The bytes of many ranges, with neighbouring ranges joined into one request."""
        found: dict[int, bytes] = {}
        natives: dict[int, _Span] = {}
        virtuals: dict[int, tuple[Virtual, int, int]] = {}
        for position, want in enumerate(wanted):
            match want.payload:
                case Inline(data):
                    found[position] = data[want.start : want.stop]
                case Virtual() as virtual:
                    virtuals[position] = (virtual, want.start, want.stop)
                case Native() as native:
                    start, stop = native.offset + want.start, native.offset + want.stop
                    waiting = (
                        None
                        if writer is None
                        else writer.pending_range(native.chunk_id, start, stop)
                    )
                    if waiting is None:
                        natives[position] = (native.chunk_id, start, stop)
                    else:
                        found[position] = waiting
        if virtuals:
            answers = self._virtual.read_many(list(virtuals.values()))
            found |= dict(zip(virtuals, answers, strict=True))
        if natives:
            found |= self._read_natives(natives)
        return [found[position] for position in range(len(wanted))]

    def read_each(self, wanted: Sequence[Wanted], writer: ChunkWriter, take: Take) -> None:
        """Read many ranges with all requests in flight at once; each is processed when it arrives.

        Memory is bounded by what is in flight, however much is requested.
        """
        natives: dict[int, _Span] = {}
        virtuals: dict[int, tuple[int, int, int]] = {}
        foreign: dict[tuple[str, Any], int] = {}
        for position, want in enumerate(wanted):
            payload = want.payload
            if isinstance(payload, Virtual):
                number = foreign.setdefault((payload.location, payload.checksum), len(foreign))
                start, stop = payload.offset + want.start, payload.offset + want.stop
                virtuals[position] = (number, start, stop)
                continue
            data = self.cached(want, writer)
            if data is not None:
                take(position, data)
                continue
            assert isinstance(payload, Native)
            start, stop = payload.offset + want.start, payload.offset + want.stop
            natives[position] = (payload.chunk_id, start, stop)
        files = list(foreign)
        spans_of_all = [*natives.values(), *virtuals.values()]
        room = self._room(sum(stop - start for _, start, stop in spans_of_all))

        def bring(request: _Request) -> None:
            spans = natives if isinstance(request.chunk_id, bytes) else virtuals
            if isinstance(request.chunk_id, bytes):
                data = self._bring_one(request)
            else:
                location, checksum = files[request.chunk_id]
                size = request.stop - request.start
                data = self._virtual.read(Virtual(location, request.start, size, checksum))
            whole = memoryview(data)
            for position in request.pieces:
                _, first, last = spans[position]
                piece = whole[first - request.start : last - request.start]
                if self._kept is not None and position in natives:
                    self._kept.put(natives[position], bytes(piece))
                take(position, piece)

        requests = [
            request
            for spans in (natives, virtuals)
            for request in coalesce(spans, gap=self.gap, widest=room // self.lanes)
        ]
        largest = max((one.stop - one.start for one in requests), default=1)
        lanes = min(max(4, room // max(1, largest)), THREADS)
        run_all(bring, requests, at_once=lanes)

    def _room(self, wanted: int) -> int:
        """How many bytes may be under way for `wanted` bytes; briefly, they are in memory twice."""
        return min(max(wanted // 8, self.always_under_way), self.under_way)

    def _bring_one(self, request: _Request) -> bytes:
        key, size = self._layout.chunk(request.chunk_id), request.stop - request.start
        answer = self._storage.get(key, Bounded(request.start, request.stop))
        if answer is None or len(answer.data) < size:
            raise self._lost(key, None if answer is None else len(answer.data))
        return answer.data

    def _read_natives(self, spans: dict[int, _Span]) -> dict[int, bytes]:
        """Bytes from memory, from the storage, and from other threads' running requests.

        Own requests come first: a thread must not wait while others wait for it.
        """
        found = self._cached(spans)
        left = {place: span for place, span in spans.items() if place not in found}
        flights = {place: self._ahead.coming(*span) for place, span in left.items()}
        found |= self._fetch({place: left[place] for place in left if flights[place] is None})
        awaited = {place: left[place] for place in left if place not in found}
        for flight in filter(None, flights.values()):
            flight.landed.wait(_LONGEST_FLIGHT)
        found |= self._cached(awaited)
        return found | self._fetch({p: span for p, span in awaited.items() if p not in found})

    def _cached(self, spans: dict[int, _Span]) -> dict[int, bytes]:
        brought = {position: self._in_memory(span) for position, span in spans.items()}
        return {position: data for position, data in brought.items() if data is not None}

    def _in_memory(self, span: _Span) -> bytes | None:
        kept = None if self._kept is None else self._kept.peek(span)
        return self._ahead.find(*span) if kept is None else kept

    def _fetch(self, spans: dict[int, _Span]) -> dict[int, bytes]:
        if not spans:
            return {}
        requests = coalesce(spans, gap=self.gap, widest=self.widest)
        stops = [self._read_until(request) for request in requests]
        try:
            return self._bring(spans, requests, stops)
        finally:
            for request in requests:
                self._ahead.land(request.chunk_id, request.start)

    def _bring(
        self, spans: dict[int, _Span], requests: list[_Request], stops: list[int]
    ) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        fetched = self._storage.get_many(
            [
                (self._layout.chunk(request.chunk_id), Bounded(request.start, stop))
                for request, stop in zip(requests, stops, strict=True)
            ]
        )
        for request, stop, answer in zip(requests, stops, fetched, strict=True):
            if answer is None or len(answer.data) < request.stop - request.start:
                size = None if answer is None else len(answer.data)
                raise self._lost(self._layout.chunk(request.chunk_id), size)
            if stop > request.stop:
                self._ahead.keep(request.chunk_id, request.start, answer.data)
            for position in request.pieces:
                _, first, last = spans[position]
                found[position] = answer.data[first - request.start : last - request.start]
                if self._kept is not None:
                    self._kept.put(spans[position], found[position])
        return found

    def _lost(self, key: str, size: int | None) -> StorageError:
        state = "missing" if size is None else "shorter than its reference"
        return StorageError(
            f"the chunk file {key} in {self._storage.location} is {state}: it was collected while "
            "in use, or the storage lost data; run `verify`",
            kind=Kind.OBJECT_MISSING,
        )

    def _read_until(self, request: _Request) -> int:
        """Where a request ends; later than requested if small chunks are read in order."""
        if request.stop - request.start >= _SMALL:
            return request.stop
        return self._ahead.extend(request.chunk_id, request.start, request.stop)


def coalesce(spans: Mapping[int, tuple[Any, int, int]], *, gap: int, widest: int) -> list[_Request]:
    """Plan requests that join nearby ranges of one file. Pure."""
    plan: list[tuple[Any, int, int, list[int]]] = []
    for position, (chunk_id, start, stop) in sorted(spans.items(), key=lambda item: item[1]):
        if plan:
            last_id, first, end, pieces = plan[-1]
            joined = max(stop, end)
            if last_id == chunk_id and start <= end + gap and joined - first <= widest:
                pieces.append(position)
                plan[-1] = (chunk_id, first, joined, pieces)
                continue
        plan.append((chunk_id, start, stop, [position]))
    return [
        _Request(chunk_id, start, stop, tuple(pieces)) for chunk_id, start, stop, pieces in plan
    ]
