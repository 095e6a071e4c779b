"""Where the chunks of an array are, as columns for readers without Zarr."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.concurrency import in_thread
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    Inline,
    Native,
    RefKind,
    Virtual,
)
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import format_id
from airflow_provider_icechunk.engine.virtual.locations import BY_NAME
from airflow_provider_icechunk.exceptions import InvalidInputError

from .tree import WorkingTree


class ChunkType(IntEnum):
    """Where the bytes of a chunk are, equal to its number in the columns of chunk tables.

    Official releases 2.x have the names in lower case.
    """

    UNINITIALIZED = uninitialized = 0
    NATIVE = native = 1
    VIRTUAL = virtual = 2
    INLINE = inline = 3

    __str__ = Enum.__str__


ChunkTable = tuple[
    NDArray[np.uint32],
    NDArray[np.uint8],
    list[str],
    NDArray[np.uint64],
    NDArray[np.uint64],
    dict[int, bytes],
]
"""Coordinates, kinds (values of `ChunkType`), places, offsets, lengths, bytes of inline chunks."""

_KINDS = np.zeros(256, np.uint8)
_KINDS[[RefKind.NATIVE, RefKind.VIRTUAL, RefKind.INLINE]] = [
    ChunkType.NATIVE,
    ChunkType.VIRTUAL,
    ChunkType.INLINE,
]


def chunk_type(tree: WorkingTree, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
    """Where the bytes of one chunk are."""
    tree.array(array_path)
    match tree.chunk(array_path, tuple(int(number) for number in chunk_coordinates)):
        case Inline():
            return ChunkType.INLINE
        case Native():
            return ChunkType.NATIVE
        case Virtual():
            return ChunkType.VIRTUAL
        case None:
            return ChunkType.UNINITIALIZED


def virtual_locations(tree: WorkingTree) -> list[str]:
    """Distinct whole URLs of every virtual chunk in a tree, sorted."""
    locations: set[str] = set()
    for node in tree.nodes():
        if node.array is not None:
            refs = tree.references(node)
            locations.update(refs.take(refs.kind == np.uint8(RefKind.VIRTUAL)).locations())
    named = {location for location in locations if location.startswith(f"{BY_NAME}://")}
    return sorted((locations - named) | {tree.core.virtual.expanded(one) for one in named})


def chunk_table(
    refs: ChunkRefs, generation: Generation, expand: Callable[[str], str]
) -> ChunkTable:
    """References as a table; `expand` makes whole URLs of locations."""
    places = np.full(len(refs), "", object)

    def text(row: int) -> str:
        payload = refs[row]
        if isinstance(payload, Native):
            return format_id(generation, payload.chunk_id)
        assert isinstance(payload, Virtual)
        return expand(payload.location)

    for kind, names in ((RefKind.NATIVE, refs.chunk_id), (RefKind.VIRTUAL, refs.span)):
        rows = np.flatnonzero(refs.kind == kind)
        _, first, name = np.unique(names[rows], axis=0, return_index=True, return_inverse=True)
        places[rows] = np.array([text(row) for row in rows[first]], object)[name.reshape(-1)]
    inlined = np.flatnonzero(refs.kind == RefKind.INLINE).tolist()
    offsets = np.where(refs.kind == np.uint8(RefKind.INLINE), np.uint64(0), refs.offset)
    bytes_of = {row: payload.data for row in inlined if isinstance(payload := refs[row], Inline)}
    return refs.index, _KINDS[refs.kind], places.tolist(), offsets, refs.length, bytes_of


async def chunk_tables(
    tree: WorkingTree, array_path: str, batch_size: int
) -> AsyncIterator[ChunkTable]:
    """The chunks of an array in tables of up to `batch_size` rows.

    Chunks that were never written are left out.
    """
    if batch_size < 1:
        raise InvalidInputError(f"a batch of {batch_size} rows cannot be made")
    path = array_path if array_path.startswith("/") else f"/{array_path}"
    refs = await in_thread(lambda: tree.references(tree.array(path)))
    for start in range(0, len(refs), batch_size):
        yield await in_thread(
            chunk_table,
            refs.take(slice(start, start + batch_size)),
            tree.core.generation,
            tree.core.virtual.expanded,
        )
