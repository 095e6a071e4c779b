"""Zarr's way from chunks to values and back, for stores of this package.

What Zarr awaits chunk by chunk is done here for all chunks of a selection together: their
references are looked up at once, neighbours are read with one request, and codecs run in the
thread that has the bytes. Large chunks are read and decoded, encoded and stored several at once.

Zarr has one pipeline for all stores of a process. This one behaves like Zarr's own wherever the
store is another one, a codec needs an event loop, or a chunk is changed in part.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteGetter, ByteSetter, Store
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.buffer.cpu import Buffer as CpuBuffer
from zarr.core.buffer.cpu import buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline, fill_value_or_default
from zarr.core.indexing import SelectorTuple
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from airflow_provider_icechunk.engine.concurrency import THREADS, run_all
from airflow_provider_icechunk.engine.format.chunk_refs import Index, Payload
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.storage.base import Data
from airflow_provider_icechunk.engine.tree.tree import WorkingTree

from .codecs import ChunkCodecs, put_whole_chunks
from .keys import ChunkKey, parse
from .reads import length

_LARGE = 1 << 20
"""Chunks of this size are worth a thread each."""
_WINDOW = 1 << 20
"""Up to this many bytes of small chunks are read together, and the next ones are read ahead."""
_UNDER_WAY = 32 << 20
"""Bytes of large chunks that are processed at once."""
_USUAL = 10
"""Zarr's `async.concurrency`, if it was changed."""
_FEW, _LITTLE = 16, 1 << 20
"""Few enough chunks and bytes to be processed before a thread has woken up."""
_KNOWN = ("3.1.", "3.2.", "3.3.", "3.4.")
_DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"

_Given = tuple[Any, ArraySpec, SelectorTuple, SelectorTuple, bool]


def use_short_ways() -> None:
    """Make Zarr use the pipeline below, unless a non-default one was chosen.

    Only for releases whose pipeline it is known to replace.
    """
    own = f"{IcechunkCodecPipeline.__module__}.{IcechunkCodecPipeline.__qualname__}"
    register_pipeline(IcechunkCodecPipeline)
    if zarr.__version__.startswith(_KNOWN) and zarr.config.get("codec_pipeline.path") == _DEFAULT:
        zarr.config.set({"codec_pipeline.path": own})


class TreeStore(Store):
    """A store whose chunks are those of a session's tree."""

    @property
    @abstractmethod
    def tree(self) -> WorkingTree:
        """Nodes and chunks as the session sees them."""

    @abstractmethod
    def refuse_if_read_only(self) -> None:
        """Raise if nothing can be written."""


