"""Fragments and change sets as bytes.

Both cross a network and a trust boundary, so they are decoded like a stored file: bounded,
verified, `FormatError` for anything else. A fragment names its base snapshot and its job, so that
a fragment of other work cannot be merged by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike, NDArray

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.budget import Purse, for_fragments
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind, sort_keys
from airflow_provider_icechunk.engine.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    NODE_ID_SIZE,
    OBJECT_ID_SIZE,
    NodeId,
    SnapshotId,
)
from airflow_provider_icechunk.engine.format.model import Node, Snapshot
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.wire import messagepack as mp
from airflow_provider_icechunk.engine.format.wire.zstd import compress, decompress
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_RANK, node_from_document
from airflow_provider_icechunk.engine.tree.boxes import MOST_BOXES, Box, Boxes
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

from .releases import both_releases

MAGIC = b"icechunk-fragment"
VERSION = 1
_LIMIT = 4 << 30
_LATEST = (1 << 62) - 1
_LEVEL = 1
_SHORTEST = 6
_SIZES = (6, 7, 9, 10)
"""Items of a fragment: earlier releases had fewer, the last one is the release that wrote it."""
_ID_SIZES = (OBJECT_ID_SIZE, EARLY_OBJECT_ID_SIZE)


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """Chunks that one worker wrote."""

    base: SnapshotId
    """The base snapshot of the worker."""
    job: str
    worker: str
    """Who wrote it, for messages: a task number, a map index."""
    arrays: Mapping[NodeId, ChunkRefs]
    since: int | None = None
    """Store time in microseconds before which none of its files was stored. Without it they may be
    as old as the work itself."""
    boxes: Mapping[NodeId, Boxes] = field(default_factory=dict)
    """The cells that the worker may have written, for arrays with a record."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels of growing dimensions that the worker wrote, as far as it declared them."""

    @property
    def has_files(self) -> bool:
        """Whether it refers to chunk files."""
        return any(bool((refs.kind == RefKind.NATIVE).any()) for refs in self.arrays.values())

    def __len__(self) -> int:
        return sum(len(refs) for refs in self.arrays.values())


def encode_fragment(fragment: Fragment) -> bytes:
    """A fragment as bytes.

    References with fields of a newer version are refused, because a fragment cannot hold them.
    """
    if any(refs.extra is not None for refs in fragment.arrays.values()):
        raise UnsupportedError(
            "chunk references with fields of a newer version of the format cannot be handed to "
            "another process without losing them; move such chunks in the session that commits"
        )
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
    value = [
        MAGIC, VERSION, fragment.base, fragment.job, fragment.worker, arrays,
        fragment.since, _plain_boxes(fragment), _plain_labels(fragment), __version__,
    ]  # fmt: skip
    return compress(mp.pack(value), level=_LEVEL)


def decode_fragment(data: bytes, *, where: str) -> Fragment:
    """The fragment in `data`; everything about it is checked."""
    with Purse(len(data), where=where, allowance=for_fragments()) as purse:
        payload = decompress(data, limit=_LIMIT, where=where, purse=purse)
        value = mp.unpack(payload, where=where, memory=purse)
        return _fragment(value, where)


def _fragment(value: mp.Value, where: str) -> Fragment:
    items = mp.as_array(value, "the fragment", where=where)
    if len(items) < _SHORTEST or mp.as_bytes(items[0], "the magic", where=where) != MAGIC:
        raise FormatError(f"{where}: not a fragment")
    version = mp.as_number(items[1], "the version", where=where)
    if version != VERSION or len(items) not in _SIZES:
        # Whatever else a later version adds, the release stays the last item.
        raise FormatError(
            f"{where}: fragment version {version} with {len(items)} items is unknown; the worker "
            f"runs another release{both_releases(items[-1])}"
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
        if len(items) == _SHORTEST or items[6] is None
        else mp.as_number(items[6], "the time of the oldest file", where=where, most=_LATEST),
        boxes=_boxes(items[7], arrays, where) if len(items) >= 9 else {},
        labels=_labels(items[8], where) if len(items) >= 9 else {},
    )


def _plain_boxes(fragment: Fragment) -> list[list[object]]:
    return [
        [node_id, [[end for span in box for end in span] for box in boxes]]
        for node_id, boxes in sorted(fragment.boxes.items())
    ]


def _plain_labels(fragment: Fragment) -> list[list[object]]:
    return [[name, list(texts)] for name, texts in fragment.labels.items()]


def _boxes(value: mp.Value, arrays: Mapping[NodeId, ChunkRefs], where: str) -> dict[NodeId, Boxes]:
    found: dict[NodeId, Boxes] = {}
    for item in mp.as_array(value, "the boxes", where=where):
        fields = mp.as_array(item, "the boxes of an array", where=where, sizes=(2,))
        node_id = _id(fields[0], where)
        if node_id not in arrays or node_id in found:
            raise FormatError(f"{where}: boxes of an array that has no chunks, or twice")
        listed = mp.as_array(fields[1], "boxes", where=where)
        if len(listed) > MOST_BOXES:
            raise FormatError(f"{where}: {len(listed)} boxes for one array")
        found[node_id] = tuple(_box(one, arrays[node_id].ndim, where) for one in listed)
    return found


