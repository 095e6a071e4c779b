"""Fragments: chunk references that a worker hands back, as columns in MessagePack, never pickle.

A fragment crosses a network and a trust boundary, so it is decoded like a stored file: bounded,
verified, `FormatError` for anything else. It names the snapshot its work stood on and the job it
belongs to, so that a fragment of other work cannot be merged by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from airflow_provider_icechunk.budget import Purse, for_fragments
from airflow_provider_icechunk.exceptions import FormatError
from airflow_provider_icechunk.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    NODE_ID_SIZE,
    OBJECT_ID_SIZE,
    NodeId,
    SnapshotId,
)
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind, sort_keys
from airflow_provider_icechunk.format.wire import messagepack as mp
from airflow_provider_icechunk.format.wire.zstd import compress, decompress
from airflow_provider_icechunk.format.zarr_metadata import MAX_RANK

MAGIC = b"icechunk-fragment"
VERSION = 1
_LIMIT = 4 << 30
_LATEST = (1 << 62) - 1
_LEVEL = 1
_ID_SIZES = (OBJECT_ID_SIZE, EARLY_OBJECT_ID_SIZE)


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """Chunks that one worker wrote."""

    base: SnapshotId
    """The snapshot that the worker stood on."""
    job: str
    worker: str
    """Who wrote it, for messages: a task number, a map index."""
    arrays: Mapping[NodeId, ChunkRefs]
    since: int | None = None
    """Store time in microseconds before which none of its files was stored. Without it they may be
    as old as the work itself."""

    @property
    def has_files(self) -> bool:
        """Whether it refers to chunk files."""
        return any(bool((refs.kind == RefKind.NATIVE).any()) for refs in self.arrays.values())

    def __len__(self) -> int:
        return sum(len(refs) for refs in self.arrays.values())


def encode_fragment(fragment: Fragment) -> bytes:
    """A fragment as bytes."""
    arrays = [
        [
            node_id,
            refs.ndim,
            len(refs),
            _raw(refs.index, "<u4"),
            _raw(refs.kind, "u1"),
            _raw(refs.chunk_id, "u1"),
            _raw(refs.offset, "<u8"),
            _raw(refs.length, "<u8"),
            _raw(refs.span, "<u8"),
            _raw(refs.etag, "<u8"),
            _raw(refs.modified, "<u4"),
            bytes(refs.heap),
        ]
        for node_id, columns in sorted(fragment.arrays.items())
        for refs in [columns.compact()]
    ]
    value = [MAGIC, VERSION, fragment.base, fragment.job, fragment.worker, arrays]
    if fragment.since is not None:
        value.append(fragment.since)
    return compress(mp.pack(value), level=_LEVEL)


def decode_fragment(data: bytes, *, where: str) -> Fragment:
    """The fragment in `data`; everything about it is checked."""
    with Purse(len(data), where=where, allowance=for_fragments()) as purse:
        payload = decompress(data, limit=_LIMIT, where=where, purse=purse)
        value = mp.unpack(payload, where=where, memory=purse)
        return _fragment(value, where)


def _fragment(value: mp.Value, where: str) -> Fragment:
    items = mp.as_array(value, "the fragment", where=where, sizes=(6, 7))
    if mp.as_bytes(items[0], "the magic", where=where) != MAGIC:
        raise FormatError(f"{where}: this is not a fragment")
    version = mp.as_number(items[1], "the version", where=where)
    if version != VERSION:
        raise FormatError(
            f"{where}: fragment version {version} is unknown; the worker runs another release"
        )
    base = mp.as_bytes(items[2], "the base snapshot", where=where)
    if len(base) not in _ID_SIZES:
        raise FormatError(f"{where}: the base snapshot id has {len(base)} bytes")
    arrays: dict[NodeId, ChunkRefs] = {}
    for item in mp.as_array(items[5], "the arrays", where=where):
        node_id, refs = _decode_array(
            mp.as_array(item, "an array", where=where, sizes=(12,)), where, len(base)
        )
        if node_id in arrays:
            raise FormatError(f"{where}: an array occurs twice")
        arrays[node_id] = refs
    return Fragment(
        base=SnapshotId(base),
        job=mp.as_text(items[3], "the job", where=where),
        worker=mp.as_text(items[4], "the worker", where=where),
        arrays=arrays,
        since=None
        if len(items) == 6
        else mp.as_number(items[6], "the time of the oldest file", where=where, most=_LATEST),
    )


def _decode_array(items: mp.Array, where: str, id_size: int) -> tuple[NodeId, ChunkRefs]:
    node_id = mp.as_bytes(items[0], "a node id", where=where)
    if len(node_id) != NODE_ID_SIZE:
        raise FormatError(f"{where}: a node id has {len(node_id)} bytes")
    ndim = mp.as_number(items[1], "a rank", where=where, most=MAX_RANK)
    rows = mp.as_number(items[2], "a count", where=where)

    def column(place: int, dtype: DTypeLike, width: int | None = None) -> NDArray[np.generic]:
        raw = mp.as_bytes(items[place], "a column", where=where)
        size = np.dtype(dtype).itemsize * (1 if width is None else width)
        if len(raw) != rows * size:
            raise FormatError(f"{where}: a column has {len(raw)} bytes for {rows} references")
        flat = np.frombuffer(raw, dtype)
        return flat if width is None else flat.reshape(rows, width)

    refs = ChunkRefs(
        index=column(3, "<u4", ndim).astype(np.uint32, copy=False),
        kind=column(4, "u1").astype(np.uint8, copy=False),
        chunk_id=column(5, "u1", _id_size(items[5], rows)).astype(np.uint8, copy=False),
        offset=column(6, "<u8").astype(np.uint64, copy=False),
        length=column(7, "<u8").astype(np.uint64, copy=False),
        span=column(8, "<u8", 2).astype(np.uint64, copy=False),
        etag=column(9, "<u8", 2).astype(np.uint64, copy=False),
        modified=column(10, "<u4").astype(np.uint32, copy=False),
        heap=mp.as_bytes(items[11], "the heap", where=where),
    )
    _check(refs, where)
    if refs.chunk_id.shape[1] != id_size and (refs.kind == RefKind.NATIVE).any():
        raise FormatError(f"{where}: the ids of chunks do not have {id_size} bytes")
    return NodeId(node_id), refs


def _id_size(column: mp.Value, rows: int) -> int:
    """The width of the column of chunk ids; one of another width is refused as a whole."""
    wide = isinstance(column, bytes) and rows and len(column) == rows * EARLY_OBJECT_ID_SIZE
    return EARLY_OBJECT_ID_SIZE if wide else OBJECT_ID_SIZE


def _check(refs: ChunkRefs, where: str) -> None:
    if not len(refs):
        return
    if int(refs.kind.max()) > max(RefKind):
        raise FormatError(f"{where}: a reference is of unknown kind")
    heap = len(refs.heap)
    for spans in (refs.span, refs.etag):
        if (spans[:, 0] > spans[:, 1]).any() or int(spans[:, 1].max()) > heap:
            raise FormatError(f"{where}: a reference points outside of the fragment")
    inline = refs.kind == RefKind.INLINE
    if (refs.span[inline, 1] - refs.span[inline, 0] != refs.length[inline]).any():
        raise FormatError(f"{where}: an inline chunk has another length than its reference")
    virtual = refs.kind == RefKind.VIRTUAL
    if (refs.span[virtual, 1] == refs.span[virtual, 0]).any():
        raise FormatError(f"{where}: a virtual reference has no location")
    written = refs.kind != RefKind.ERASED
    if (refs.length[written] == 0).any():
        raise FormatError(f"{where}: a chunk has no bytes")
    if (refs.offset > np.uint64((1 << 63) - 1) - np.minimum(refs.length, 1 << 62)).any():
        raise FormatError(f"{where}: a reference lies beyond any file")
    (keys,) = sort_keys(refs.index)
    if not bool(np.all(np.less(keys[:-1], keys[1:]))):
        raise FormatError(f"{where}: the references are not in strictly increasing order")


def _raw(column: NDArray[np.generic], dtype: DTypeLike) -> bytes:
    return np.ascontiguousarray(column, dtype).tobytes()
