"""Storing chunks: inline, packed with others, or in a file of their own.

A chunk up to the inline threshold stays in its manifest. A small one joins others in a packed chunk
file: its reference is known at once; its bytes wait in memory until the pack is full or the session
flushes. On a network a full pack is stored while the next one is filled. A large one gets a file of
its own. If the process dies, packs that were not flushed were never referenced by anything stored,
and written ones are garbage for the collector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_provider_icechunk.engine.concurrency import Background, PerProcess
from airflow_provider_icechunk.engine.format.chunk_refs import Inline, Native, Payload
from airflow_provider_icechunk.engine.format.codec import Layout
from airflow_provider_icechunk.engine.format.ids import ChunkId
from airflow_provider_icechunk.engine.storage.base import Data, Put, Storage
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind


@dataclass(frozen=True, slots=True)
class Packing:
    """How small chunks share files."""

    below: int = 1 << 20
    """Chunks smaller than this are packed; 0 gives every chunk its own file."""
    target: int = 8 << 20
    """A pack is closed at this size."""
    pending: int = 64 << 20
    """Writers wait while closed packs that are not stored yet exceed this total size."""


class ChunkWriter:
    """Stores the new chunks of one session. Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        *,
        inline_up_to: int,
        packing: Packing,
        new_id: Callable[[], ChunkId],
        storing: Callable[[], None] | None = None,
        background: bool = True,
    ) -> None:
        self._storage = storage
        self._layout = layout
        self._inline_up_to = inline_up_to
        self._packing = packing
        self._new_id = new_id
        self._storing = storing
        self._background = background
        self._lock = PerProcess(threading.Lock)
        self._open_id: ChunkId | None = None
        self._open = bytearray()
        self._closed: dict[ChunkId, bytes] = {}
        """Packs that are not known to be stored."""
        self._closed_size = 0
        self._sent: dict[ChunkId, Background[None]] = {}

    def write(self, data: Data) -> Payload:
        """Accept a chunk and return its reference. Packed bytes are stored by `flush`."""
        size = len(data)
        if not size:
            raise InvalidInputError(
                "an empty chunk cannot be stored: no codec decodes it; delete the chunk "
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
        """Bytes of a pack that is not stored yet."""
        with self._lock.get():
            if chunk_id == self._open_id:
                return bytes(memoryview(self._open)[start:stop])
            closed = self._closed.get(chunk_id)
            return None if closed is None else closed[start:stop]

    def stores_at_once(self, size: int) -> bool:
        """Whether `write` of a chunk of this size would access the storage."""
        if size <= self._inline_up_to:
            return False
        full = self._closed_size + len(self._open) + size >= self._packing.pending
        return size >= self._packing.below or full

    def begin_flush(self) -> None:
        """Start storing everything pending."""
        with self._lock.get():
            self._close(wait=not self._background)

    def flush(self) -> None:
        """Store everything pending. It is durable after the storage's `settle`."""
        with self._lock.get():
            self._close(wait=True)
            self._wait(0)

    def _pack(self, data: Data) -> Native:
        with self._lock.get():
            if self._open_id is None:
                self._open_id = self._new_id()
            reference = Native(self._open_id, len(self._open), len(data))
            self._open += data
            if len(self._open) >= self._packing.target:
                self._close()
                self._wait(self._packing.pending)
            return reference

    def _close(self, *, wait: bool = False) -> None:
        """Send the open pack, and any that an error left behind.

        :param wait: whether packs are stored now if they are not sent in the background.
        """
        if self._open_id is not None:
            self._closed[self._open_id] = bytes(self._open)
            self._closed_size += len(self._open)
            self._open_id, self._open = None, bytearray()
        unsent = [chunk_id for chunk_id in self._closed if chunk_id not in self._sent]
        if not self._background:
            if unsent and (wait or self._closed_size >= self._packing.pending):
                layout = self._layout
                self._store([Put(layout.chunk(one), self._closed[one]) for one in unsent])
                for one in unsent:
                    self._forget(one)
            return
        for chunk_id in unsent:
            put = Put(self._layout.chunk(chunk_id), self._closed[chunk_id])
            if self._storing is not None:
                self._storing()
            self._sent[chunk_id] = Background(partial(self._storage.put_many, [put]))

    def _wait(self, most: int) -> None:
        """Record stored packs, and wait for more while too many bytes are in flight."""
        for chunk_id, sent in list(self._sent.items()):
            if sent.is_done or self._closed_size > most:
                # One that fails is sent again by the next flush.
                del self._sent[chunk_id]
                sent.result()
                self._forget(chunk_id)

    def _forget(self, chunk_id: ChunkId) -> None:
        self._closed_size -= len(self._closed.pop(chunk_id))

    def _store(self, files: Sequence[Put]) -> None:
        if self._storing is not None:
            self._storing()
        self._storage.put_many(files)