class IcechunkCodecPipeline(BatchedCodecPipeline):
    """Zarr's pipeline, with a shortcut to the chunks of a `TreeStore`."""

    @cached_property
    def _codecs(self) -> ChunkCodecs | None:
        return ChunkCodecs.of(self)

    async def read(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, SelectorTuple, SelectorTuple, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        """Fill `out` with the selected cells of chunks; returns which exist, as of Zarr 3.2."""
        given = list(batch_info)
        found = _Selection.of(given, self._codecs)
        if found is None or not _is_plain(out):
            return await super().read(given, out, drop_axes)
        reading = _Reading(found, out.as_numpy_array(), drop_axes)
        if reading.from_memory():
            there = [True] * len(given)
        else:
            there = await asyncio.to_thread(reading.run)
        return tuple({"status": "present" if one else "missing"} for one in there)

    async def write(
        self,
        batch_info: Iterable[tuple[ByteSetter, ArraySpec, SelectorTuple, SelectorTuple, bool]],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Store chunks that have the cells of `value`."""
        given = list(batch_info)
        whole = [one for one in given if one[-1]]
        found = _Selection.of(whole, self._codecs)
        if found is None or not _is_plain(value):
            await super().write(given, value, drop_axes)
            return
        found.store.refuse_if_read_only()
        writing = _Writing(found, self, value, drop_axes)
        if writing.is_quick():
            writing.run()
        else:
            await asyncio.to_thread(writing.run)
        rest = [one for one in given if not one[-1]]
        if rest:
            await super().write(rest, value, drop_axes)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk, and where its cells belong."""

    index: Index
    spec: ArraySpec
    inside: SelectorTuple
    """In the chunk."""
    outside: SelectorTuple
    """In the values that are read or written."""

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return math.prod(self.spec.shape) * self.spec.dtype.to_native_dtype().itemsize


@dataclass(frozen=True, slots=True)
class _Selection:
    """Chunks of one array of a store of this package."""

    store: TreeStore
    path: str
    codecs: ChunkCodecs
    chunks: list[_Chunk]

    @classmethod
    def of(cls, given: Sequence[_Given], codecs: ChunkCodecs | None) -> _Selection | None:
        """`None` if Zarr's own pipeline must be used."""
        if codecs is None or not given or given[0][1].prototype != buffer_prototype:
            return None
        store = getattr(given[0][0], "store", None)
        if not isinstance(store, TreeStore):
            return None
        path, chunks = None, []
        for place, spec, inside, outside, _ in given:
            key = parse(place.path) if isinstance(place, StorePath) else None
            if not isinstance(key, ChunkKey) or place.store is not store:
                return None
            if path not in {None, key.path}:
                return None
            path = key.path
            chunks.append(_Chunk(key.index, spec, inside, outside))
        assert path is not None
        return cls(store, path, codecs, chunks)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads chunks into an array."""

    selection: _Selection
    out: NDArray[Any]
    drop_axes: tuple[int, ...]

    def from_memory(self) -> bool:
        """Read everything at once if there is little and it is in memory."""
        chunks, tree = self.selection.chunks, self.selection.store.tree
        if len(chunks) > _FEW or sum(chunk.size for chunk in chunks) > _LITTLE:
            return False
        found = []
        for chunk in chunks:
            payload = tree.chunk_at_hand(self.selection.path, chunk.index)
            data = None if payload is None else tree.cached(_whole(payload))
            if data is None:
                return False
            found.append(data)
        for chunk, data in zip(chunks, found, strict=True):
            self._place(chunk, data)
        return True

    def run(self) -> list[bool]:
        """Read everything; returns for each chunk whether it is stored."""
        chunks = self.selection.chunks
        tree = self.selection.store.tree
        payloads = tree.chunks(self.selection.path, [chunk.index for chunk in chunks])
        small: list[tuple[_Chunk, Wanted]] = []
        large: list[tuple[_Chunk, Wanted]] = []
        for chunk, payload in zip(chunks, payloads, strict=True):
            if payload is None:
                self.out[chunk.outside] = fill_value_or_default(chunk.spec)
            elif chunk.size >= _LARGE:
                large.append((chunk, _whole(payload)))
            else:
                small.append((chunk, _whole(payload)))
        if sum(wanted.stop for _, wanted in small) <= _WINDOW:
            self._read(small)
        else:
            tree.read_each(
                [wanted for _, wanted in small],
                lambda place, data: self._place(small[place][0], data),
            )
        run_all(self._read_large, large, at_once=_at_once(chunk for chunk, _ in large))
        return [payload is not None for payload in payloads]

    def _read_large(self, item: tuple[_Chunk, Wanted]) -> None:
        chunk, wanted = item
        space = self._space(chunk, wanted)
        if space is None:
            self._read([item])
        else:
            self.selection.store.tree.read_into(wanted, space)

    def _space(self, chunk: _Chunk, wanted: Wanted) -> memoryview | None:
        """Where the stored bytes of a chunk can go unchanged: into the values themselves."""
        dtype = chunk.spec.dtype.to_native_dtype()
        if not chunk.spec.shape or not self.selection.codecs.are_plain(dtype):
            return None
        if not _are_slices(chunk.outside) or not _are_slices(chunk.inside):
            return None
        if chunk.inside != tuple(slice(0, length, 1) for length in chunk.spec.shape):
            return None
        target = self.out[chunk.outside]
        fits = target.shape == chunk.spec.shape and target.nbytes == wanted.stop
        if not fits or target.dtype != dtype or not target.flags.c_contiguous:
            return None
        return target.reshape(-1).view(np.uint8).data

    def _read(self, window: Sequence[tuple[_Chunk, Wanted]]) -> None:
        if not window:
            return
        found = self.selection.store.tree.read([wanted for _, wanted in window])
        for (chunk, _), data in zip(window, found, strict=True):
            self._place(chunk, data)

    def _place(self, chunk: _Chunk, data: Data) -> None:
        values = self.selection.codecs.decode(CpuBuffer.from_bytes(data), chunk.spec)
        selected = values[chunk.inside]
        self.out[chunk.outside] = selected.squeeze(self.drop_axes) if self.drop_axes else selected


@dataclass(frozen=True, slots=True)
class _Writing:
    """Writes whole chunks from an array."""

    selection: _Selection
    pipeline: BatchedCodecPipeline
    value: NDBuffer
    drop_axes: tuple[int, ...]

    def is_quick(self) -> bool:
        """Whether there is little, and it stays in memory."""
        sizes = [chunk.size for chunk in self.selection.chunks]
        if len(sizes) > _FEW or sum(sizes) > _LITTLE:
            return False
        return not self.selection.store.tree.writer.stores_at_once(sum(sizes))

    def run(self) -> None:
        """Write everything."""
        large = [chunk for chunk in self.selection.chunks if chunk.size >= _LARGE]
        small = [chunk for chunk in self.selection.chunks if chunk.size < _LARGE]
        if small:
            self._write(small)
        run_all(self._write, [[chunk] for chunk in large], at_once=_at_once(large))

    def _write(self, chunks: Sequence[_Chunk]) -> None:
        tree, path = self.selection.store.tree, self.selection.path
        whole = ((chunk.index, self._cells(chunk), chunk.spec) for chunk in chunks)
        empty = put_whole_chunks(tree, path, whole, self.selection.codecs.encode)
        if empty:
            tree.erase(path, empty)

    def _cells(self, chunk: _Chunk) -> NDBuffer:
        """All cells of a chunk: a view of the values where these match the chunk's."""
        spec = chunk.spec
        if not self.drop_axes and self.value.dtype == spec.dtype.to_native_dtype():
            cells = self.value[chunk.outside] if self.value.shape else self.value
            if cells.shape == spec.shape and _has_all_axes(chunk):
                return cells
        return self._converted(chunk)

    def _converted(self, chunk: _Chunk) -> NDBuffer:
        """A new chunk with the values, and the fill value where they have none.

        Not by Zarr's own function: where the shapes agree it leaves values in the type they have,
        so that the bytes of other records are stored, and some releases mistake dropped axes for
        kept ones.
        """
        spec, value = chunk.spec, self.value
        cells = spec.prototype.nd_buffer.create(
            shape=spec.shape,
            dtype=spec.dtype.to_native_dtype(),
            order=spec.order,
            fill_value=fill_value_or_default(spec),
        )
        if value.shape:
            value = value[chunk.outside]
        if value.shape and self.drop_axes:
            kept = (None if axis in self.drop_axes else slice(None) for axis in range(spec.ndim))
            value = value[tuple(kept)]
        cells[chunk.inside] = value
        return cells


def _has_all_axes(chunk: _Chunk) -> bool:
    """Whether no axis was indexed away; if one was, values of the chunk's shape have other axes."""
    return isinstance(chunk.outside, tuple) and len(chunk.outside) == chunk.spec.ndim


def _is_plain(values: NDBuffer) -> bool:
    """Whether parts of an array are parts of its memory; not so in masked arrays and others."""
    return type(values.as_ndarray_like()) in {np.ndarray, np.memmap}


def _are_slices(selector: SelectorTuple) -> bool:
    """Whether an index gives a view."""
    return isinstance(selector, tuple) and all(isinstance(one, slice) for one in selector)


def _at_once(chunks: Iterable[_Chunk]) -> int:
    """How many large chunks are processed at once; Zarr's `None` means no limit."""
    limit: int | None = zarr.config.get("async.concurrency")
    if limit not in {None, _USUAL}:
        return limit
    largest = max((chunk.size for chunk in chunks), default=1)
    return min(THREADS, max(_USUAL, _UNDER_WAY // largest))


def _whole(payload: Payload) -> Wanted:
    return Wanted(payload, 0, length(payload))


use_short_ways()
