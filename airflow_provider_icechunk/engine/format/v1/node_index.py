"""Ids and paths of all nodes in a snapshot file, without decoding the nodes.

A tree of 10,000 arrays takes half a second to decode, and a page shows a few of them. Nodes are
tables of few layouts, so their ids and the places of their paths are found for all of them at once,
and a node is decoded when somebody asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.ids import NODE_ID_SIZE, NodeId
from airflow_provider_icechunk.engine.format.model import Deferred, Node
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, Table
from airflow_provider_icechunk.exceptions import InvalidInputError

_ID, _PATH, _KIND = 0, 1, 3
"""Slots of a node."""
_ARRAY, _GROUP = 1, 2
_building = Lock()
_USUAL_PATH = re.compile(r"(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")


class LazyNodes(Deferred[str, Node]):
    """Nodes by path, each decoded when it is asked for, or all of them by `content`."""

    __slots__ = ("_decode", "_places", "_root")

    def __init__(
        self,
        root: Table,
        slot: int,
        make: Callable[[], Mapping[str, Node]],
        decode: Callable[[Table], Node],
        memory: Purse | None,
    ) -> None:
        super().__init__(root.count(slot), make, memory)
        self._root: tuple[Table, int] | None = (root, slot)
        self._decode = decode
        self._places: dict[str, NodePlace] | None = None

    def __getitem__(self, path: str) -> Node:
        """One node."""
        if self._content is not None:
            return self._content[path]
        at = self._index()[path].at
        buffer = self._buffer()
        # A budget of its own: the one of the file is for reading it once.
        fresh = Buffer(buffer.data, where=buffer.where, memory=None)
        return self._decode(fresh.table(at, 1))

    def __contains__(self, path: object) -> bool:
        """Whether there is a node, which is not decoded for it."""
        return path in (self._index() if self._content is None else self._content)

    def __iter__(self) -> Iterator[str]:
        """Paths, in the order of their raw bytes."""
        return iter(self._index() if self._content is None else self._content)

    def content(self) -> Mapping[str, Node]:
        """All of them, decoded."""
        found = super().content()
        self._places = self._root = None
        return found

    def paths_by_id(self) -> dict[NodeId, str]:
        """Where each node is."""
        if self._content is not None:
            return {node.id: path for path, node in self._content.items()}
        return {place.id: path for path, place in self._index().items()}

    def count_arrays(self) -> int:
        """How many of them are arrays."""
        places = () if self._content is not None else self._index().values()
        if any(place.kind not in (_ARRAY, _GROUP) for place in places):
            self.content()
        if self._content is not None:
            return sum(node.array is not None for node in self._content.values())
        return sum(place.kind == _ARRAY for place in places)

    def _buffer(self) -> Buffer:
        root = self._root
        assert root is not None
        return root[0].buffer

    def _index(self) -> dict[str, NodePlace]:
        known = self._places
        if known is not None:
            return known
        with _building:
            if self._places is None:
                assert self._root is not None
                self._places = index_nodes(*self._root)
            return self._places


def paths_by_id(nodes: Mapping[str, Node]) -> dict[NodeId, str]:
    """Where each node is; nodes that are not decoded stay so."""
    if isinstance(nodes, LazyNodes):
        return nodes.paths_by_id()
    return {node.id: path for path, node in nodes.items()}


def count_arrays(nodes: Mapping[str, Node]) -> int:
    """How many nodes are arrays; nodes that are not decoded stay so."""
    if isinstance(nodes, LazyNodes):
        return nodes.count_arrays()
    return sum(node.array is not None for node in nodes.values())


class NodePlace(NamedTuple):
    """What is known of a node that is not decoded."""

    id: NodeId
    at: int
    kind: int


def index_nodes(root: Table, slot: int) -> dict[str, NodePlace]:
    """Where each node is by its path, in the order of raw bytes."""
    buffer = root.buffer
    data = np.frombuffer(buffer.data, np.uint8)
    tables = root.offsets(slot)
    _check(buffer, tables, 4)
    vtables = tables - _numbers(data, tables, "<i4")
    ids = np.zeros((len(tables), NODE_ID_SIZE), np.uint8)
    links, kinds = np.zeros(len(tables), np.int64), np.zeros(len(tables), np.uint8)
    for vtable in np.unique(vtables).tolist():
        size, slots = buffer.vtable(vtable)
        mine = vtables == vtable
        at = tables[mine]
        _check(buffer, at, size)
        if len(slots) <= _PATH or not slots[_ID] or not slots[_PATH]:
            _fail(buffer, "a node has no id or no path")
        if slots[_ID] + NODE_ID_SIZE > size or slots[_PATH] + 4 > size:
            _fail(buffer, "a node is shorter than its fields")
        ids[mine] = data[(at + slots[_ID])[:, None] + np.arange(NODE_ID_SIZE)]
        links[mine] = at + slots[_PATH]
        if len(slots) > _KIND and 0 < slots[_KIND] < size:
            kinds[mine] = data[at + slots[_KIND]]
    texts = links + _numbers(data, links, "<u4")
    _check(buffer, texts, 4)
    lengths = _numbers(data, texts, "<u4")
    _check(buffer, texts, 4 + lengths)
    raw = buffer.data
    found = sorted(
        (raw[at + 4 : at + 4 + length], NodePlace(NodeId(identity), table, kind))
        for at, length, identity, table, kind in zip(
            texts.tolist(),
            lengths.tolist(),
            map(bytes, ids),
            tables.tolist(),
            kinds.tolist(),
            strict=True,
        )
    )
    try:
        places = {path.decode(): place for path, place in found}
    except UnicodeDecodeError:
        _fail(buffer, "a path is not UTF-8")
    if len(places) != len(found) or len({place.id for _, place in found}) != len(found):
        _fail(buffer, "two nodes have the same path or the same id")
    check_paths(buffer, places)
    return places


def check_paths(buffer: Buffer, paths: Iterable[str]) -> None:
    """Refuse a file with a path that no node can have: a damaged path must not count as missing."""
    try:
        for path in paths:
            if not _USUAL_PATH.fullmatch(path):
                check_node_path(path)
    except InvalidInputError as error:
        buffer.fail(error.message)


def _numbers(data: NDArray[np.uint8], at: NDArray[np.int64], kind: str) -> NDArray[np.int64]:
    four: NDArray[np.uint8] = data[at[:, None] + np.arange(4)]
    return np.frombuffer(four.tobytes(), kind).astype(np.int64)


def _check(buffer: Buffer, at: NDArray[np.int64], size: int | NDArray[np.int64]) -> None:
    if len(at) and (int(at.min()) < 0 or int((at + size).max()) > buffer.size):
        _fail(buffer, "a node is outside the file")


def _fail(buffer: Buffer, what: str) -> NoReturn:
    buffer.fail(what)
