"""Values of a store as plain bytes: the interface of the official store's `_store`."""

from __future__ import annotations

from typing import Protocol

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.buffer.cpu import Buffer as PlainBuffer

from airflow_provider_icechunk.exceptions import Kind, NotFoundError


class _Values(Protocol):
    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None: ...

    async def set(self, key: str, value: Buffer) -> None: ...


class PlainValues:
    """Takes and gives bytes instead of buffers, by the same rules as the store it belongs to."""

    def __init__(self, store: _Values) -> None:
        self._behind = store

    async def get(self, key: str, byte_range: ByteRequest | None = None) -> bytes:
        """The value under `key` or a part of it; a missing one is an error, as officially."""
        found = await self._behind.get(key, byte_range=byte_range)
        if found is None:
            raise NotFoundError(f"key not found: {key}", kind=Kind.OBJECT_MISSING)
        return found.to_bytes()

    async def set(self, key: str, value: bytes) -> None:
        """Write a whole value."""
        await self._behind.set(key, PlainBuffer.from_bytes(value))
