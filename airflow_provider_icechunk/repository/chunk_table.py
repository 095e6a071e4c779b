"""Where the chunks of an array are, as columns for those who read them without Zarr."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.references import ChunkRefs, Inline, Native, RefKind, Virtual
from airflow_provider_icechunk.repository.async_twins import in_thread
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.working_tree import WorkingTree

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
_KINDS[[RefKind.NATIVE, RefKind.VIRTUAL, RefKind.INLINE]] = [1, 2, 3]


def chunk_table(
    refs: ChunkRefs, show: Callable[[bytes], str], expand: Callable[[str], str]
) -> ChunkTable:
    """References as a table; `show` makes texts of ids, `expand` whole URLs of locations."""
    places = np.full(len(refs), "", object)

    def text(row: int) -> str:
        payload = refs[row]
        if isinstance(payload, Native):
            return show(payload.chunk_id)
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


class ChunkTables:
    """Mixed into a session."""

    tree: WorkingTree
    _engine: Engine

    async def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncIterator[ChunkTable]:
        """Where the chunks of an array are, in tables of up to `batch_size` rows.

        A row has the coordinates of a chunk, its kind, the URL of a virtual one or the id of the
        file of a native one, offset and length there; the bytes of inline chunks are beside the
        columns, by row. Chunks that were never written are left out.
        """
        if batch_size < 1:
            raise InvalidInputError(f"a batch of {batch_size} rows cannot be made")
        path = array_path if array_path.startswith("/") else f"/{array_path}"
        refs = await in_thread(lambda: self.tree.references(self.tree.array(path)))
        for start in range(0, len(refs), batch_size):
            yield await in_thread(
                chunk_table,
                refs.take(slice(start, start + batch_size)),
                self._engine.show,
                self._engine.virtual.expanded,
            )
