"""Inventory files: one row for each chunk, read and written in columns. Needs pyarrow.

A coordinate is the concatenation of the indices as big-endian numbers of one width. Files written
here have width 2 and say so in a note; for other files every possible width is tried, and the
rank of the array decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.coordinates import distinct, sort_keys
from airflow_provider_icechunk.engine.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    NODE_ID_SIZE,
    ManifestId,
    NodeId,
)
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import copy_spans
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_RANK
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .codec import TOP
from .layout import FOREIGN, FileIds
from .structures import node_number
from .tables import INVENTORY, Cost, broken, read_table, write_table

_NOTE = "icechunk.coord-width"
_WIDTH = 2
_WIDTHS = (2, 4, 8)
_NAME = 2 * EARLY_OBJECT_ID_SIZE
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[_HEX] = np.arange(16, dtype=np.uint8)
_U32 = (1 << 32) - 1
_TOP_OFFSET = np.uint64((1 << 63) - 1 - _U32)
_LARGEST_COLUMN = (1 << 31) - 1
_COST = Cost(row=200, value=8)
_ARRAY_COST = 2000
"""The overhead in bytes of the columns of one array."""


def encode_inventory(manifest: Manifest, files: FileIds, *, level: int) -> bytes:
    """A whole file, rows sorted by array and coordinate."""
    parts = [
        _columns(node_number(node), refs, files)
        for node, tables in sorted(manifest.arrays.items())
        for refs in tables
        if len(refs)
    ]
    names = [name for name in INVENTORY.names if name != "id"]
    columns = {
        name: pa.chunked_array([part[name] for part in parts], type=INVENTORY.field(name).type)
        for name in names
    }
    rows = sum(len(part["length"]) for part in parts)
    columns["id"] = pa.chunked_array([pa.array(np.arange(rows, dtype=np.uint32))])
    table = pa.table([columns[name] for name in INVENTORY.names], schema=INVENTORY)
    return write_table(table, {_NOTE: str(_WIDTH)}, level=level)


def check_references(refs: ChunkRefs) -> None:
    """Refuse references that a row cannot hold."""
    if not len(refs):
        return
    problem = None
    virtual = refs.kind == RefKind.VIRTUAL
    tagged = (refs.etag[:, 1] > refs.etag[:, 0]) | (refs.modified > 0)
    if int(refs.length.max()) > _U32:
        problem = "chunks of 4 GiB and more"
    elif refs.ndim and int(refs.index.max()) >= TOP:
        problem = f"chunk indices from {TOP} on"
    elif (virtual & tagged).any():
        problem = "checksums of virtual chunks"
    elif (refs.kind == RefKind.NATIVE).any() and refs.chunk_id.shape[1] != EARLY_OBJECT_ID_SIZE:
        problem = f"chunk ids that do not have {EARLY_OBJECT_ID_SIZE} bytes"
    elif virtual.any() and not all("://" in one for one in refs.locations()):
        problem = "locations of virtual chunks without `://`"
    if problem:
        raise InvalidInputError(
            f"generation `draft` has no place for {problem}; use a newer generation"
        )


def decode_inventory(
    data: bytes, identity: ManifestId, files: FileIds, *, where: str, limit: int, memory: Purse
) -> Manifest:
    """The references of a file in columns, everything checked; `files` learns foreign names."""
    table, notes = read_table(data, INVENTORY, where=where, limit=limit, cost=_COST, memory=memory)
    try:
        columns, width = table.combine_chunks(), notes.get(_NOTE)
        return _InventoryReader(columns, width, files, where, memory).manifest(identity)
    except (pa.ArrowException, ValueError, OverflowError, TypeError, MemoryError) as error:
        raise broken(where, error) from None


def _columns(node: int, refs: ChunkRefs, files: FileIds) -> dict[str, Any]:
    check_references(refs)
    rows = len(refs)
    inline = refs.kind == RefKind.INLINE
    coordinates = np.ascontiguousarray(refs.index, ">u2").tobytes()
    ends = np.arange(rows + 1, dtype=np.int64) * (_WIDTH * refs.ndim)
    return {
        "array_id": pa.array(np.full(rows, node, np.uint32)),
        "coord": _from_bytes(pa.binary(), coordinates, ends, None),
        "inline_data": _inline_data(refs, inline),
        "chunk_file": _chunk_files(refs, ~inline, files),
        "offset": pa.array(np.asarray(refs.offset), mask=inline),
        "length": pa.array(refs.length.astype(np.uint32)),
    }


def _inline_data(refs: ChunkRefs, inline: NDArray[np.bool_]) -> Any:
    sizes = np.where(inline, refs.span[:, 1] - refs.span[:, 0], np.uint64(0)).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    data = np.empty(int(ends[-1]), np.uint8)
    copy_spans(refs.heap, refs.span[:, 0].astype(np.int64), data, ends[:-1], sizes)
    return _from_bytes(pa.binary(), data.tobytes(), ends, inline)


def _chunk_files(refs: ChunkRefs, outside: NDArray[np.bool_], files: FileIds) -> Any:
    """Names of chunk files, nearly always in hexadecimal, and locations of virtual chunks."""
    foreign = (refs.kind == RefKind.NATIVE) & _begin_with(refs.chunk_id, FOREIGN)
    native = (refs.kind == RefKind.NATIVE) & ~foreign
    others = [files.name_of(one.tobytes()).encode() for one in refs.chunk_id[foreign]]
    virtual = refs.kind == RefKind.VIRTUAL
    sizes = np.where(virtual, refs.span[:, 1] - refs.span[:, 0], np.uint64(0)).astype(np.int64)
    sizes[native] = _NAME
    sizes[foreign] = list(map(len, others))
    ends = np.concatenate([[0], np.cumsum(sizes)])
    text = np.empty(int(ends[-1]), np.uint8)
    starts, places = refs.span[:, 0].astype(np.int64), ends[:-1]
    copy_spans(refs.heap, starts[virtual], text, places[virtual], sizes[virtual])
    ids = np.ascontiguousarray(refs.chunk_id[native])
    names = np.stack([_HEX[ids >> 4], _HEX[ids & 15]], axis=2).tobytes()
    begin = np.arange(len(ids), dtype=np.int64) * _NAME
    copy_spans(names, begin, text, places[native], sizes[native])
    begin = np.cumsum(sizes[foreign]) - sizes[foreign]
    copy_spans(b"".join(others), begin, text, places[foreign], sizes[foreign])
    return _from_bytes(pa.string(), text.tobytes(), ends, outside)


def _from_bytes(
    kind: Any, data: bytes, ends: NDArray[np.int64], valid: NDArray[np.bool_] | None
) -> Any:
    if len(data) > _LARGEST_COLUMN:
        raise InvalidInputError(
            "an inventory file of generation `draft` holds 2 GiB of one column at most; split the "
            "manifests of the array"
        )
    bitmap = (
        None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    )
    offsets = pa.py_buffer(ends.astype(np.int32).tobytes())
    return pa.Array.from_buffers(kind, len(ends) - 1, [bitmap, offsets, pa.py_buffer(data)])


def _begin_with(ids: NDArray[np.uint8], mark: bytes) -> NDArray[np.bool_]:
    start = np.frombuffer(mark, np.uint8)
    return np.asarray((ids[:, : len(mark)] == start).all(axis=1), np.bool_)


class _InventoryReader:
    """The columns of one inventory file."""

    def __init__(
        self, table: Any, width: str | None, files: FileIds, where: str, memory: Purse
    ) -> None:
        self.table = table
        self.memory = memory
        self.files = files
        self.where = where
        self.widths = _WIDTHS if width != str(_WIDTH) else (_WIDTH,)

    def manifest(self, identity: ManifestId) -> Manifest:
        """All arrays of the file, read together: one file may have tens of thousands of them."""
        owners = self._numbers("array_id", _U32)
        references = self._references(len(owners))
        coordinates, sizes, starts = self._binary("coord")
        self._check_sizes(owners, sizes)
        tables: dict[int, list[ChunkRefs]] = {owner: [] for owner in distinct(owners).tolist()}
        self.memory.charge(_ARRAY_COST * len(tables))
        for size in distinct(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            raw = _gather(coordinates, starts[rows], size)
            self._add_tables(tables, references.take(rows), owners[rows], raw)
        arrays = {
            NodeId(owner.to_bytes(NODE_ID_SIZE, "big")): tuple(found)
            for owner, found in tables.items()
        }
        return Manifest(identity, arrays)

    def _check_sizes(self, owners: NDArray[np.uint64], sizes: NDArray[np.int64]) -> None:
        order = np.argsort(owners, kind="stable")
        owners, sizes = owners[order], sizes[order]
        if ((owners[1:] == owners[:-1]) & (sizes[1:] != sizes[:-1])).any():
            raise FormatError(f"{self.where}: coordinates of one array differ in length")

    def _add_tables(
        self,
        tables: dict[int, list[ChunkRefs]],
        refs: ChunkRefs,
        owners: NDArray[np.uint64],
        raw: NDArray[np.uint8],
    ) -> None:
        """Tables of arrays whose coordinates are equally long, with every rank they may have.

        Bytes sort as the numbers do, whatever the width.
        """
        size = raw.shape[1]
        widths = [
            width
            for width in (self.widths if size else (_WIDTH,))
            if size % width == 0 and size // width <= MAX_RANK
        ]
        if not widths:
            raise self._not_coordinates(size)
        order = _order(owners, raw)
        owners, raw = owners[order], raw[order]
        same = (owners[1:] == owners[:-1]) & (raw[1:] == raw[:-1]).all(axis=1)
        if same.any():
            raise FormatError(f"{self.where}: a chunk occurs twice")
        refs = refs.take(order)
        begins = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
        ends = [*begins[1:].tolist(), len(owners)]
        places = [(index, fits.tolist()) for index, fits in _indices(raw, widths, begins)]
        for number, (begin, end) in enumerate(zip(begins.tolist(), ends, strict=True)):
            rows = refs.take(slice(begin, end))
            tables[int(owners[begin])] = [
                _placed(rows, index[begin:end]) for index, fits in places if fits[number]
            ]
        if not all(tables[int(owners[begin])] for begin in begins):
            raise self._not_coordinates(size)

    def _not_coordinates(self, size: int) -> FormatError:
        return FormatError(f"{self.where}: {size} bytes are not coordinates of a chunk")

    def _references(self, rows: int) -> ChunkRefs:
        """Everything but coordinates, in the order of the file."""
        length = self._numbers("length", (1 << 63) - 1)
        offset = self._numbers("offset", int(_TOP_OFFSET), optional=True)
        inline_heap, inline_sizes, inline_starts = self._binary("inline_data")
        file_heap, file_sizes, file_starts = self._binary("chunk_file")
        inline, named = self._valid("inline_data"), self._valid("chunk_file")
        if (inline == named).any():
            raise FormatError(f"{self.where}: a chunk must be either inline or in a file")
        if (inline_sizes[inline] != length[inline].astype(np.int64)).any():
            raise FormatError(
                f"{self.where}: the length of an inline chunk differs from that in its row"
            )
        virtual = named & self._is_location()
        native = named & ~virtual
        kind = np.full(rows, RefKind.INLINE, np.uint8)
        kind[virtual], kind[native] = RefKind.VIRTUAL, RefKind.NATIVE
        chunk_id = np.zeros((rows, EARLY_OBJECT_ID_SIZE), np.uint8)
        usual = np.flatnonzero(native & (file_sizes == _NAME))
        found, ours = _from_hex(_gather(file_heap, file_starts[usual], _NAME))
        chunk_id[usual[ours]] = found[ours]
        others = np.concatenate([usual[~ours], np.flatnonzero(native & (file_sizes != _NAME))])
        if len(others):
            chunk_id[others] = self._foreign_ids(others)
        starts = np.where(inline, inline_starts, file_starts + len(inline_heap))
        sizes = np.where(inline, inline_sizes, file_sizes)
        starts[native], sizes[native], offset[inline] = 0, 0, 0
        return ChunkRefs(
            index=np.zeros((rows, 0), np.uint32),
            kind=kind,
            chunk_id=chunk_id,
            offset=offset,
            length=length,
            span=np.stack([starts, starts + sizes], axis=1).astype(np.uint64),
            etag=np.zeros((rows, 2), np.uint64),
            modified=np.zeros(rows, np.uint32),
            heap=inline_heap + file_heap,
        )

    def _foreign_ids(self, rows: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Ids of chunk files that other software named; each name is read once."""
        column = self._column("chunk_file").take(pa.array(rows)).cast(pa.large_string())
        encoded = pc.dictionary_encode(column)
        names = encoded.dictionary.to_pylist()
        ids = [self.files.id_of(name, where=self.where) for name in names]
        table = np.frombuffer(b"".join(ids), np.uint8).reshape(len(ids), EARLY_OBJECT_ID_SIZE)
        return np.asarray(table[encoded.indices.to_numpy(zero_copy_only=False)], np.uint8)

    def _is_location(self) -> NDArray[np.bool_]:
        column = self._column("chunk_file")
        if column is None:
            return np.zeros(len(self.table), np.bool_)
        found = pc.fill_null(pc.match_substring(column, "://"), False)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    def _column(self, name: str) -> Any:
        if name not in self.table.column_names:
            return None
        column = self.table.column(name)
        empty = pa.array([], type=column.type)
        return column.chunk(0) if column.num_chunks else empty

    def _valid(self, name: str) -> NDArray[np.bool_]:
        column = self._column(name)
        if column is None:
            return np.zeros(len(self.table), np.bool_)
        return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)

    def _numbers(self, name: str, most: int, *, optional: bool = False) -> NDArray[np.uint64]:
        column = self._column(name)
        if column is None:
            return np.zeros(len(self.table), np.uint64)
        if not pa.types.is_integer(column.type):
            raise FormatError(f"{self.where}: the column {name!r} does not hold integers")
        if column.null_count and not optional:
            raise FormatError(f"{self.where}: the column {name!r} has gaps")
        numbers = pc.fill_null(column, 0).cast(pa.uint64()).to_numpy(zero_copy_only=False)
        if len(numbers) and int(numbers.max()) > most:
            raise FormatError(f"{self.where}: a number in {name!r} is larger than {most}")
        return np.array(numbers, np.uint64)

    def _binary(self, name: str) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
        """Bytes of a column, and the size and start of each row in them; gaps have none."""
        column = self._column(name)
        if column is None:
            rows = len(self.table)
            return b"", np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        column = pc.fill_null(column.cast(pa.large_binary()), b"")
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        heap = b"" if data is None else data.to_pybytes()
        return heap, np.diff(ends), ends[:-1].copy()


