"""Manifests of `alpha1`: one object from node and coordinates to references, as columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.ids import EARLY_OBJECT_ID_SIZE, ManifestId, NodeId
from airflow_provider_icechunk.engine.format.legacy.alpha.manifests import numbers, typed
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_RANK
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .snapshots import node_number, read_node_id

_KINDS = {"Ref": RefKind.NATIVE, "Inline": RefKind.INLINE, "Virtual": RefKind.VIRTUAL}
_KEY = re.compile(r"(?:0|[1-9][0-9]{0,9})(?:/(?:0|[1-9][0-9]{0,9}))*", re.ASCII)
_TOP = np.uint64((1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Entries:
    """Chunk references one by one, from either encoding."""

    nodes: Sequence[int]
    coordinates: Sequence[Sequence[int]]
    kinds: Sequence[str]
    """Names of variants."""
    bodies: Sequence[Any]
    """Of `Ref`: id, offset, length; of `Virtual`: location, offset, length; of `Inline`: bytes."""


def read_manifest(document: object, identity: ManifestId, *, where: str) -> Manifest:
    """The manifest in a document, which holds no id."""
    fields = js.as_object(document, "the manifest", where=where, required=["chunks"])
    chunks = js.as_object(fields["chunks"], "the chunks", where=where)
    keys = list(chunks)
    if not all(map(_KEY.fullmatch, keys)):
        raise FormatError(f"{where}: a key is not a node with coordinates, as in `7/0/1`")
    parts = [[int(part) for part in key.split("/")] for key in keys]
    payloads = typed(list(chunks.values()), dict, "a reference", where)
    if any(len(payload) != 1 for payload in payloads):
        raise FormatError(f"{where}: a reference is not of one kind")
    pairs = [next(iter(payload.items())) for payload in payloads]
    entries = Entries(
        nodes=[part[0] for part in parts],
        coordinates=[part[1:] for part in parts],
        kinds=[kind for kind, _ in pairs],
        bodies=_bodies(pairs, where),
    )
    return columns_of(entries, identity, where=where)


def write_manifest(manifest: Manifest) -> dict[str, Any]:
    """The document of a manifest."""
    chunks: dict[str, Any] = {}
    for node, parts in manifest.arrays.items():
        for refs in parts:
            check_references(refs)
            prefix = str(node_number(node))
            keys = ["/".join(map(str, [prefix, *row])) for row in refs.index.tolist()]
            try:
                chunks.update(zip(keys, _payloads(refs), strict=True))
            except UnicodeDecodeError:
                raise InvalidInputError("the location of a virtual chunk is not UTF-8") from None
    return {"chunks": chunks}


def check_references(refs: ChunkRefs) -> None:
    """Refuse ids of another size, and checksums, for which virtual references have no field."""
    if refs.chunk_id.shape[1] != EARLY_OBJECT_ID_SIZE and (refs.kind == RefKind.NATIVE).any():
        raise InvalidInputError(
            f"chunk ids of generation `alpha1` have {EARLY_OBJECT_ID_SIZE} bytes"
        )
    virtual = refs.kind == RefKind.VIRTUAL
    tagged = (refs.etag[:, 1] > refs.etag[:, 0]) | (refs.modified > 0)
    if (virtual & tagged).any():
        raise InvalidInputError(
            "generation `alpha1` has no checksums of virtual chunks: leave the checksum out, or "
            "use a newer generation"
        )


def columns_of(entries: Entries, identity: ManifestId, *, where: str) -> Manifest:
    """Entries as columns by array, rows in order; equal coordinates are refused."""
    try:
        kind = np.fromiter(map(_KINDS.__getitem__, entries.kinds), np.uint8, len(entries.kinds))
    except (KeyError, TypeError):
        raise FormatError(f"{where}: a reference of unknown kind") from None
    table = _table(kind, entries.bodies, where)
    places: dict[tuple[int, int], list[int]] = {}
    for row, (node, place) in enumerate(zip(entries.nodes, entries.coordinates, strict=True)):
        places.setdefault((node, len(place)), []).append(row)
    arrays: dict[NodeId, tuple[ChunkRefs, ...]] = {}
    for (node, rank), rows in sorted(places.items()):
        if rank > MAX_RANK:
            raise FormatError(f"{where}: a chunk has {rank} coordinates")
        flat = list(chain.from_iterable(entries.coordinates[row] for row in rows))
        index = numbers(flat, np.uint32, "a coordinate", where).reshape(len(rows), rank)
        refs = _with_index(table, index, np.array(rows))
        if len(refs) != len(rows):
            raise FormatError(f"{where}: a chunk occurs twice")
        node_id = read_node_id(node, where=where)
        arrays[node_id] = (*arrays.get(node_id, ()), refs)
    return Manifest(identity, {node_id: arrays[node_id] for node_id in sorted(arrays)})


def _bodies(pairs: Sequence[tuple[str, Any]], where: str) -> list[Any]:
    try:
        return [_BODIES[kind](body) for kind, body in pairs]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(
            f"{where}: a reference lacks a member, or has one of the wrong type"
        ) from None


def _bytes(value: object) -> bytes:
    """Bytes from a list of numbers; from a single number, Python would make that many zeros."""
    if not isinstance(value, list):
        raise TypeError
    return bytes(value)


_fields = itemgetter("id", "offset", "length")


def _ref(body: Any) -> tuple[Any, ...]:
    identity, offset, length = _fields(body)
    return _bytes(identity), offset, length


_BODIES: dict[str, Callable[[Any], Any]] = {
    "Ref": _ref,
    "Virtual": itemgetter("location", "offset", "length"),
    "Inline": _bytes,
}


def _table(kind: NDArray[np.uint8], bodies: Sequence[Any], where: str) -> ChunkRefs:
    """All references in the order of the file, with coordinates still missing."""
    rows = len(kind)
    heap = bytearray()
    chunk_id = np.zeros((rows, EARLY_OBJECT_ID_SIZE), np.uint8)
    offset, length = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
    span = np.zeros((rows, 2), np.uint64)
    for value in (RefKind.NATIVE, RefKind.INLINE, RefKind.VIRTUAL):
        at = np.flatnonzero(kind == value)
        if not len(at):
            continue
        first: Sequence[Any] = [bodies[row] for row in at.tolist()]
        if value is not RefKind.INLINE:
            first, offsets, lengths = zip(*first, strict=True)
            offset[at] = numbers(offsets, np.uint64, "an offset", where)
            length[at] = numbers(lengths, np.uint64, "a length", where)
        if value is RefKind.NATIVE:
            chunk_id[at] = _ids(first, where)
        else:
            texts = value is RefKind.VIRTUAL
            data = (
                [text.encode() for text in typed(first, str, "a location", where)]
                if texts
                else first
            )
            span[at] = _keep(typed(data, bytes, "inline data", where), heap)
        if value is RefKind.INLINE:
            length[at] = span[at, 1] - span[at, 0]
    if (length > _TOP).any() or (offset > _TOP - np.minimum(length, _TOP)).any():
        raise FormatError(f"{where}: a reference lies beyond any file")
    return ChunkRefs(
        index=np.zeros((rows, 0), np.uint32),
        kind=kind,
        chunk_id=chunk_id,
        offset=offset,
        length=length,
        span=span,
        etag=np.zeros((rows, 2), np.uint64),
        modified=np.zeros(rows, np.uint32),
        heap=bytes(heap),
    )


def _ids(values: Sequence[Any], where: str) -> NDArray[np.uint8]:
    parts = typed(values, bytes, "the id of a chunk", where)
    if set(map(len, parts)) != {EARLY_OBJECT_ID_SIZE}:
        raise FormatError(f"{where}: the id of a chunk does not have {EARLY_OBJECT_ID_SIZE} bytes")
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, EARLY_OBJECT_ID_SIZE)


def _keep(items: Sequence[bytes], heap: bytearray) -> NDArray[np.uint64]:
    """Where in the heap the items are; equal items are kept once."""
    distinct: dict[bytes, int] = {}
    at = [distinct.setdefault(item, len(distinct)) for item in items]
    sizes = np.fromiter(map(len, distinct), np.uint64, len(distinct))
    ends = np.cumsum(sizes, dtype=np.uint64) + np.uint64(len(heap))
    heap += b"".join(distinct)
    return np.stack([ends - sizes, ends], axis=1)[at]


def _with_index(
    table: ChunkRefs, index: NDArray[np.uint32], rows: NDArray[np.integer]
) -> ChunkRefs:
    return ChunkRefs.of(replace(table.take(rows), index=index))


def _payloads(refs: ChunkRefs) -> list[dict[str, Any]]:
    """The variants of all rows, in order."""
    heap = bytes(refs.heap)
    columns = zip(
        refs.kind.tolist(),
        refs.chunk_id.tolist(),
        refs.offset.tolist(),
        refs.length.tolist(),
        refs.span.tolist(),
        strict=True,
    )
    return [
        {"Ref": {"id": identity, "offset": offset, "length": length}}
        if kind == RefKind.NATIVE
        else {"Inline": list(heap[start:stop])}
        if kind == RefKind.INLINE
        else {
            "Virtual": {"location": heap[start:stop].decode(), "offset": offset, "length": length}
        }
        for kind, identity, offset, length, (start, stop) in columns
    ]
