"""Write manifest files of generation `1`: one fixed-size record per reference, as NumPy rows.

A record is a ChunkRef table followed by its coordinates. Records of one kind have the same size, so
positions and offsets are array arithmetic. Bytes of variable length (inline chunks, locations,
entity tags) follow all records; equal spans of the heap are stored once and shared, which
FlatBuffers allows and official readers accept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    RefKind,
    concatenate,
    sort_keys,
)
from airflow_provider_icechunk.engine.format.ids import OBJECT_ID_SIZE
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import (
    Heap,
    PayloadWriter,
    Shape,
    Vectors,
    check_size,
)
from airflow_provider_icechunk.exceptions import InvalidInputError

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
"""Virtual references without a checksum, with a tag and with a time, whose locations are frames."""
_PACKED_SHAPES = (_WITH_DICTIONARY, _ARRAY, _NATIVE, *_PACKED, _INLINE)

_KINDS = (RefKind.NATIVE, RefKind.VIRTUAL, RefKind.INLINE)
_HEADS = {RefKind.NATIVE: 36, RefKind.VIRTUAL: 32, RefKind.INLINE: 12}
"""Position of the coordinates in a record of each kind; an extra field takes this position, and the
coordinates follow it."""


def _extended(shape: Shape, kind: RefKind) -> Shape:
    """The same with a field that official schemas reserve for later releases."""
    at = _HEADS[kind]
    return Shape(at + 4, (*shape.slots, *(0 for _ in range(_EXTRA - len(shape.slots))), at))


_EXTRA = 9
_EXTENDED = {
    _ROOT: Shape(24, (8, 4, 0, 0, 20)),
    _NEWER: Shape(28, (8, 4, 0, 20, 24)),
    _WITH_DICTIONARY: Shape(32, (8, 4, 24, 20, 28)),
    _ARRAY: Shape(20, (8, 4, 16)),
    _NATIVE: _extended(_NATIVE, RefKind.NATIVE),
    _INLINE: _extended(_INLINE, RefKind.INLINE),
    **{shape: _extended(shape, RefKind.VIRTUAL) for shape in (*_PLAIN, *_PACKED)},
}
"""In a root and an array the extra field comes last, after all others."""

Rows = slice | NDArray[np.int64]


def encode(
    manifest: Manifest, *, newer: bool = False, dictionary: bytes | None = None
) -> bytearray:
    """The payload of a manifest; in generation `2` (`newer`) it has 0 for compression.

    With a `dictionary` it has 1, and the locations in the heap are frames made with it.
    """
    shapes = _SHAPES if dictionary is None else _PACKED_SHAPES
    if _has_extras(manifest):
        shapes = (*shapes, *(_EXTENDED[shape] for shape in shapes if shape in _EXTENDED))
    writer = PayloadWriter(IDENTIFIER, shapes)
    plain = _WITH_DICTIONARY if dictionary is not None else _NEWER if newer else _ROOT
    root = writer.root(plain if manifest.extra is None else _EXTENDED[plain])
    if dictionary is not None:
        writer.number(root + 20, "B", 1)
        writer.blob(root + 24, dictionary)
    if manifest.extra is not None:
        writer.blob(root + _EXTENDED[plain].size - 4, manifest.extra)
    writer.put(root + 8, manifest.id)
    virtual = _PLAIN if dictionary is None else _PACKED
    arrays = sorted(manifest.arrays.items())
    tables = []
    for link, (identity, parts) in zip(
        writer.references(root + 4, len(arrays)), arrays, strict=True
    ):
        if len(parts) > 1:
            raise InvalidInputError("this generation stores coordinates of one rank per array")
        extra = manifest.extras.get(identity)
        writer.align(4)
        writer.link(link)
        at = writer.table(_ARRAY if extra is None else _EXTENDED[_ARRAY])
        writer.put(at + 8, identity)
        if extra is not None:
            writer.blob(at + 16, extra)
        tables.append((at + 4, parts[0] if parts else ChunkRefs.empty(0)))
    ranks: dict[int, list[tuple[int, ChunkRefs]]] = {}
    for link, refs in tables:
        ranks.setdefault(refs.ndim, []).append((link, refs))
    for _, same in sorted(ranks.items()):
        _write_references(writer, [link for link, _ in same], [refs for _, refs in same], virtual)
    return writer.finish()


def _has_extras(manifest: Manifest) -> bool:
    if manifest.extra is not None or manifest.extras:
        return True
    return any(refs.extra is not None for parts in manifest.arrays.values() for refs in parts)


def _write_references(
    writer: PayloadWriter, links: list[int], parts: list[ChunkRefs], virtual: tuple[Shape, ...]
) -> None:
    """Write the references of arrays of one rank: their vectors, then all records."""
    refs = concatenate(parts)
    vectors = Vectors.link(writer, links, [len(part) for part in parts])
    _check(refs, vectors)
    start = vectors.start
    at, end, groups = _positions(refs, vectors.end)
    heap = Heap(refs.heap, _used_spans(refs), base=end)
    check_size(heap.end)
    block = np.zeros(end - start, np.uint8)
    vectors.render(block[: 4 * vectors.words].view("<u4"), at)
    for kind, extended, selected, first, stop in groups:
        records = block[first - start : stop - start]
        filled, places = refs.take(selected), at[selected]
        if not extended:
            filled = replace(filled, extra=None)
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
    spans = (refs.span, refs.etag, *(() if refs.extra is None else (refs.extra,)))
    if any(bool((s[:, 1] > len(refs.heap)).any() | (s[:, 0] > s[:, 1]).any()) for s in spans):
        raise InvalidInputError("chunk references reach beyond their heap")


def _positions(
    refs: ChunkRefs, end: int
) -> tuple[NDArray[np.int64], int, list[tuple[RefKind, bool, Rows, int, int]]]:
    """Positions of the records from `end` on, their end, and the groups of equal records.

    A group is its kind, whether its records have an extra field, its rows and its range.
    """
    at = np.empty(len(refs), np.int64)
    end += -end % 8
    groups: list[tuple[RefKind, bool, Rows, int, int]] = []
    for kind, extended, selected, count in _groups(refs):
        stride = _stride(kind, refs.ndim, extended)
        at[selected] = end + stride * np.arange(count, dtype=np.int64)
        groups.append((kind, extended, selected, end, end + stride * count))
        end += stride * count
    return at, end, groups


def _groups(refs: ChunkRefs) -> Iterator[tuple[RefKind, bool, Rows, int]]:
    """Rows of each kind, those without an extra field first, and their number."""
    for kind in _KINDS:
        same = refs.kind == kind
        if refs.extra is None:
            parts = [(False, same)]
        else:
            extended = refs.extra[:, 1] > refs.extra[:, 0]
            parts = [(False, same & ~extended), (True, same & extended)]
        for has_extra, rows in parts:
            count = int(np.count_nonzero(rows))
            if count:
                every = count == len(refs)
                yield kind, has_extra, slice(None) if every else np.flatnonzero(rows), count


def _head(kind: RefKind, extended: bool) -> int:
    """Position of the coordinates in a record."""
    return _HEADS[kind] + (4 if extended else 0)


def _stride(kind: RefKind, ndim: int, extended: bool) -> int:
    size = _head(kind, extended) + 4 + 4 * ndim
    return size if kind is RefKind.INLINE else size + -size % 8


def _record(
    kind: RefKind, ndim: int, extended: bool, fields: dict[str, tuple[str, int]]
) -> np.dtype[np.void]:
    head = _head(kind, extended)
    layout: dict[str, tuple[str | tuple[str, tuple[int]], int]]
    layout = {"vtable": ("<u4", 0), "coordinates": ("<u4", 4), **fields, "count": ("<u4", head)}
    if extended:
        layout["extra"] = ("<u4", _HEADS[kind])
    if ndim:
        # Not as one text: NumPy parses it as Python, which is not thread-safe in Python 3.11.
        layout["index"] = (("<u4", (ndim,)), head + 4)
    return np.dtype(
        {
            "names": list(layout),
            "formats": [code for code, _ in layout.values()],
            "offsets": [offset for _, offset in layout.values()],
            "itemsize": _stride(kind, ndim, extended),
        }
    )


def _begin(
    block: NDArray[np.uint8],
    refs: ChunkRefs,
    kind: RefKind,
    fields: dict[str, tuple[str, int]],
    at: NDArray[np.int64],
    heap: Heap,
) -> NDArray[np.void]:
    """The block as records, with the coordinates and the extra field filled in."""
    extended = refs.extra is not None
    records = block.view(_record(kind, refs.ndim, extended, fields))
    records["coordinates"] = _head(kind, extended) - 4
    records["count"] = refs.ndim
    if refs.ndim:
        records["index"] = refs.index
    if refs.extra is not None:
        records["extra"] = heap.find(refs.extra) - (at + _HEADS[kind])
    return records


def _vtable(writer: PayloadWriter, shape: Shape, refs: ChunkRefs) -> int:
    return writer.vtable(shape if refs.extra is None else _EXTENDED[shape])


def _fill_native(
    writer: PayloadWriter,
    block: NDArray[np.uint8],
    refs: ChunkRefs,
    at: NDArray[np.int64],
    heap: Heap,
) -> None:
    fields = {"offset": ("<u8", 8), "length": ("<u8", 16), "id": (f"V{OBJECT_ID_SIZE}", 24)}
    records = _begin(block, refs, RefKind.NATIVE, fields, at, heap)
    records["vtable"] = at - _vtable(writer, _NATIVE, refs)
    records["offset"] = refs.offset
    records["length"] = refs.length
    ids = np.ascontiguousarray(refs.chunk_id)
    records["id"] = ids.view(f"V{OBJECT_ID_SIZE}").reshape(len(refs))


def _fill_virtual(
    writer: PayloadWriter,
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
    records = _begin(block, refs, RefKind.VIRTUAL, fields, at, heap)
    records["offset"] = refs.offset
    records["length"] = refs.length
    records["location"] = heap.find(refs.span) - (at + 24)
    tagged = refs.etag[:, 1] > refs.etag[:, 0]
    dated = ~tagged & (refs.modified != 0)
    bare, with_tag, with_time = (_vtable(writer, shape, refs) for shape in shapes)
    vtable = np.where(tagged, with_tag, bare)
    vtable[dated] = with_time
    records["vtable"] = at - vtable
    if tagged.any():
        records["checksum"][tagged] = heap.find(refs.etag[tagged]) - (at[tagged] + 28)
    records["checksum"][dated] = refs.modified[dated]


def _fill_inline(
    writer: PayloadWriter,
    block: NDArray[np.uint8],
    refs: ChunkRefs,
    at: NDArray[np.int64],
    heap: Heap,
) -> None:
    records = _begin(block, refs, RefKind.INLINE, {"bytes": ("<u4", 8)}, at, heap)
    records["vtable"] = at - _vtable(writer, _INLINE, refs)
    records["bytes"] = heap.find(refs.span) - (at + 8)


_FILLERS = {RefKind.NATIVE: _fill_native, RefKind.INLINE: _fill_inline}


def _used_spans(refs: ChunkRefs) -> NDArray[np.uint64]:
    """Spans of inline bytes and locations, even if empty; tags and extra fields if present."""
    elsewhere = refs.kind != RefKind.NATIVE
    placed = refs.span if elsewhere.all() else refs.span[elsewhere]
    tagged = (refs.kind == RefKind.VIRTUAL) & (refs.etag[:, 1] > refs.etag[:, 0])
    used = [placed, refs.etag[tagged]] if tagged.any() else [placed]
    if refs.extra is not None:
        used.append(refs.extra[refs.extra[:, 1] > refs.extra[:, 0]])
    return np.concatenate(used) if len(used) > 1 else placed