def _from_hex(names: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Ids from names of the usual length, and which of them this package created."""
    nibbles = _NIBBLES[names]
    ids = np.asarray(nibbles[:, 0::2] << 4 | nibbles[:, 1::2], np.uint8)
    ours = ~(nibbles == 255).any(axis=1) & ~_begin_with(ids, FOREIGN)
    return ids, np.asarray(ours, np.bool_)


def _gather(heap: bytes, starts: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """`(n, size)` bytes from places in a heap."""
    out = np.empty(len(starts) * size, np.uint8)
    sizes = np.full(len(starts), size, np.int64)
    copy_spans(heap, starts, out, np.arange(len(starts), dtype=np.int64) * size, sizes)
    return out.reshape(len(starts), size)


def _order(owners: NDArray[np.uint64], raw: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Rows sorted by array and coordinate, which they nearly always are already."""
    places = np.empty((len(raw), 1 + raw.shape[1] // 2), np.uint32)
    places[:, 0] = owners
    if raw.shape[1]:
        places[:, 1:] = raw.view(">u2")
    (keys,) = sort_keys(places)
    return np.argsort(keys, kind="stable")


def _indices(
    raw: NDArray[np.uint8], widths: list[int], begins: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.bool_]]]:
    """Coordinates as numbers of each width, and for which arrays none is too large."""
    for width in widths:
        if not raw.shape[1]:
            yield np.zeros((len(raw), 0), np.uint32), np.ones(len(begins), np.bool_)
            continue
        index = raw.view(f">u{width}")
        yield index.astype(np.uint32), np.maximum.reduceat(index.max(axis=1), begins) <= _U32


def _placed(refs: ChunkRefs, index: NDArray[np.uint32]) -> ChunkRefs:
    # `dataclasses.replace` takes three times as long, for each array of a file.
    return ChunkRefs(
        index=index,
        kind=refs.kind,
        chunk_id=refs.chunk_id,
        offset=refs.offset,
        length=refs.length,
        span=refs.span,
        etag=refs.etag,
        modified=refs.modified,
        heap=refs.heap,
    )
