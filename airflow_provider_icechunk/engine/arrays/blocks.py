"""Chunks straight from arrays of values to the session, without Zarr's array machinery.

Zarr's own codecs encode, so the stored bytes are those that Zarr would have stored. Only its
general indexing is bypassed, which costs more than the rest for large uncompressed chunks. A chunk
that a region covers in part is read, overlaid and written as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.core.sync import sync

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.chunk_refs import Index
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.tree.boxes import Boxes, around, chunk_box, joined
from airflow_provider_icechunk.engine.zarr_store.codecs import ChunkCodecs, Encode, put_whole_chunks
from airflow_provider_icechunk.engine.zarr_store.releases import chunk_spec, inner_array
from airflow_provider_icechunk.engine.zarr_store.store import StoreSession
from airflow_provider_icechunk.exceptions import InvalidInputError

from .regions import Region, extent, show, slices

Values = NDArray[Any]
_BATCH_BYTES = 32 << 20
_MOST_SAID = 16
"""Boxes per batch; more are replaced by the one around them, which is a little too large."""
_AT_ONCE = 8
"""Chunks that one task encodes and stores at once if the store is slow but parallel."""


def write_block(
    session: StoreSession, array: zarr.Array[Any], region: Region, values: Values
) -> int:
    """Write the values of a region; returns their size in bytes.

    Whole chunks are only written; in others the session's cells outside the region are kept, so
    two regions that share a chunk must not be written at the same time. Refuses values of another
    shape, or of a type that the array could hold only with loss.
    """
    fitting = fit_values(array, region, values)
    if not fitting.size:
        return 0
    # The region itself, not the chunks that it cuts: a merge keeps what others wrote next to it.
    with session.tree.recording({f"/{array.path}": (region,)}):
        if _is_regular(array):
            put_values(session, array, _pieces(array, region, fitting))
        else:
            array[slices(region)] = fitting
    return int(fitting.nbytes)


def put_values(
    session: StoreSession,
    array: zarr.Array[Any],
    pieces: Iterator[tuple[Index, Values]],
    *,
    record: bool = False,
) -> None:
    """Write whole chunks by their number; each has the chunk's shape or, at an edge, a cut one.

    :param record: whether to record the cells of these chunks as written, for callers that do not.
    """
    path, tree = f"/{array.path}", session.tree
    spec, encode = _encoder(array)

    def put(batch: Sequence[tuple[Index, Values]]) -> None:
        if record:
            said = whole_chunks(array, [index for index, _ in batch])
            with tree.recording({path: said}):
                write(batch)
        else:
            write(batch)

    def write(batch: Sequence[tuple[Index, Values]]) -> None:
        whole = ((index, _padded(values, spec), spec) for index, values in batch)
        empty = put_whole_chunks(tree, path, whole, encode)
        if empty:
            # A recorded write counts even if there was no chunk: others may write one.
            always = tree.is_recording(path)
            tree.erase(path, [index for index in empty if always or tree.chunk(path, index)])

    at_once = _AT_ONCE if is_remote(session) else 1
    for batch in _batches(pieces):
        parts = [batch] if at_once == 1 else [[piece] for piece in batch]
        run_all(put, parts, at_once=at_once)


def whole_chunks(array: zarr.Array[Any], places: Sequence[Index]) -> Boxes:
    """The cells of some chunks, in few boxes."""
    grid = chunk_grid(array)
    boxes = joined((), (chunk_box(index, grid, array.shape) for index in places))
    return boxes if len(boxes) <= _MOST_SAID else (around(boxes),)


def is_remote(session: StoreSession) -> bool:
    """Whether storing mostly waits: a task has one core, but many can wait at once."""
    return not isinstance(session.tree.core.storage, LocalStorage)


def readable_array(store: Store, path: str) -> zarr.Array[Any]:
    """An array of a store, for reading."""
    return zarr.open_array(store, path=path.strip("/"), mode="r")


def chunk_grid(array: zarr.Array[Any]) -> tuple[int, ...]:
    """The shape of the unit of storage: a shard, if the array has them, otherwise a chunk."""
    return tuple(array.shards or array.chunks)


def _is_regular(array: zarr.Array[Any]) -> bool:
    # By its name in the document: newer releases renamed and moved the class.
    metadata = array.metadata
    return (
        isinstance(metadata, ArrayV3Metadata) and metadata.chunk_grid.to_dict()["name"] == "regular"
    )


def fit_values(array: zarr.Array[Any], region: Region, values: Values) -> Values:
    """The values of a region in the array's type; refuses a wrong shape, type or place."""
    given = np.asarray(values)
    for (start, stop), length in zip(region, array.shape, strict=True):
        if not 0 <= start <= stop <= length:
            raise InvalidInputError(
                f"the region {show(region)} is not inside {array.path!r}, whose shape is "
                f"{array.shape}"
            )
    if given.shape != extent(region):
        raise InvalidInputError(
            f"the values for {show(region)} of {array.path!r} have the shape {given.shape}, not "
            f"{extent(region)}"
        )
    try:
        return given.astype(array.dtype, casting="same_kind", copy=False)
    except TypeError:
        raise InvalidInputError(
            f"values of type {given.dtype} do not fit into {array.path!r}, which holds "
            f"{array.dtype}; convert them first"
        ) from None


