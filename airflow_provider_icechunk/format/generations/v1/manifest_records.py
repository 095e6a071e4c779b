"""Writing manifest files of generation `1`: one fixed-size record per reference, as NumPy rows.

A record is a ChunkRef table followed at once by its coordinates. Records of one kind have one
stride, so positions are arithmetic and offsets are array operations. Bytes of variable length
(inline chunks, locations, entity tags) follow all records; equal spans of the heap are stored once
and shared, which FlatBuffers allows and official readers accept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.ids import OBJECT_ID_SIZE
from airflow_provider_icechunk.format.references import (
    ChunkRefs,
    RefKind,
    concatenate,
    sort_keys,
)
from airflow_provider_icechunk.format.snapshot import Manifest
from airflow_provider_icechunk.format.wire.heap import Heap
from airflow_provider_icechunk.format.wire.layout import Shape, Writer, check_size
from airflow_provider_icechunk.format.wire.vectors import Vectors

IDENTIFIER = b"Ichk"

_ROOT = Shape(20, (8, 4))
_NEWER = Shape(24, (8, 4, 0, 20))
_ARRAY = Shape(16, (8, 4))
_NATIVE = Shape(36, (4, 0, 8, 16, 24))
_VIRTUAL = Shape(28, (4, 0, 8, 16, 0, 24))
_VIRTUAL_ETAG = Shape(32, (4, 0, 8, 16, 0, 24, 28))
_VIRTUAL_MODIFIED = Shape(32, (4, 0, 8, 16, 0, 24, 0, 28))
_INLINE = Shape(12, (4, 8))
_PLAIN = (_VIRTUAL, _VIRTUAL_ETAG, _VIRTUAL_MODIFIED)
_SHAPES = (_ROOT, _NEWER, _ARRAY, _NATIVE, *_PLAIN, _INLINE)
_WITH_DICTIONARY = Shape(28, (8, 4, 24, 20))
_PACKED = (
    Shape(28, (4, 0, 8, 16, 0, 0, 0, 0, 24)),
    Shape(32, (4, 0, 8, 16, 0, 0, 28, 0, 24)),
    Shape(32, (4, 0, 8, 16, 0, 0, 0, 28, 24)),
)
"""Virtual references without checksum, with a tag and with a time, whose locations are frames."""
_PACKED_SHAPES = (_WITH_DICTIONARY, _ARRAY, _NATIVE, *_PACKED, _INLINE)

_KINDS = (RefKind.NATIVE, RefKind.VIRTUAL, RefKind.INLINE)
_HEADS = {RefKind.NATIVE: 36, RefKind.VIRTUAL: 32, RefKind.INLINE: 12}
"""Where the coordinates begin in a record of each kind."""

Rows = slice | NDArray[np.int64]


def encode(
    manifest: Manifest, *, newer: bool = False, dictionary: bytes | None = None
) -> bytearray:
    """The payload of a manifest; in generation `2`, the newer one, it says 0 for compression.

    With a `dictionary` it says 1, and the locations in the heap are frames made with it.
    """
    writer = Writer(IDENTIFIER, _SHAPES if dictionary is None else _PACKED_SHAPES)
    if dictionary is None:
        root = writer.root(_NEWER if newer else _ROOT)
    else:
        root = writer.root(_WITH_DICTIONARY)
        writer.number(root + 20, "B", 1)
        writer.blob(root + 24, dictionary)
    writer.put(root + 8, manifest.id)
    virtual = _PLAIN if dictionary is None else _PACKED
    arrays = sorted(manifest.arrays.items())
    tables = []
    for link, (identity, parts) in zip(
        writer.references(root + 4, len(arrays)), arrays, strict=True
    ):
        if len(parts) > 1:
            raise InvalidInputError("this generation keeps coordinates of one rank per array")
        writer.link(link)
        at = writer.table(_ARRAY)
        writer.put(at + 8, identity)
        tables.append((at + 4, parts[0] if parts else ChunkRefs.empty(0)))
    ranks: dict[int, list[tuple[int, ChunkRefs]]] = {}
    for link, refs in tables:
        ranks.setdefault(refs.ndim, []).append((link, refs))
    for _, same in sorted(ranks.items()):
        _write_references(writer, [link for link, _ in same], [refs for _, refs in same], virtual)
    return writer.finish()


def _write_references(
    writer: Writer, links: list[int], parts: list[ChunkRefs], virtual: tuple[Shape, ...]
) -> None:
    """The references of arrays of one rank: their vectors, then the records of all together."""
    refs = concatenate(parts)
    vectors = Vectors.link(writer, links, [len(part) for part in parts])
    _check(refs, vectors)
    start = vectors.start
    at, end, groups = _positions(refs, vectors.end)
    heap = Heap(refs.heap, _used_spans(refs), base=end)
    check_size(heap.end)
    block = np.zeros(end - start, np.uint8)
    vectors.render(block[: 4 * vectors.words].view("<u4"), at)
    for kind, selected, first, stop in groups:
        records = block[first - start : stop - start]
        filled, places = refs.take(selected), at[selected]
        if kind is RefKind.VIRTUAL:
            _fill_virtual(writer, records, filled, places, heap, virtual)
        else:
            _FILLERS[kind](writer, records, filled, places, heap)
    writer.data += block.data
    writer.data += heap.render().data


def _check(refs: ChunkRefs, vectors: Vectors) -> None:
    if not len(refs):
        return
    (keys,) = sort_keys(refs.index)
    if not vectors.increasing(keys):
        raise InvalidInputError("chunk references must be in order, each index once")
    if bool((refs.kind == RefKind.ERASED).any()):
        raise InvalidInputError("erased chunk references cannot be stored; remove them first")
    spans = (refs.span, refs.etag)
    if any(bool((s[:, 1] > len(refs.heap)).any() | (s[:, 0] > s[:, 1]).any()) for s in spans):
        raise InvalidInputError("chunk references reach beyond their heap")


def _positions(
    refs: ChunkRefs, end: int
) -> tuple[NDArray[np.int64], int, list[tuple[RefKind, Rows, int, int]]]:
    """Where each record goes from `end` on, where they end, and per kind rows and stretch."""
    at = np.empty(len(refs), np.int64)
    end += -end % 8
    groups: list[tuple[RefKind, Rows, int, int]] = []
    for kind in _KINDS:
        selected, count = _select(refs.kind, kind)
        if not count:
            continue
        stride = _stride(kind, refs.ndim)
        at[selected] = end + stride * np.arange(count, dtype=np.int64)
        groups.append((kind, selected, end, end + stride * count))
        end += stride * count
    return at, end, groups


def _select(kinds: NDArray[np.uint8], kind: RefKind) -> tuple[Rows, int]:
    same = kinds == kind
    count = int(np.count_nonzero(same))
    return (slice(None) if count == len(kinds) else np.flatnonzero(same)), count


def _stride(kind: RefKind, ndim: int) -> int:
    size = _HEADS[kind] + 4 + 4 * ndim
    return size if kind is RefKind.INLINE else size + -size % 8


def _record(kind: RefKind, ndim: int, fields: dict[str, tuple[str, int]]) -> np.dtype[np.void]:
    head = _HEADS[kind]
    layout: dict[str, tuple[str | tuple[str, tuple[int]], int]]
    layout = {"vtable": ("<u4", 0), "coordinates": ("<u4", 4), **fields, "count": ("<u4", head)}
    if ndim:
        # Not as one text: NumPy parses that as Python, which Python 3.11 cannot do in two threads.
        layout["index"] = (("<u4", (ndim,)), head + 4)
    return np.dtype(
        {
            "names": list(layout),
            "formats": [code for code, _ in layout.values()],
            "offsets": [offset for _, offset in layout.values()],
            "itemsize": _stride(kind, ndim),
        }
    )


def _begin(
    block: NDArray[np.uint8],
    refs: ChunkRefs,
    kind: RefKind,
    fields: dict[str, tuple[str, int]],
) -> NDArray[np.void]:
    """The block as records, with the coordinates filled in."""
    records = block.view(_record(kind, refs.ndim, fields))
    records["coordinates"] = _HEADS[kind] - 4
    records["count"] = refs.ndim
    if refs.ndim:
        records["index"] = refs.index
    return records


def _fill_native(
    writer: Writer, block: NDArray[np.uint8], refs: ChunkRefs, at: NDArray[np.int64], heap: Heap
) -> None:
    del heap
    fields = {"offset": ("<u8", 8), "length": ("<u8", 16), "id": (f"V{OBJECT_ID_SIZE}", 24)}
    records = _begin(block, refs, RefKind.NATIVE, fields)
    records["vtable"] = at - writer.vtable(_NATIVE)
    records["offset"] = refs.offset
    records["length"] = refs.length
    ids = np.ascontiguousarray(refs.chunk_id)
    records["id"] = ids.view(f"V{OBJECT_ID_SIZE}").reshape(len(refs))


def _fill_virtual(
    writer: Writer,
    block: NDArray[np.uint8],
    refs: ChunkRefs,
    at: NDArray[np.int64],
    heap: Heap,
    shapes: tuple[Shape, ...],
) -> None:
    fields = {
        "offset": ("<u8", 8),
        "length": ("<u8", 16),
        "location": ("<u4", 24),
        "checksum": ("<u4", 28),
    }
    records = _begin(block, refs, RefKind.VIRTUAL, fields)
    records["offset"] = refs.offset
    records["length"] = refs.length
    records["location"] = heap.find(refs.span) - (at + 24)
    tagged = refs.etag[:, 1] > refs.etag[:, 0]
    dated = ~tagged & (refs.modified != 0)
    bare, with_tag, with_time = map(writer.vtable, shapes)
    vtable = np.where(tagged, with_tag, bare)
    vtable[dated] = with_time
    records["vtable"] = at - vtable
    if tagged.any():
        records["checksum"][tagged] = heap.find(refs.etag[tagged]) - (at[tagged] + 28)
    records["checksum"][dated] = refs.modified[dated]


def _fill_inline(
    writer: Writer, block: NDArray[np.uint8], refs: ChunkRefs, at: NDArray[np.int64], heap: Heap
) -> None:
    records = _begin(block, refs, RefKind.INLINE, {"bytes": ("<u4", 8)})
    records["vtable"] = at - writer.vtable(_INLINE)
    records["bytes"] = heap.find(refs.span) - (at + 8)


_FILLERS = {
    RefKind.NATIVE: _fill_native,
    RefKind.INLINE: _fill_inline,
}


def _used_spans(refs: ChunkRefs) -> NDArray[np.uint64]:
    """Spans of inline bytes and locations, also empty ones, and of entity tags that are there."""
    elsewhere = refs.kind != RefKind.NATIVE
    placed = refs.span if elsewhere.all() else refs.span[elsewhere]
    tagged = (refs.kind == RefKind.VIRTUAL) & (refs.etag[:, 1] > refs.etag[:, 0])
    return np.concatenate([placed, refs.etag[tagged]]) if tagged.any() else placed
