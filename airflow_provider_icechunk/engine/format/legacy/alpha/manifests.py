"""Manifests of `alpha`: four layouts are read into columns, the last one is written.

The first layout has one map from node and coordinates to references, the others a map of maps by
node. A bug of early writers left coordinates of one array under the id of another: every rank found
under an id gets its own `ChunkRefs`, and readers ask for theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.coordinates import distinct
from airflow_provider_icechunk.engine.format.ids import (
    OBJECT_ID_SIZE,
    ManifestId,
    NodeId,
    decode_many,
    encode_base32,
    text_length,
)
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.wire.messagepack import (
    Array,
    Pairs,
    Value,
    as_array,
    as_number,
    as_pairs,
    as_text,
    as_variant,
    is_array,
    map_header,
    unpack,
)
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .pack import pack_rows
from .scalars import check_flags, check_version, decode_manifest_id, decode_node_id, encode_id
from .scan import scan_manifest

_T = TypeVar("_T")
_Unsigned = TypeVar("_Unsigned", np.uint32, np.uint64)


def decode_manifest(
    payload: bytes, expected: ManifestId, *, where: str, memory: Purse | None = None
) -> Manifest:
    """The manifest in an unpacked payload, rows in order."""
    regular = scan_manifest(payload, memory)
    if regular is not None:
        identity, arrays = regular
        _check_id(ManifestId(identity), expected, where)
        return Manifest(expected, {node: arrays[node] for node in sorted(arrays)})
    value = unpack(payload, where=where, memory=memory)
    items = as_array(value, "the manifest", where=where, sizes=(2, 3, 4))
    if len(items) > 2:
        check_version(items[0], where=where)
        check_flags(items[1], where=where)
    if len(items) != 3:
        _check_id(decode_manifest_id(items[-2], where=where), expected, where)
    entries = as_pairs(items[-1], "the references", where=where)
    nested = len(items) != 3 or _is_nested(entries)
    by_node = _nested_rows(entries, where) if nested else _flat_rows(entries, where)
    return Manifest(expected, _arrays(by_node, where))


def encode_manifest(manifest: Manifest) -> bytes:
    """A payload in the last layout; arrays without references are left out."""
    arrays = [(node, parts) for node, parts in manifest.arrays.items() if sum(map(len, parts))]
    pieces: list[bytes] = [b"\x92", encode_id(manifest.id), map_header(len(arrays))]
    for node, parts in sorted(arrays, key=lambda item: item[0]):
        pieces += (encode_id(node), map_header(sum(map(len, parts))))
        for refs in parts:
            pieces.extend(pack_rows(refs))
    return b"".join(pieces)


def _check_id(identity: ManifestId, expected: ManifestId, where: str) -> None:
    if identity != expected:
        raise FormatError(f"{where}: says it is manifest {encode_base32(identity)}")


def _is_nested(entries: Pairs) -> bool:
    """Ids were text or numbers in the first layout, and binary when maps became nested."""
    key = entries[0][0] if entries else None
    return is_array(key) and len(key) == 2 and isinstance(key[0], bytes)


def _nested_rows(entries: Pairs, where: str) -> dict[NodeId, Pairs]:
    rows: dict[NodeId, Pairs] = {}
    for key, value in entries:
        node = decode_node_id(key, where=where)
        if node in rows:
            raise FormatError(f"{where}: has the references of one array twice")
        rows[node] = as_pairs(value, "the references of an array", where=where)
    return rows


def _flat_rows(entries: Pairs, where: str) -> dict[NodeId, Pairs]:
    rows: dict[int | str, Pairs] = {}
    for key, payload in entries:
        if not is_array(key) or len(key) != 2 or not isinstance(key[0], int | str):
            raise FormatError(f"{where}: a key is not a node id with coordinates")
        rows.setdefault(key[0], []).append((key[1], payload))
    return {decode_node_id(node, where=where): part for node, part in rows.items()}


def _arrays(by_node: dict[NodeId, Pairs], where: str) -> dict[NodeId, tuple[ChunkRefs, ...]]:
    """The references of every array, one value for each rank; all of one rank are read together."""
    nodes = [node for node in sorted(by_node) if by_node[node]]
    rows = list(chain.from_iterable(by_node[node] for node in nodes))
    counts = np.array([len(by_node[node]) for node in nodes], np.int64)
    owners = np.repeat(np.arange(len(nodes), dtype=np.uint32), counts)
    coordinates = typed([row[0] for row in rows], tuple, "a list of coordinates", where)
    references = [row[1] for row in rows]
    sizes = np.fromiter(map(len, coordinates), np.int64, len(rows))
    ranks = distinct(sizes).tolist()
    if ranks and ranks[-1] > _MAX_RANK:
        raise FormatError(f"{where}: a chunk has {ranks[-1]} coordinates")
    arrays: dict[NodeId, tuple[ChunkRefs, ...]] = dict.fromkeys(nodes, ())
    for rank in ranks:
        at = np.flatnonzero(sizes == rank)
        every = len(at) == len(rows)
        refs = _columns(
            coordinates if every else _pick(coordinates, at),
            references if every else _pick(references, at),
            rank,
            where,
        )
        for owner, part in _by_owner(refs, owners[at]):
            arrays[nodes[owner]] += (part,)
    return arrays


def _by_owner(refs: ChunkRefs, owners: NDArray[np.uint32]) -> Iterator[tuple[int, ChunkRefs]]:
    """The rows of each array in order, the last one of those with equal coordinates."""
    if owners[0] == owners[-1]:
        yield int(owners[0]), ChunkRefs.of(refs)
        return
    placed = replace(refs, index=np.column_stack([owners, refs.index]))
    ordered = ChunkRefs.of(placed)
    owners = ordered.index[:, 0]
    starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])).tolist()
    refs = replace(ordered, index=np.ascontiguousarray(ordered.index[:, 1:]))
    for start, stop in zip(starts, [*starts[1:], len(owners)], strict=True):
        yield int(owners[start]), refs.take(slice(start, stop))


def _columns(
    coordinates: Sequence[Array], references: Sequence[Value], rank: int, where: str
) -> ChunkRefs:
    """The rows as columns in the order of the file, with list operations over whole fields."""
    rows = len(coordinates)
    flat = list(chain.from_iterable(coordinates))
    index = numbers(flat, np.uint32, "a coordinate", where).reshape(rows, rank)
    names, bodies = _variants(references, where)
    try:
        kind = np.fromiter(map(_KINDS.__getitem__, names), np.uint8, rows)
    except KeyError as error:
        raise FormatError(f"{where}: no kind of reference is called {str(error)[:64]}") from None
    builder = _Builder(kind, where)
    for value, fill in (
        (RefKind.NATIVE, builder.native),
        (RefKind.INLINE, builder.inline),
        (RefKind.VIRTUAL, builder.virtual),
    ):
        at = np.flatnonzero(kind == value)
        if len(at):
            fill(at, bodies if len(at) == rows else _pick(bodies, at))
    return builder.refs(index)


def _variants(references: Sequence[Value], where: str) -> tuple[Sequence[str], list[Value]]:
    variants: Sequence[Pairs] = typed(references, list, "a reference", where)
    if set(map(len, variants)) != {1}:
        raise FormatError(f"{where}: a reference is not of one kind")
    names = typed([variant[0][0] for variant in variants], str, "a kind of reference", where)
    return names, [variant[0][1] for variant in variants]


class _Builder:
    """Columns that are filled kind by kind; unused fields stay zero."""

    def __init__(self, kind: NDArray[np.uint8], where: str) -> None:
        rows = len(kind)
        self.where = where
        self.kind = kind
        self.chunk_id = np.zeros((rows, OBJECT_ID_SIZE), np.uint8)
        self.offset = np.zeros(rows, np.uint64)
        self.length = np.zeros(rows, np.uint64)
        self.span = np.zeros((rows, 2), np.uint64)
        self.etag = np.zeros((rows, 2), np.uint64)
        self.modified = np.zeros(rows, np.uint32)
        self.heap = bytearray()

    def native(self, at: NDArray[np.intp], bodies: Sequence[Value]) -> None:
        """References to chunk files: id, offset, length."""
        ids, offsets, lengths = self._fields(bodies, (3,))
        self.chunk_id[at] = _ids(ids, self.where)
        self._ranges(at, offsets, lengths)

    def inline(self, at: NDArray[np.intp], bodies: Sequence[Value]) -> None:
        """The bytes themselves."""
        data = typed(bodies, bytes, "inline data", self.where)
        self.length[at] = np.fromiter(map(len, data), np.uint64, len(data))
        self.span[at] = self._keep(data)

    def virtual(self, at: NDArray[np.intp], bodies: Sequence[Value]) -> None:
        """Ranges of foreign objects: location, offset, length, and a checksum in later shapes."""
        locations, offsets, lengths, *rest = self._fields(bodies, (3, 4))
        self._ranges(at, offsets, lengths)
        self.span[at] = self._keep([_location(item, self.where) for item in locations])
        for row, checksum in zip(at, rest[0] if rest else (), strict=bool(rest)):
            if checksum is not None:
                self._checksum(int(row), checksum)

    def refs(self, index: NDArray[np.uint32]) -> ChunkRefs:
        """The columns with these coordinates, in the order of the file."""
        return ChunkRefs(
            index=index,
            kind=self.kind,
            chunk_id=self.chunk_id,
            offset=self.offset,
            length=self.length,
            span=self.span,
            etag=self.etag,
            modified=self.modified,
            heap=bytes(self.heap),
        )

    def _fields(self, bodies: Sequence[Value], sizes: Sequence[int]) -> list[tuple[Value, ...]]:
        records: Sequence[Array] = typed(bodies, tuple, "a reference", self.where)
        found = set(map(len, records))
        if len(found) != 1 or not found <= set(sizes):
            raise FormatError(f"{self.where}: references have {sorted(found)[:4]} items")
        return list(zip(*records, strict=True))

    def _ranges(
        self, at: NDArray[np.intp], offsets: Sequence[Value], lengths: Sequence[Value]
    ) -> None:
        self.offset[at] = numbers(offsets, np.uint64, "an offset", self.where)
        self.length[at] = numbers(lengths, np.uint64, "a length", self.where)

    def _keep(self, items: Sequence[bytes]) -> NDArray[np.uint64]:
        """Where in the heap the items are; equal items are kept once."""
        places: dict[bytes, int] = {}
        at = [places.setdefault(item, len(places)) for item in items]
        sizes = np.fromiter(map(len, places), np.uint64, len(places))
        ends = np.cumsum(sizes, dtype=np.uint64) + np.uint64(len(self.heap))
        self.heap += b"".join(places)
        return np.stack([ends - sizes, ends], axis=1)[at]

    def _checksum(self, row: int, value: Value) -> None:
        kind, content = as_variant(value, "a checksum", where=self.where)
        if kind == "LastModified":
            self.modified[row] = as_number(
                content, "a modification time", where=self.where, most=(1 << 32) - 1
            )
        elif kind == "ETag":
            tag = as_text(content, "an entity tag", where=self.where)
            self.etag[row] = self._keep([tag.encode()])[0]
        else:
            raise FormatError(f"{self.where}: a checksum of unknown kind {kind[:64]!r}")


def _location(value: Value, where: str) -> bytes:
    """A plain location, or one in the `Absolute` variant of early shapes."""
    if not isinstance(value, str):
        variant, value = as_variant(value, "a location", where=where)
        if variant != "Absolute":
            raise FormatError(f"{where}: a location of unknown kind {variant[:64]!r}")
    return as_text(value, "a location", where=where).encode()


def _ids(values: Sequence[Value], where: str) -> NDArray[np.uint8]:
    what = "the id of a chunk"
    if isinstance(values[0], str):
        texts = typed(values, str, what, where)
        length = text_length(OBJECT_ID_SIZE)
        joined = "".join(texts).encode()
        if set(map(len, texts)) != {length} or len(joined) != length * len(texts):
            raise FormatError(f"{where}: {what} does not have {length} characters")
        try:
            return decode_many(np.frombuffer(joined, f"S{length}"))
        except InvalidInputError as error:
            raise FormatError(f"{where}: {error.message}") from None
    pairs: Sequence[Array] = typed(values, tuple, what, where)
    if set(map(len, pairs)) != {2} or any(pair[1] != () for pair in pairs):
        raise FormatError(f"{where}: {what} is not binary and an empty array")
    parts = typed([pair[0] for pair in pairs], bytes, what, where)
    if set(map(len, parts)) != {OBJECT_ID_SIZE}:
        raise FormatError(f"{where}: {what} does not have {OBJECT_ID_SIZE} bytes")
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, OBJECT_ID_SIZE)


def _pick(values: Sequence[_T], at: NDArray[np.intp]) -> list[_T]:
    return [values[row] for row in at]


def typed(values: Sequence[Value], expected: type[_T], what: str, where: str) -> Sequence[_T]:
    """The same values, all of exactly one type; a boolean is not a number."""
    if not set(map(type, values)) <= {expected}:
        raise FormatError(f"{where}: {what} is not of type {expected.__name__}")
    return cast("Sequence[_T]", values)


def numbers(
    values: Sequence[Value], dtype: type[_Unsigned], what: str, where: str
) -> NDArray[_Unsigned]:
    """A column of unsigned integers."""
    integers = typed(values, int, what, where)
    try:
        return np.fromiter(integers, dtype, len(integers))
    except OverflowError:
        most = np.iinfo(dtype).max
        raise FormatError(f"{where}: {what} is not between 0 and {most}") from None


_KINDS = {"Ref": RefKind.NATIVE, "Inline": RefKind.INLINE, "Virtual": RefKind.VIRTUAL}
_MAX_RANK = 255
