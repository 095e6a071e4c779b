"""Chunk references as columns: one row per chunk, one NumPy array per field.

A manifest of a million chunks is a dozen arrays, not a million objects. The same type serves a
decoded manifest, the edits of a session (where `RefKind.ERASED` rows remove a chunk) and what a
worker returns, so reading is `base.overlay(edits)`, merging workers is `overlay` as well, and a
conflict is a test for common rows. A Python object is made only when a single reference is
requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import (
    copy_spans,
    span_keys,
    split_keys,
)
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .coordinates import Index, Lookup, common_rows, distinct, sort_keys
from .ids import OBJECT_ID_SIZE, ChunkId


class RefKind(IntEnum):
    """Where the bytes of a chunk are."""

    ERASED = 0
    """The row removes the chunk. Only in edits, never in a manifest."""
    INLINE = 1
    NATIVE = 2
    VIRTUAL = 3


@dataclass(frozen=True, slots=True)
class ETag:
    """The external object must still have this entity tag."""

    value: str


@dataclass(frozen=True, slots=True)
class LastModified:
    """The external object must not have been modified after this time."""

    seconds: int
    """Seconds since 1970 UTC; 32 bits on disk, so times after 2106 are stored as the last one."""


Checksum = ETag | LastModified


@dataclass(frozen=True, slots=True)
class Inline:
    """The bytes themselves."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Native:
    """A range of a chunk file of this repository. Several chunks may share a file."""

    chunk_id: ChunkId
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Virtual:
    """A range of an external object."""

    location: str
    offset: int
    length: int
    checksum: Checksum | None = None


Payload = Inline | Native | Virtual

__all__ = [
    "Checksum",
    "ChunkRefs",
    "ETag",
    "Extents",
    "Index",
    "Inline",
    "LastModified",
    "Native",
    "Payload",
    "RefKind",
    "Virtual",
    "common_rows",
    "concatenate",
    "sort_keys",
]

Number = TypeVar("Number", bound=np.generic)
Extents = tuple[tuple[int, int], ...]
"""One half-open range of chunk indices per dimension; empty for a 0-d array."""

