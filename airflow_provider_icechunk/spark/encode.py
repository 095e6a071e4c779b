"""Whole chunks straight from arrays of values to the session, without Zarr's array machinery.

Zarr's own codecs encode, so the stored bytes are those that Zarr would have stored. What is left
out is its general indexing, which costs more than the rest for large uncompressed chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import NDBuffer, default_buffer_prototype
from zarr.core.chunk_grids import RegularChunkGrid
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.core.sync import sync

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.repository.session import Session
from airflow_provider_icechunk.spark.plan import Region, extent, slices
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.pool import run_all
from airflow_provider_icechunk.zarr_store.codecs import ChunkCodecs, bytes_of, holds_only

Values = NDArray[Any]
Index = tuple[int, ...]
_BATCH_BYTES = 32 << 20
_AT_ONCE = 8
"""Chunks that one task encodes and stores at once where a store answers slowly but in parallel."""


def write_block(session: Session, array: zarr.Array[Any], region: Region, values: Values) -> int:
    """Write the values of a chunk-aligned region; returns their size in bytes.

    Refuses values of another shape, or of a type that the array could hold only with loss.
    """
    fitting = _fitting(array, region, values)
    if _is_regular(array):
        grid = chunk_grid(array)
        _check_aligned(array, region, grid)
        pieces = ((index, fitting[part]) for index, part in _chunks(region, grid))
        _put(session, array, pieces)
    else:
        array[slices(region)] = fitting
    return int(fitting.nbytes)


def put_values(
    session: Session, array: zarr.Array[Any], pieces: Iterator[tuple[Index, Values]]
) -> None:
    """Write whole chunks by their number; each has the chunk's shape or, at an edge, a cut one."""
    _put(session, array, pieces)


def is_remote(session: Session) -> bool:
    """Whether storing is waiting, not working: a task has one core, but many can wait at once."""
    return not isinstance(session.tree.engine.storage, LocalStorage)


def chunk_grid(array: zarr.Array[Any]) -> tuple[int, ...]:
    """The shape of what is stored as a unit: a shard, if the array has them, otherwise a chunk."""
    return tuple(array.shards or array.chunks)


def _is_regular(array: zarr.Array[Any]) -> bool:
    metadata = array.metadata
    return isinstance(metadata, ArrayV3Metadata) and isinstance(
        metadata.chunk_grid, RegularChunkGrid
    )


def _fitting(array: zarr.Array[Any], region: Region, values: Values) -> Values:
    given = np.asarray(values)
    if given.shape != extent(region):
        raise InvalidInputError(
            f"the values for {_show(region)} of {array.path!r} have the shape {given.shape}, not "
            f"{extent(region)}"
        )
    try:
        return given.astype(array.dtype, casting="same_kind", copy=False)
    except TypeError:
        raise InvalidInputError(
            f"values of type {given.dtype} do not fit into {array.path!r}, which holds "
            f"{array.dtype}; convert them first"
        ) from None


def _check_aligned(array: zarr.Array[Any], region: Region, grid: Sequence[int]) -> None:
    for (start, stop), chunk, length in zip(region, grid, array.shape, strict=True):
        if start % chunk or (stop % chunk and stop != length) or not 0 <= start <= stop <= length:
            raise InvalidInputError(
                f"the region {_show(region)} of {array.path!r} does not consist of whole chunks "
                f"of {tuple(grid)} in {array.shape}"
            )


def _chunks(region: Region, grid: Sequence[int]) -> Iterator[tuple[Index, tuple[slice, ...]]]:
    """Chunk numbers in a region, each with its place in the values of the region."""
    numbers = [
        range(start // chunk, -(-stop // chunk))
        for (start, stop), chunk in zip(region, grid, strict=True)
    ]
    for index in product(*numbers):
        yield (
            index,
            tuple(
                slice(number * chunk - start, min((number + 1) * chunk, stop) - start)
                for number, chunk, (start, stop) in zip(index, grid, region, strict=True)
            ),
        )


def _put(session: Session, array: zarr.Array[Any], pieces: Iterator[tuple[Index, Values]]) -> None:
    path = f"/{array.path}"
    encode = _encoder(array)

    def store(piece: tuple[Index, NDBuffer]) -> None:
        index, chunk = piece
        session.tree.put_chunk(path, index, encode(chunk))

    at_once = _AT_ONCE if is_remote(session) else 1
    for batch in _batches(pieces):
        present, empty = _split_empty(array, batch)
        if empty:
            session.tree.erase(path, [i for i in empty if session.tree.chunk(path, i)])
        run_all(store, present, at_once=at_once)


def _encoder(array: zarr.Array[Any]) -> Callable[[NDBuffer], memoryview]:
    """From the cells of a chunk to its bytes, with the array's own codecs."""
    inner = array.async_array
    origin = (0,) * array.ndim
    spec = inner.metadata.get_chunk_spec(origin, inner.config, default_buffer_prototype())
    pipeline = inner.codec_pipeline
    known = isinstance(inner.metadata, ArrayV3Metadata)
    codecs = ChunkCodecs.of(inner.metadata.codecs) if known else None

    def encode(chunk: NDBuffer) -> memoryview:
        if codecs is None:
            (encoded,) = sync(pipeline.encode([(chunk, spec)]))
        else:
            encoded = codecs.encode(chunk, spec)
        assert encoded is not None
        return bytes_of(encoded)

    return encode


def _batches(pieces: Iterator[tuple[Index, Values]]) -> Iterator[list[tuple[Index, Values]]]:
    batch: list[tuple[Index, Values]] = []
    size = 0
    for index, values in pieces:
        batch.append((index, values))
        size += values.nbytes
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _split_empty(
    array: zarr.Array[Any], batch: Sequence[tuple[Index, Values]]
) -> tuple[list[tuple[Index, NDBuffer]], list[Index]]:
    """Whole chunks as buffers, and the numbers of those that hold nothing but the fill value."""
    fill = array.fill_value
    keep_all = array.async_array.config.write_empty_chunks
    grid = chunk_grid(array)
    present: list[tuple[Index, NDBuffer]] = []
    empty: list[Index] = []
    for index, values in batch:
        whole = values
        if values.shape != grid:
            whole = np.full(grid, fill, dtype=array.dtype)
            whole[tuple(slice(length) for length in values.shape)] = values
        buffer = default_buffer_prototype().nd_buffer.from_numpy_array(whole)
        if not keep_all and holds_only(buffer, fill):
            empty.append(index)
        else:
            present.append((index, buffer))
    return present, empty


def _show(region: Region) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in region) + "]"
