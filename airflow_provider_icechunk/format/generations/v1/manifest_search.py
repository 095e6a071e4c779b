"""Single references of a manifest, found by binary search without decoding the others.

Whoever reads one chunk of a million pays for unpacking the file, not for a million rows of columns.
A search verifies what it passes: tables, vectors, ranks, and that everything it looks at lies in
order between what it has seen on both sides. What it does not pass it does not judge; that is left
to `decode`, which every other use of a manifest goes through.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

import numpy as np

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.format.generations.v1 import manifests
from airflow_provider_icechunk.format.ids import NODE_ID_SIZE, OBJECT_ID_SIZE, ManifestId, NodeId
from airflow_provider_icechunk.format.order import Index
from airflow_provider_icechunk.format.payloads import Payload
from airflow_provider_icechunk.format.snapshot import Manifest
from airflow_provider_icechunk.format.wire.flatbuffers import Buffer
from airflow_provider_icechunk.format.zarr_metadata import MAX_RANK

_ROWS_PER_SEARCH = 400
"""How many rows are decoded in the time of one search."""
_DEPTH = 2
"""Of a reference: below an array, which is below the root."""


class ManifestSearch:
    """A manifest that is unpacked but not decoded."""

    def __init__(
        self,
        payload: bytes,
        *,
        where: str,
        unpack: manifests.Unpack | None = None,
        memory: Purse | None = None,
    ) -> None:
        self._payload = payload
        self._memory = memory
        self._where = where
        self._unpack = unpack
        self._decoding = threading.Lock()
        self._decoded: Manifest | None = None
        buffer = Buffer(payload, where=where, memory=memory)
        root = buffer.root(manifests.IDENTIFIER)
        self.id = ManifestId(root.fixed(0, OBJECT_ID_SIZE))
        self._vectors: dict[NodeId, tuple[int, int]] = {}
        for table in root.tables(1):
            identity = NodeId(table.fixed(0, NODE_ID_SIZE))
            if identity in self._vectors:
                buffer.fail("an array is in it twice")
            self._vectors[identity] = table.links(1)
        self._compressed = root.has(2)
        self._asked = 0

    def __len__(self) -> int:
        return sum(count for _, count in self._vectors.values())

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        return len(self._payload)

    def is_worth_it(self) -> bool:
        """Whether one more search is cheaper than what decoding all would save from now on.

        Compressed locations share one unpacker, so those are always decoded together.
        """
        self._asked += 1
        return not self._compressed and self._asked * _ROWS_PER_SEARCH <= len(self)

    def find(self, node_id: NodeId, index: Index) -> Payload | None:
        """The reference at `index` of an array; `None` when there is none."""
        # Counts what is spent on it, so no two searches may share one.
        buffer = Buffer(self._payload, where=self._where)
        start, count = self._vectors.get(node_id, (0, 0))
        at = _search(buffer, start, count, index)
        if at is None:
            return None
        return manifests.reference(buffer, np.array([at], np.int64))[0]

    def decode(self) -> Manifest:
        """All of it, with orders, ranks and bounds checked."""
        with self._decoding:
            if self._decoded is None:
                with self._memory or nullcontext() as purse:
                    self._decoded = manifests.decode(
                        self._payload, where=self._where, unpack=self._unpack, memory=purse
                    )
            return self._decoded


def _search(buffer: Buffer, start: int, count: int, wanted: Index) -> int | None:
    """Where the table with the coordinates `wanted` is, among `count` links from `start` on."""
    low, high = 0, count
    below: Index | None = None
    above: Index | None = None
    while low < high:
        middle = (low + high) // 2
        link = start + 4 * middle
        at = link + buffer.u32(link)
        found = _coordinates(buffer, at)
        if len(found) != len(wanted):
            if below is None and above is None:
                return None
            buffer.fail("chunk coordinates of one array have different lengths")
        if (below is not None and found <= below) or (above is not None and found >= above):
            buffer.fail("chunk references are not in order, or one is doubled")
        if found == wanted:
            return at
        if found < wanted:
            low, below = middle + 1, found
        else:
            high, above = middle, found
    return None


def _coordinates(buffer: Buffer, at: int) -> Index:
    table = buffer.table(at, _DEPTH)
    if table.count(manifests.INDEX) > MAX_RANK:
        buffer.fail(f"chunk coordinates have more than {MAX_RANK} dimensions")
    return table.numbers(manifests.INDEX, "I")