_TOP_SECOND = (1 << 32) - 1


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRefs:
    """The references of one array. Rows are strictly increasing by index.

    Build with `of` (sorts; the last row of an index wins), `from_items` or `empty`; the plain
    constructor trusts its caller to keep the order, as decoders do after checking it.
    """

    index: NDArray[np.uint32]
    """`(n, d)` chunk coordinates, rows strictly increasing."""
    kind: NDArray[np.uint8]
    """`(n,)` values of `RefKind`."""
    chunk_id: NDArray[np.uint8]
    """`(n, 12)` object ids, 16 wide in two early generations; zeros unless `NATIVE`.

    Without native rows the width has no meaning: joining adapts the narrower column.
    """
    offset: NDArray[np.uint64]
    """`(n,)` zero for `INLINE`."""
    length: NDArray[np.uint64]
    """`(n,)` size of the chunk in bytes, for every kind."""
    span: NDArray[np.uint64]
    """`(n, 2)` start and stop in `heap`: inline bytes, or the UTF-8 location of a virtual chunk."""
    etag: NDArray[np.uint64]
    """`(n, 2)` start and stop in `heap` of the entity tag; equal when there is none."""
    modified: NDArray[np.uint32]
    """`(n,)` last-modified checksum in seconds; 0 when there is none."""
    heap: bytes | bytearray | memoryview = b""
    """Backing bytes of all spans; for a decoded manifest, the payload itself."""
    extra: NDArray[np.uint64] | None = None
    """`(n, 2)` start and stop in `heap` of what newer releases add to references; it is not used
    yet, but written back. Equal when there is nothing; `None` when no row has anything."""
    _lookup: list[Lookup] = field(default_factory=list, init=False, repr=False)
    """Sort keys for `find`, created on first use; derived, so not part of the value."""

    @classmethod
    def empty(cls, ndim: int, id_size: int = OBJECT_ID_SIZE) -> Self:
        """No references, of an array with `ndim` dimensions."""
        known = _EMPTY.get((ndim, id_size))
        if known is None or type(known) is not cls:
            known = cls.blank(np.zeros((0, ndim), np.uint32), id_size=id_size)
            _EMPTY[ndim, id_size] = known
        return known

    @classmethod
    def blank(
        cls,
        index: NDArray[np.uint32],
        *,
        kind: RefKind = RefKind.ERASED,
        id_size: int = OBJECT_ID_SIZE,
    ) -> Self:
        """Rows at `index` (already ordered) with every other column constant and unallocated."""
        rows = len(index)
        return cls(
            index=index,
            kind=np.broadcast_to(np.uint8(kind), (rows,)),
            chunk_id=np.broadcast_to(np.uint8(0), (rows, id_size)),
            offset=np.broadcast_to(np.uint64(0), (rows,)),
            length=np.broadcast_to(np.uint64(0), (rows,)),
            span=np.broadcast_to(np.uint64(0), (rows, 2)),
            etag=np.broadcast_to(np.uint64(0), (rows, 2)),
            modified=np.broadcast_to(np.uint32(0), (rows,)),
        )

    @classmethod
    def from_items(cls, ndim: int, items: Iterable[tuple[Index, Payload | None]]) -> ChunkRefs:
        """Columns of single references; `None` erases. The last item of an index wins."""
        latest = dict(items)
        rows = len(latest)
        index = np.array(list(latest), np.uint32).reshape(rows, ndim)
        kind = np.zeros(rows, np.uint8)
        natives = (item.chunk_id for item in latest.values() if isinstance(item, Native))
        chunk_id = np.zeros((rows, max(map(len, natives), default=OBJECT_ID_SIZE)), np.uint8)
        numbers = np.zeros((rows, 2), np.uint64)
        spans = np.zeros((rows, 4), np.uint64)
        modified = np.zeros(rows, np.uint32)
        heap = bytearray()
        places: dict[bytes, tuple[int, int]] = {}

        def keep(data: bytes) -> tuple[int, int]:
            if data not in places:
                start = len(heap)
                heap.extend(data)
                places[data] = start, len(heap)
            return places[data]

        for row, payload in enumerate(latest.values()):
            match payload:
                case None:
                    continue
                case Inline(data):
                    kind[row] = RefKind.INLINE
                    numbers[row, 1] = len(data)
                    spans[row, :2] = keep(data)
                case Native(identity, offset, length):
                    kind[row] = RefKind.NATIVE
                    chunk_id[row] = np.frombuffer(identity, np.uint8)
                    numbers[row] = offset, length
                case Virtual(location, offset, length, checksum):
                    kind[row] = RefKind.VIRTUAL
                    numbers[row] = offset, length
                    spans[row, :2] = keep(location.encode())
                    match checksum:
                        case ETag(value):
                            spans[row, 2:] = keep(value.encode())
                        case LastModified(seconds):
                            modified[row] = min(max(seconds, 1), _TOP_SECOND)
                        case None:
                            pass
        return cls.of(
            cls(
                index=index,
                kind=kind,
                chunk_id=chunk_id,
                offset=numbers[:, 0],
                length=numbers[:, 1],
                span=spans[:, :2],
                etag=spans[:, 2:],
                modified=modified,
                heap=bytes(heap),
            )
        )

    @staticmethod
    def of(rows: ChunkRefs) -> ChunkRefs:
        """The same rows in order, with only the last of those with equal indices."""
        if len(rows) < 2:
            return rows
        (keys,) = sort_keys(rows.index)
        if bool(np.all(np.less(keys[:-1], keys[1:]))):
            return rows
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        last = np.append(keys[1:] != keys[:-1], True)
        return rows.take(order[last])

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        return int(self.index.shape[1])

    @property
    def nbytes(self) -> int:
        """Approximate memory of the columns and the heap."""
        return self.index.nbytes + len(self) * (1 + 12 + 8 + 8 + 16 + 16 + 4) + len(self.heap)

    def __getitem__(self, row: int) -> Payload | None:
        """The reference in one row; `None` for an erased one."""
        match RefKind(int(self.kind[row])):
            case RefKind.ERASED:
                return None
            case RefKind.INLINE:
                return Inline(self._heap_bytes(self.span[row]))
            case RefKind.NATIVE:
                return Native(
                    ChunkId(self.chunk_id[row].tobytes()),
                    int(self.offset[row]),
                    int(self.length[row]),
                )
            case RefKind.VIRTUAL:
                return Virtual(
                    self._text(self.span[row], "location"),
                    int(self.offset[row]),
                    int(self.length[row]),
                    self._checksum(row),
                )

    def find_row(self, index: Sequence[int]) -> int | None:
        """The row of `index`, or `None` if there is none."""
        if not len(self):
            return None
        if not self._lookup:
            self._lookup.append(Lookup.over(self.index))
        return self._lookup[0].row(index)

    def find(self, index: Sequence[int]) -> Payload | None:
        """The reference at `index`, or `None` if there is none or it is erased."""
        row = self.find_row(index)
        return None if row is None else self[row]

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Self:
        """Selected rows over the same heap; the caller keeps them in order."""
        # Not `replace`, which takes longer than everything else here; called for each array.
        return type(self)(
            index=self.index[rows],
            kind=self.kind[rows],
            chunk_id=self.chunk_id[rows],
            offset=self.offset[rows],
            length=self.length[rows],
            span=self.span[rows],
            etag=self.etag[rows],
            modified=self.modified[rows],
            heap=self.heap,
            extra=None if self.extra is None else self.extra[rows],
        )

    def overlay(self, newer: ChunkRefs) -> ChunkRefs:
        """These references, replaced by `newer` where both have one; erasures stay as rows."""
        if not len(newer):
            return self
        if not len(self):
            return newer
        return _RowMerge.of(self, newer).apply(self, newer)

    def without_erased(self) -> Self:
        """Only the rows that are not erased."""
        keep = self.kind != RefKind.ERASED
        return self if keep.all() else self.take(keep)

    def inside(self, extents: Extents) -> NDArray[np.bool_]:
        """Which rows are inside `extents`."""
        if not self.ndim:
            return np.ones(len(self), np.bool_)
        if len(self) and all(
            low <= start and stop <= high
            for (start, stop), (low, high) in zip(self.extents(), extents, strict=True)
        ):
            return np.ones(len(self), np.bool_)
        low = np.array([start for start, _ in extents], np.uint64)
        high = np.array([stop for _, stop in extents], np.uint64)
        return np.asarray(((self.index >= low) & (self.index < high)).all(axis=1))

    def without(self, other: NDArray[np.uint32]) -> Self:
        """These references except those at the coordinates `other`."""
        hit = common_rows(self.index, other)
        return self.take(~hit) if hit.any() else self

    def extents(self) -> Extents:
        """The bounding box of the rows; raises if there are none."""
        if not len(self):
            raise InvalidInputError("without chunk references there is no bounding box")
        if len(self) == 1:
            return tuple((number, number + 1) for number in self.index[0].tolist())
        low, high = self.index.min(axis=0), self.index.max(axis=0)
        return tuple((int(a), int(b) + 1) for a, b in zip(low, high, strict=True))

    def compact(self) -> Self:
        """The same rows over a heap that holds only the bytes they use."""
        rows = len(self)
        both = np.concatenate([self.span, self.etag, *([] if self.extra is None else [self.extra])])
        filled = both[:, 1] > both[:, 0]
        used = span_keys(both[filled])
        keys = distinct(used)
        starts, sizes = split_keys(keys)
        if int(sizes.sum()) * 2 >= len(self.heap):
            return self
        ends = np.cumsum(sizes)
        heap = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        copy_spans(self.heap, starts, heap, ends - sizes, sizes)
        moved = np.zeros_like(both)
        moved[filled] = np.stack([ends - sizes, ends], axis=1)[np.searchsorted(keys, used)]
        return replace(
            self,
            span=moved[:rows],
            etag=moved[rows : 2 * rows],
            extra=None if self.extra is None else moved[2 * rows :],
            heap=heap.tobytes(),
        )

    def locations(self) -> list[str]:
        """Distinct locations of the virtual references, sorted."""
        starts, sizes = split_keys(distinct(span_keys(self.span[self.kind == RefKind.VIRTUAL])))
        spans = np.stack([starts, starts + sizes], axis=1)
        return sorted({self._text(span, "location") for span in spans})

    def native_ids(self) -> NDArray[np.uint8]:
        """`(m, 12)` ids of the chunk files in use, with duplicates."""
        return np.asarray(self.chunk_id[self.kind == RefKind.NATIVE])

    def _checksum(self, row: int) -> Checksum | None:
        if self.etag[row, 1] > self.etag[row, 0]:
            return ETag(self._text(self.etag[row], "entity tag"))
        return LastModified(int(self.modified[row])) if self.modified[row] else None

    def _heap_bytes(self, span: NDArray[np.integer]) -> bytes:
        return bytes(self.heap[int(span[0]) : int(span[1])])

    def _text(self, span: NDArray[np.integer], what: str) -> str:
        try:
            return self._heap_bytes(span).decode()
        except UnicodeDecodeError:
            raise FormatError(f"the {what} of a virtual chunk is not UTF-8") from None


