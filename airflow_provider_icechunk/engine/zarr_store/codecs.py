"""Call Zarr's codecs directly: one chunk after the other, in the thread that has it.

Zarr's own pipeline awaits each codec for each chunk, with a thread for each compression. For small
chunks that costs more than the work itself. Its codecs say (`SupportsSyncCodec`) when they can be
called without an event loop; chains in which all of them can are run here, with the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin, Codec
from zarr.codecs import BytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.codec_pipeline import fill_value_or_default

from airflow_provider_icechunk.engine.format.chunk_refs import Index
from airflow_provider_icechunk.engine.tree.tree import WorkingTree

from .releases import byte_order

try:
    from zarr.abc.codec import SupportsSyncCodec
except ImportError:  # Zarr before 3.1.6
    SupportsSyncCodec = None  # type: ignore[assignment, misc]

WholeChunk = tuple[Index, NDBuffer, ArraySpec]
Encode = Callable[[NDBuffer, ArraySpec], Buffer | None]
_Step = tuple[Any, ArraySpec]
_TWINS = (
    ("_decode_sync", ("_decode_single", "decode")),
    ("_encode_sync", ("_encode_single", "encode")),
)
"""What is called here, and what Zarr's own pipeline awaits."""


@dataclass(frozen=True, slots=True)
class ChunkCodecs:
    """The codecs of one array."""

    codecs: tuple[Codec, ...]
    _chains: dict[tuple[int, ...], tuple[_Step, ...]] = field(default_factory=dict)
    """Steps by the shape of a chunk, which is all that differs between chunks of an array."""

    @classmethod
    def of(cls, codecs: Iterable[Codec]) -> ChunkCodecs | None:
        """`None` if one of them needs an event loop, or reads parts of chunks itself."""
        chain = tuple(codecs)
        if SupportsSyncCodec is None or not all(
            isinstance(codec, SupportsSyncCodec)
            and not isinstance(codec, ArrayBytesCodecPartialDecodeMixin)
            and _is_alike(codec)
            for codec in chain
        ):
            return None
        return cls(chain)

    def are_plain(self, dtype: np.dtype[Any]) -> bool:
        """Whether stored bytes are those of a C-contiguous array in memory."""
        (codec, *others) = self.codecs
        if others or not isinstance(codec, BytesCodec) or dtype.hasobject:
            return False
        order = byte_order(codec)
        return dtype.itemsize == 1 or (order == sys.byteorder and dtype.isnative)

    def decode(self, data: Buffer, spec: ArraySpec) -> NDArray[Any]:
        """The values in the bytes of a chunk."""
        value: Any = data
        for codec, seen in reversed(self._chain(spec)):
            value = codec._decode_sync(value, seen)
        array: NDArray[Any] = value.as_numpy_array()
        return array

    def encode(self, chunk: NDBuffer, spec: ArraySpec) -> Buffer | None:
        """The bytes of a chunk; `None` if a codec has nothing to store."""
        value: Any = chunk
        for codec, seen in self._chain(spec):
            if isinstance(codec, ArrayBytesCodec):
                value = _in_c_order(value)
            value = codec._encode_sync(value, seen)
            if value is None:
                return None
        encoded: Buffer = value
        return encoded

    def _chain(self, spec: ArraySpec) -> tuple[_Step, ...]:
        known = self._chains.get(spec.shape)
        if known is not None:
            return known
        steps, seen = [], spec
        for codec in self.codecs:
            steps.append((codec, seen))
            seen = codec.resolve_metadata(seen)
        chain = self._chains[spec.shape] = tuple(steps)
        return chain


def _in_c_order(chunk: NDBuffer) -> NDBuffer:
    """The same cells in C order, for codecs that read memory as it lies, as those of strings do."""
    if chunk.dtype.kind not in "OT":
        return chunk
    return type(chunk).from_numpy_array(np.asarray(chunk.as_numpy_array(), order="C"))


def _is_alike(codec: Codec) -> bool:
    """Whether calling does the same as awaiting: no class overrides only what is awaited."""
    classes = type(codec).__mro__

    def definer(name: str) -> int:
        return next(place for place, cls in enumerate(classes) if name in vars(cls))

    return all(definer(called) <= min(map(definer, awaited)) for called, awaited in _TWINS)


def holds_only(chunk: NDBuffer, fill: object) -> bool:
    """Whether every cell is the fill value; for most chunks the first cells already rule it out."""
    for rows in (1, 256):
        corner = (slice(1),) * (len(chunk.shape) - 1) + (slice(rows),)
        if chunk.shape and not chunk[corner].all_equal(fill):
            return False
    return chunk.all_equal(fill)


def put_whole_chunks(
    tree: WorkingTree, path: str, chunks: Iterable[WholeChunk], encode: Encode
) -> list[Index]:
    """Encode chunks of one array and put them into a session's tree, all or none.

    Chunks that hold only the fill value are not stored, unless the array requires that; returns
    their numbers, so that the caller can erase existing chunks.
    """
    empty: list[Index] = []

    def encoded() -> Iterator[tuple[Index, memoryview]]:
        for index, cells, spec in chunks:
            skip = not spec.config.write_empty_chunks
            is_empty = skip and holds_only(cells, fill_value_or_default(spec))
            data = None if is_empty else encode(cells, spec)
            if data is None:
                empty.append(index)
            else:
                yield index, bytes_of(data)

    tree.put_chunks(path, encoded())
    return empty


def bytes_of(value: Buffer) -> memoryview:
    """The contents of a buffer, without a copy."""
    if not isinstance(value, Buffer):
        # Worded as in Zarr's own stores.
        raise TypeError(
            "IcechunkStore.set(): `value` must be a Buffer instance. "
            f"Got an instance of {type(value)} instead."
        )
    return memoryview(value.as_numpy_array().view(np.uint8).data).cast("B")
