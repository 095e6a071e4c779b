"""Chunk bytes: where a new chunk goes, and how the bytes of a reference are read back.

A chunk up to the inline threshold stays in its manifest. A small one joins others in a packed chunk
file: its reference is known at once, its bytes wait in memory until the pack is full or the session
flushes. A large one gets a file of its own. If the process dies, packs that were not flushed were
never referenced by anything stored, and written ones are garbage for the collector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, StorageError
from airflow_provider_icechunk.format.generations.base import Layout
from airflow_provider_icechunk.format.ids import ChunkId
from airflow_provider_icechunk.format.references import Inline, Native, Payload, Virtual
from airflow_provider_icechunk.repository.cache import WeightedCache
from airflow_provider_icechunk.repository.readahead import ReadAhead
from airflow_provider_icechunk.storage.base import Bounded, Data, Put, Storage, read_into
from airflow_provider_icechunk.virtual.fetch import VirtualReader


@dataclass(frozen=True, slots=True)
class Packing:
    """When and how small chunks share a file."""

    below: int = 1 << 20
    """Chunks smaller than this are packed; 0 gives every chunk its own file."""
    target: int = 8 << 20
    """A pack is closed when it has grown to this size."""
    pending: int = 64 << 20
    """Closed packs are written when together they hold this much memory."""


class ChunkWriter:
    """Puts new chunks of one session where they belong. Safe to use from many threads."""

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        *,
        inline_up_to: int,
        packing: Packing,
        new_id: Callable[[], ChunkId],
        storing: Callable[[], None] | None = None,
    ) -> None:
        self._storage = storage
        self._layout = layout
        self._inline_up_to = inline_up_to
        self._packing = packing
        self._new_id = new_id
        self._storing = storing
        self._lock = threading.Lock()
        self._open_id: ChunkId | None = None
        self._open = bytearray()
        self._closed: dict[ChunkId, bytes] = {}
        self._closed_size = 0

    def write(self, data: Data) -> Payload:
        """Take a chunk and say how to refer to it. Packed bytes are stored by `flush`."""
        size = len(data)
        if not size:
            raise InvalidInputError(
                "a chunk of zero bytes cannot be stored: no codec decodes it; delete the chunk "
                "instead, it then reads as the fill value",
                kind=Kind.INVALID_ARGUMENT,
            )
        if size <= self._inline_up_to:
            return Inline(bytes(data))
        if size < self._packing.below:
            return self._pack(data)
        chunk_id = self._new_id()
        self._store([Put(self._layout.chunk(chunk_id), data)])
        return Native(chunk_id, 0, size)

    def pending_range(self, chunk_id: ChunkId, start: int, stop: int) -> bytes | None:
        """Some bytes of a pack that is not stored yet."""
        with self._lock:
            if chunk_id == self._open_id:
                return bytes(memoryview(self._open)[start:stop])
            closed = self._closed.get(chunk_id)
            return None if closed is None else closed[start:stop]

    def stores_at_once(self, size: int) -> bool:
        """Whether `write` of a chunk of this size would touch the storage."""
        if size <= self._inline_up_to:
            return False
        full = self._closed_size + len(self._open) + size >= self._packing.pending
        return size >= self._packing.below or full

    def flush(self) -> None:
        """Store everything that waits. After `settle` of the storage it is durable."""
        with self._lock:
            self._close()
            self._store_closed()

    def _pack(self, data: Data) -> Native:
        with self._lock:
            if self._open_id is None:
                self._open_id = self._new_id()
            reference = Native(self._open_id, len(self._open), len(data))
            self._open += data
            if len(self._open) >= self._packing.target:
                self._close()
                if self._closed_size >= self._packing.pending:
                    self._store_closed()
            return reference

    def _close(self) -> None:
        if self._open_id is not None:
            self._closed[self._open_id] = bytes(self._open)
            self._closed_size += len(self._open)
            self._open_id, self._open = None, bytearray()

    def _store_closed(self) -> None:
        if not self._closed:
            return
        self._store(
            [Put(self._layout.chunk(chunk_id), data) for chunk_id, data in self._closed.items()]
        )
        self._closed = {}
        self._closed_size = 0

    def _store(self, files: Sequence[Put]) -> None:
        if self._storing is not None:
            self._storing()
        self._storage.put_many(files)


_Span = tuple[ChunkId, int, int]
"""A range of a chunk file."""
_SMALL = 1 << 20
"""Larger reads are worth a request each: nothing is read beyond their end."""
_LONGEST_FLIGHT = 60.0
"""After so many seconds bytes that others are bringing are asked for again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range of one chunk."""

    payload: Payload
    start: int
    stop: int

    @property
    def is_large(self) -> bool:
        """Whether reading it takes long enough to be worth a thread."""
        return not isinstance(self.payload, Inline) and self.stop - self.start >= _SMALL


@dataclass(frozen=True, slots=True)
class _Request:
    """One ranged read that serves several wanted pieces."""

    chunk_id: ChunkId
    start: int
    stop: int
    pieces: tuple[int, ...]


class ChunkReader:
    """Reads bytes of references. Only an absent reference is a missing chunk; all else raises.

    :param kept_bytes: how much of what was read is kept in memory for the next reader.
    """

    gap = 256 << 10
    """Ranges of one file that are at most this far apart are read as one."""
    widest = 32 << 20
    """A joined read does not grow beyond this."""

    def __init__(
        self, storage: Storage, layout: Layout, virtual: VirtualReader, *, kept_bytes: int = 0
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
        """Put the bytes of a wanted range where they stay; `space` has the size of the range."""
        native = wanted.payload
        if isinstance(native, Native) and self.at_hand(wanted, writer) is None:
            key = self._layout.chunk(native.chunk_id)
            start = native.offset + wanted.start
            size = read_into(self._storage, key, start, space)
            if size is None or size < len(space):
                raise self._lost(key, size)
            if self._kept is not None:
                self._kept.put((native.chunk_id, start, start + len(space)), bytes(space))
        else:
            space[:] = self.read(wanted, writer)

    def at_hand(self, wanted: Wanted, writer: ChunkWriter) -> bytes | None:
        """The bytes of a range if they are in memory."""
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
        """The bytes of many ranges with as few requests as neighbouring ranges allow."""
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

    def _read_natives(self, spans: dict[int, _Span]) -> dict[int, bytes]:
        """Bytes from memory, from the storage, and from what others are bringing meanwhile.

        Nobody waits while others wait for him: own requests come first.
        """
        found = self._at_hand(spans)
        left = {place: span for place, span in spans.items() if place not in found}
        flights = {place: self._ahead.coming(*span) for place, span in left.items()}
        found |= self._fetch({place: left[place] for place in left if flights[place] is None})
        awaited = {place: left[place] for place in left if place not in found}
        for flight in filter(None, flights.values()):
            flight.landed.wait(_LONGEST_FLIGHT)
        found |= self._at_hand(awaited)
        return found | self._fetch({p: span for p, span in awaited.items() if p not in found})

    def _at_hand(self, spans: dict[int, _Span]) -> dict[int, bytes]:
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
        state = "missing" if size is None else "shorter than its reference says"
        return StorageError(
            f"the chunk file {key} in {self._storage.location} is {state}: it was collected while "
            "in use, or the storage lost bytes; run `verify` on it",
            kind=Kind.OBJECT_MISSING,
        )

    def _read_until(self, request: _Request) -> int:
        """Where a request ends: further than asked for where small chunks are read in order."""
        if request.stop - request.start >= _SMALL:
            return request.stop
        return self._ahead.extend(request.chunk_id, request.start, request.stop)


def coalesce(spans: dict[int, _Span], *, gap: int, widest: int) -> list[_Request]:
    """Join ranges of one file that lie close together. Pure: the result is the plan of reads."""
    plan: list[tuple[ChunkId, int, int, list[int]]] = []
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