_EMPTY: dict[tuple[int, int], ChunkRefs] = {}
"""Shared: a session needs one for every array it inspects."""


@dataclass(frozen=True, slots=True)
class _RowMerge:
    """The rows of two ordered tables in their union, where the second one wins.

    Overlaying a few edits on many rows costs a copy of the columns, not a sort.
    """

    rows: int
    newer: NDArray[np.intp]
    """Final position of each newer row."""
    older: NDArray[np.bool_] | None
    """Final positions of the older rows, in order; `None` if it has the older table's size."""

    @classmethod
    def of(cls, older: ChunkRefs, newer: ChunkRefs) -> Self:
        old, new = sort_keys(older.index, newer.index)
        place = np.searchsorted(old, new)
        replaces = np.equal(old[np.minimum(place, len(old) - 1)], new)
        added = ~replaces
        final = place + np.cumsum(added) - added
        rows = len(old) + int(added.sum())
        if rows == len(old):
            return cls(rows, final, None)
        kept = np.ones(rows, np.bool_)
        kept[final[added]] = False
        return cls(rows, final, kept)

    def apply(self, older: ChunkRefs, newer: ChunkRefs) -> ChunkRefs:
        heap, shift = older.heap, np.uint64(0)
        if newer.heap is not older.heap and len(newer.heap):
            shift = np.uint64(len(heap))
            heap = b"".join((heap, newer.heap))
        return ChunkRefs(
            index=self._column(older.index, newer.index),
            kind=self._column(older.kind, newer.kind),
            chunk_id=self._column(*_equally_wide([older.chunk_id, newer.chunk_id])),
            offset=self._column(older.offset, newer.offset),
            length=self._column(older.length, newer.length),
            span=self._column(older.span, newer.span + shift),
            etag=self._column(older.etag, newer.etag + shift),
            modified=self._column(older.modified, newer.modified),
            heap=heap,
            extra=self._extra(older, newer, shift),
        )

    def _extra(
        self, older: ChunkRefs, newer: ChunkRefs, shift: np.uint64
    ) -> NDArray[np.uint64] | None:
        if older.extra is None and newer.extra is None:
            return None
        return self._column(_extra_of(older), _extra_of(newer) + shift)

    def _column(self, older: NDArray[Number], newer: NDArray[Number]) -> NDArray[Number]:
        if self.older is None:
            column = older.copy()
        else:
            column = np.empty((self.rows, *older.shape[1:]), older.dtype)
            column[self.older] = older
        column[self.newer] = newer
        return column


