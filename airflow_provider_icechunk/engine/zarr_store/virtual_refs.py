"""Virtual references in bulk: from callers' arrays to columns, without an object per reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import (
    Checksum,
    ChunkRefs,
    ETag,
    LastModified,
    RefKind,
)
from airflow_provider_icechunk.engine.format.coordinates import first_rows
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import span_keys
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.exceptions import InvalidInputError

_MAX_U32 = (1 << 32) - 1


def grid_index(
    chunk_grid_shape: Sequence[int], arr_offset: Sequence[int] | None
) -> NDArray[np.uint32]:
    """`(n, d)` coordinates of a whole grid in row-major order, shifted by `arr_offset`."""
    shape = tuple(int(count) for count in chunk_grid_shape)
    shift = tuple(int(start) for start in arr_offset or [0] * len(shape))
    if len(shift) != len(shape):
        raise InvalidInputError(
            f"arr_offset has {len(shift)} numbers, the chunk grid {len(shape)} dimensions"
        )
    if any(count < 0 for count in shape) or any(start < 0 for start in shift):
        raise InvalidInputError("the chunk grid and its offset must not be negative")
    if any(start + count > _MAX_U32 + 1 for count, start in zip(shape, shift, strict=True)):
        raise InvalidInputError("chunk coordinates must fit 32 bits")
    if not shape:
        return np.zeros((1, 0), np.uint32)
    index = np.indices(shape, np.uint32).reshape(len(shape), -1).T
    return index + np.array(shift, np.uint32)


def columns(
    index: NDArray[np.uint32],
    locations: Sequence[str],
    offsets: ArrayLike,
    lengths: ArrayLike,
    checksum: Checksum | None,
) -> ChunkRefs:
    """References in order; an empty location is not a reference and is left out.

    Equal locations are stored once, so that a million references into a thousand files cost a
    thousand strings.
    """
    rows = len(index)
    offset, length = _counts(offsets, rows, "offsets"), _counts(lengths, rows, "lengths")
    if len(locations) != rows:
        raise InvalidInputError(f"{len(locations)} locations for {rows} chunks")
    numbers = {location: number for number, location in enumerate(dict.fromkeys(locations))}
    which = np.fromiter(map(numbers.__getitem__, locations), np.int64, rows)
    texts = [location.encode() for location in numbers]
    stops = np.cumsum([len(text) for text in texts], dtype=np.uint64)
    spans = np.stack([np.concatenate([[np.uint64(0)], stops[:-1]]), stops], axis=1).astype(
        np.uint64
    )
    heap = b"".join(texts)
    etag = np.zeros(2, np.uint64)
    if isinstance(checksum, ETag):
        start = len(heap)
        heap += checksum.value.encode()
        etag[:] = start, len(heap)
    modified = checksum.seconds if isinstance(checksum, LastModified) else 0
    refs = ChunkRefs(
        index=index,
        kind=np.broadcast_to(np.uint8(RefKind.VIRTUAL), (rows,)),
        chunk_id=np.broadcast_to(np.uint8(0), (rows, 12)),
        offset=offset,
        length=length,
        span=spans[which] if rows else np.zeros((0, 2), np.uint64),
        etag=np.broadcast_to(etag, (rows, 2)),
        modified=np.broadcast_to(np.uint32(modified), (rows,)),
        heap=heap,
    )
    if "" in numbers:
        refs = refs.take(which != numbers[""])
    if (refs.length == 0).any():
        row = int((refs.length == 0).argmax())
        raise InvalidInputError(
            f"the reference of chunk {refs.index[row].tolist()} has length 0; leave it out"
        )
    return ChunkRefs.of(refs)


def covered(refs: ChunkRefs, reader: VirtualReader) -> NDArray[np.bool_]:
    """Which references a declared container covers; checked once per location."""
    keys = span_keys(refs.span)
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    heads = keys[starts]
    first = first_rows(heads)
    inverse = np.searchsorted(heads[first], heads)
    view = memoryview(refs.heap)
    allowed = np.zeros(len(first), np.bool_)
    for number, row in enumerate(starts[first]):
        start, stop = refs.span[row].tolist()
        allowed[number] = reader.is_declared(str(view[start:stop], "utf-8"))
    runs = np.diff(np.append(starts, len(keys)))
    return np.repeat(allowed[inverse], runs)


def _counts(values: ArrayLike, rows: int, what: str) -> NDArray[np.uint64]:
    given = np.asarray(values)
    if given.ndim != 1 or len(given) != rows:
        raise InvalidInputError(f"{what} must be one number for each of the {rows} chunks")
    if given.dtype.kind not in "ui" or (given.dtype.kind == "i" and (given < 0).any()):
        raise InvalidInputError(f"{what} must be whole numbers that are not negative")
    return given.astype(np.uint64, copy=False)