def _box(value: mp.Value, rank: int, where: str) -> Box:
    ends = mp.as_numbers(value, "a box", where=where, most=_LATEST)
    box = tuple(zip(ends[::2], ends[1::2], strict=False))
    if len(ends) != 2 * rank or any(start >= stop for start, stop in box):
        raise FormatError(f"{where}: {list(ends)} is not a box of an array with {rank} dimensions")
    return box


def _labels(value: mp.Value, where: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for item in mp.as_array(value, "the labels", where=where):
        fields = mp.as_array(item, "the labels of a dimension", where=where, sizes=(2,))
        texts = mp.as_array(fields[1], "labels", where=where)
        name = mp.as_text(fields[0], "a dimension", where=where)
        found[name] = tuple(mp.as_text(text, "a label", where=where) for text in texts)
    return found


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
            raise FormatError(f"{where}: a reference points outside the fragment")
    inline = refs.kind == RefKind.INLINE
    if (refs.span[inline, 1] - refs.span[inline, 0] != refs.length[inline]).any():
        raise FormatError(f"{where}: the length of an inline chunk differs from its reference")
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


def encode_changes(changes: ChangeSet, base: Snapshot) -> bytes:
    """Changes on `base` as bytes."""
    chunks = Fragment(
        base=base.id,
        job="",
        worker="",
        arrays=dict(changes.edited()),
        boxes=recorded(changes),
        labels=changes.labels,
    )
    return mp.pack(
        [
            VERSION,
            [_plain(node) for node in changes.created.values()],
            [_plain(node) for node in changes.updated.values()],
            list(changes.deleted),
            encode_fragment(chunks),
        ]
    )


def decode_changes(data: bytes, base: Snapshot, *, where: str) -> ChangeSet:
    """The changes in `data`, based on `base`."""
    items = mp.as_array(mp.unpack(data, where=where), "the changes", where=where, sizes=(5,))
    if mp.as_number(items[0], "the version", where=where) != VERSION:
        raise FormatError(f"{where}: written by another release; both sides must run the same one")
    known = {node.id: node for node in base.nodes.values()}
    created = [_node(item, known, where) for item in mp.as_array(items[1], "nodes", where=where)]
    updated = [_node(item, known, where) for item in mp.as_array(items[2], "nodes", where=where)]
    deleted = [_id(item, where) for item in mp.as_array(items[3], "deleted nodes", where=where)]
    chunks = decode_fragment(mp.as_bytes(items[4], "the chunks", where=where), where=where)
    if chunks.base != base.id:
        raise FormatError(f"{where}: based on another snapshot")
    if any(node.id in known for node in created):
        raise FormatError(f"{where}: a created node already exists")
    if not known.keys() >= {node.id for node in updated} | set(deleted):
        raise FormatError(f"{where}: a changed node does not exist in the base snapshot")
    changes = ChangeSet(
        created={node.path: node for node in created},
        updated={node.id: node for node in updated},
        deleted={node_id: known[node_id] for node_id in deleted},
    )
    arrays = known | {node.id: node for node in [*updated, *created]}
    for node_id, refs in chunks.arrays.items():
        node = arrays.get(node_id)
        if node is None or node.array is None or len(node.array.shape) != refs.ndim:
            raise FormatError(f"{where}: chunks of an array that does not fit them")
        changes.edits(node).set_many(refs, chunks.boxes.get(node_id))
    changes.add_labels(chunks.labels)
    return changes


def recorded(changes: ChangeSet) -> dict[NodeId, Boxes]:
    """The cells that may have been written, for arrays with a record."""
    return {
        node_id: edits.boxes
        for node_id, edits in changes.chunks.items()
        if edits.boxes and len(edits)
    }


def _plain(node: Node) -> list[object]:
    return [node.id, node.path, node.user_data]


def _node(item: mp.Value, known: dict[NodeId, Node], where: str) -> Node:
    fields = mp.as_array(item, "a node", where=where, sizes=(3,))
    identity = _id(fields[0], where)
    before = known.get(identity)
    manifests = before.array.manifests if before is not None and before.array else ()
    document = mp.as_bytes(fields[2], "a document", where=where)
    try:
        path = check_node_path(mp.as_text(fields[1], "a path", where=where))
        node = node_from_document(identity, path, document, manifests, rectilinear=True)
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error}") from None
    return node if before is None else replace(node, extra=before.extra)


def _id(value: mp.Value, where: str) -> NodeId:
    identity = mp.as_bytes(value, "a node id", where=where)
    if len(identity) != NODE_ID_SIZE:
        raise FormatError(f"{where}: a node id has {len(identity)} bytes")
    return NodeId(identity)