def concatenate(parts: Sequence[ChunkRefs]) -> ChunkRefs:
    """All rows concatenated over one heap; order and uniqueness are up to the caller."""
    if len(parts) == 1:
        return parts[0]
    if len({part.ndim for part in parts}) != 1:
        raise InvalidInputError("references of arrays with different ranks cannot be joined")
    heaps: dict[int, int] = {}
    pieces: list[bytes | bytearray | memoryview] = []
    end = 0
    for part in parts:
        if id(part.heap) not in heaps:
            heaps[id(part.heap)] = end
            pieces.append(part.heap)
            end += len(part.heap)
    shifts = [np.uint64(heaps[id(part.heap)]) for part in parts]
    return ChunkRefs(
        index=np.concatenate([part.index for part in parts]),
        kind=np.concatenate([part.kind for part in parts]),
        chunk_id=np.concatenate(_equally_wide([part.chunk_id for part in parts])),
        offset=np.concatenate([part.offset for part in parts]),
        length=np.concatenate([part.length for part in parts]),
        span=np.concatenate([p.span + s for p, s in zip(parts, shifts, strict=True)]),
        etag=np.concatenate([p.etag + s for p, s in zip(parts, shifts, strict=True)]),
        modified=np.concatenate([part.modified for part in parts]),
        heap=b"".join(pieces),
        extra=None
        if all(part.extra is None for part in parts)
        else np.concatenate([_extra_of(p) + s for p, s in zip(parts, shifts, strict=True)]),
    )


def _extra_of(refs: ChunkRefs) -> NDArray[np.uint64]:
    return np.zeros((len(refs), 2), np.uint64) if refs.extra is None else refs.extra


def _equally_wide(columns: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Id columns of one repository; one without native rows may be too narrow."""
    width = max(column.shape[1] for column in columns)
    return [
        np.pad(column, ((0, 0), (0, width - column.shape[1])))
        if column.shape[1] < width
        else column
        for column in columns
    ]