def _pieces(
    array: zarr.Array[Any], region: Region, values: Values
) -> Iterator[tuple[Index, Values]]:
    """The chunks of a region: values that cover one replace it, others are laid over it."""
    grid = chunk_grid(array)
    for index, part in chunks_of_region(region, grid):
        cells = tuple(
            (number * chunk, min((number + 1) * chunk, length))
            for number, chunk, length in zip(index, grid, array.shape, strict=True)
        )
        inside = tuple(
            slice(max(low, start) - low, min(high, stop) - low)
            for (low, high), (start, stop) in zip(cells, region, strict=True)
        )
        if all(own == slice(0, high - low) for own, (low, high) in zip(inside, cells, strict=True)):
            yield index, values[part]
            continue
        whole = np.array(array[slices(cells)], dtype=array.dtype)
        whole[inside] = values[part]
        yield index, whole


def chunks_of_region(
    region: Region, grid: Sequence[int]
) -> Iterator[tuple[Index, tuple[slice, ...]]]:
    """Chunk numbers in a region, each with its position in the values of the region."""
    numbers = [
        range(start // chunk, -(-stop // chunk))
        for (start, stop), chunk in zip(region, grid, strict=True)
    ]
    for index in product(*numbers):
        yield (
            index,
            tuple(
                slice(max(number * chunk - start, 0), min((number + 1) * chunk, stop) - start)
                for number, chunk, (start, stop) in zip(index, grid, region, strict=True)
            ),
        )


def _encoder(array: zarr.Array[Any]) -> tuple[ArraySpec, Encode]:
    """The chunks of an array, and how its own codecs encode their cells."""
    inner = inner_array(array)
    spec = chunk_spec(array)
    known = isinstance(inner.metadata, ArrayV3Metadata)
    codecs = ChunkCodecs.of(inner.metadata.codecs) if known else None

    def awaited(chunk: NDBuffer, spec: ArraySpec) -> Buffer | None:
        (encoded,) = sync(inner.codec_pipeline.encode([(chunk, spec)]))
        return encoded

    return spec, awaited if codecs is None else codecs.encode


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


def _padded(values: Values, spec: ArraySpec) -> NDBuffer:
    """A whole chunk, padded with the fill value at an edge."""
    whole = values
    if values.shape != spec.shape:
        whole = np.full(spec.shape, spec.fill_value, dtype=spec.dtype.to_native_dtype())
        whole[tuple(slice(length) for length in values.shape)] = values
    return spec.prototype.nd_buffer.from_numpy_array(whole)
