"""Copy the nodes that a commit left unchanged from their file.

Stored bytes are hostile. Nodes are copied only from a file that has the layout of this package, and
only if all that they consist of is valid, lies between the links and the end of the nodes, and is
used once: a copy then changes nothing. In all other cases, the nodes are decoded and encoded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.node_table import EditedNodes, NodeTable
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, gather
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import PayloadWriter, Shape
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_RANK

from . import snapshot_layout as layout
from .nodes import write_node
from .snapshot_layout import Dialect
from .stored_nodes import Source

Places = NDArray[np.int64]
_MOST_WASTE = 1 << 16


def copy_nodes(snapshot: Snapshot, dialect: Dialect) -> PayloadWriter | None:
    """The stored nodes followed by the changed ones; `None` if all must be written.

    The old version of a changed node stays in the file, unused, until such bytes make up a quarter
    of it.
    """
    nodes = snapshot.nodes
    if not isinstance(nodes, EditedNodes):
        return None
    table = nodes.table
    source, shape = table.stored.source, layout.root_shape(snapshot, dialect)
    if not isinstance(source, Source) or not _is_copyable(table, source, shape, dialect):
        return None
    whole, end = layout.MARKS.unpack_from(source.buffer.data, layout.MARKS_AT)
    writer = PayloadWriter.onto(bytearray(source.buffer.data[:end]), layout.SHAPES)
    for path, node in nodes.changed.items():
        row = table.row(path)
        if (node.path, node.id) != (path, table.stored.ids[row].tobytes()):
            return None
        write_node(writer, source.links + 4 * row, node, dialect)
    end = len(writer.data)
    if end > whole + whole // 4 + _MOST_WASTE:
        return None
    layout.MARKS.pack_into(writer.data, layout.MARKS_AT, whole, end)
    return writer


def _is_copyable(table: NodeTable, source: Source, shape: Shape, dialect: Dialect) -> bool:
    """Whether a copy of the nodes equals the result of decoding and encoding them."""
    data = source.buffer.data
    if source.dialect is not dialect or shape.slots[8:] or not table.is_sorted:
        return False
    if data[4 : layout.MARKS_AT] != layout.START:
        return False
    vtable = source.root - int.from_bytes(
        data[source.root : source.root + 4], "little", signed=True
    )
    if source.root != layout.ROOT_AT or vtable != layout.vtable_at(shape):
        return False
    low = source.links + 4 * len(source.at)
    whole, end = layout.MARKS.unpack_from(data, layout.MARKS_AT)
    if source.links != source.root + shape.size + 4 or not low <= whole <= end <= len(data):
        return False
    if table.copyable is None:
        try:
            _Region(source.buffer, low, end).check(source.at, table.stored.arrays, dialect)
            table.copyable = True
        except _DoubtError:
            table.copyable = False
    return table.copyable


class _DoubtError(Exception):
    """Something is not as this package writes it."""


class _Region:
    """The part of a file that is copied unchanged."""

    def __init__(self, buffer: Buffer, low: int, high: int) -> None:
        self._buffer = buffer
        self._low = low
        self._high = high
        self._left = high - low

    def check(self, at: Places, is_array: NDArray[np.bool_], dialect: Dialect) -> None:
        """Raise unless nodes are as `write_node` writes them."""
        extended = self._tables(at, layout.NODE, layout.NODE_EXTRA)
        self._texts(self._vectors(at, layout.NODE, 1, 1, tail=1))
        self._vectors(at, layout.NODE, 2, 1)
        self._vectors(at[extended], layout.NODE_EXTRA, 5, 1)
        links = at + layout.NODE.slots[4]
        content = links + self._numbers(links)
        self._tables(content[~is_array], layout.EMPTY)
        arrays = content[is_array]
        if dialect.newer:
            shape, named = layout.NEWER_ARRAY_DATA, layout.NEWER_NAMED_ARRAY_DATA
        else:
            shape, named = layout.ARRAY_DATA, layout.NAMED_ARRAY_DATA
        has_names = self._tables(arrays, shape, named)
        _, ranks = self._vectors(arrays, shape, 0, 16, align=8)
        if dialect.newer:
            _expect(not ranks.any())
            sides = self._vectors(arrays, shape, 3, 4)
            self._tables(self._targets(*sides), layout.SIDE, align=8)
            ranks = sides[1]
        _expect(bool((ranks <= MAX_RANK).all()))
        names = self._vectors(arrays[has_names], named, 1, 4)
        _expect(bool((names[1] == ranks[has_names]).all()))
        each = self._targets(*names)
        filled = each[self._tables(each, layout.EMPTY, layout.NAME)]
        starts, lengths = self._vectors(filled, layout.NAME, 0, 1, tail=1)
        _expect(bool(lengths.all()))
        self._texts((starts, lengths))
        refs = self._vectors(arrays, shape, 2, 4)
        manifests = self._targets(*refs)
        self._tables(manifests, layout.MANIFEST_REF)
        _, extents = self._vectors(manifests, layout.MANIFEST_REF, 1, 8)
        _expect(bool((extents == np.repeat(ranks, refs[1])).all()))

    def _tables(
        self, at: Places, shape: Shape, other: Shape | None = None, align: int = 4
    ) -> NDArray[np.bool_]:
        """Check that tables have `shape` or `other`; returns which have `other`."""
        self._inside(at, 4, align)
        vtables = at - self._numbers(at, "<i4")
        others: NDArray[np.bool_] = vtables == layout.vtable_at(other or shape)
        _expect(bool((others | (vtables == layout.vtable_at(shape))).all()))
        self._take(at, np.where(others, (other or shape).size, shape.size))
        return others

    def _vectors(
        self, tables: Places, shape: Shape, slot: int, width: int, *, align: int = 4, tail: int = 0
    ) -> tuple[Places, Places]:
        """Positions and numbers of the items of vectors in a slot of tables."""
        links = tables + shape.slots[slot]
        at = links + self._numbers(links)
        self._inside(at, 4, 4)
        counts = self._numbers(at)
        self._take(at, 4 + width * counts + tail)
        _expect(not ((at + 4) % align).any())
        return at + 4, counts

    def _targets(self, starts: Places, counts: Places) -> Places:
        """Where the links in vectors lead."""
        before = np.cumsum(counts) - counts
        links = np.repeat(starts - 4 * before, counts) + 4 * np.arange(int(counts.sum()))
        return links + self._numbers(links)

    def _texts(self, spans: tuple[Places, Places]) -> None:
        starts, lengths = spans
        stops = starts + lengths
        _expect(not gather(self._buffer, stops, 1).any())
        data = self._buffer.data
        try:
            for text in {data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)}:
                text.decode()
        except UnicodeDecodeError:
            raise _DoubtError from None

    def _inside(self, at: Places, size: int | Places, align: int = 1) -> None:
        if len(at):
            _expect(int(at.min()) >= self._low and int((at + size).max()) <= self._high)
            _expect(not (at % align).any())

    def _take(self, at: Places, sizes: Places) -> None:
        """Use these bytes: in total at most as many as there are, so none need be shared."""
        self._inside(at, sizes)
        self._left -= int(sizes.sum())
        _expect(self._left >= 0)

    def _numbers(self, at: Places, kind: str = "<u4") -> Places:
        return gather(self._buffer, at, 4).view(kind).reshape(len(at)).astype(np.int64)


def _expect(true: bool) -> None:
    if not true:
        raise _DoubtError
