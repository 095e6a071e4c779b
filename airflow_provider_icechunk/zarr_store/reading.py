"""Reading chunks for Zarr: which bytes a request means, and what is read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
)

from airflow_provider_icechunk.format.references import Inline, Payload
from airflow_provider_icechunk.repository.chunks import Wanted
from airflow_provider_icechunk.repository.working_tree import WorkingTree
from airflow_provider_icechunk.zarr_store.batching import Later
from airflow_provider_icechunk.zarr_store.keys import ChunkKey


@dataclass(frozen=True, slots=True)
class Ask:
    """A chunk, or a part of it, that Zarr wants."""

    key: ChunkKey
    byte_range: ByteRequest | None


@dataclass(frozen=True, slots=True)
class ChunkReads:
    """The chunks of one tree; `None` for a chunk that was never written."""

    tree: WorkingTree

    def at_hand(self, ask: Ask) -> bytes | None:
        """A chunk that is in memory; `None` where finding out needs a thread."""
        payload = self.tree.chunk_at_hand(ask.key.path, ask.key.index)
        if payload is None:
            return None
        return self.tree.at_hand(Wanted(payload, *span(ask.byte_range, length(payload))))

    def together(self, asked: Sequence[Ask]) -> list[bytes | None]:
        """All of them at once, with as few requests as their places allow."""
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
    """Where the asked part of a value of `size` bytes begins and ends."""
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
