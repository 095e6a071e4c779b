"""The nodes of a large snapshot, each decoded when it is used.

A session touches few of the nodes of its snapshot. Paths and ids are read for all of them at once;
the rest of a node is read and checked when it is used. A commit that changes some nodes keeps
the others as they are stored: `EditedNodes` says which, and the codec copies the bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from operator import lt

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.concurrency import PerProcess

from .ids import NODE_ID_SIZE, ManifestId, NodeId
from .model import Deferred, Node


@dataclass(frozen=True, slots=True)
class StoredNodes:
    """Nodes as a codec finds them in a file, in the order of the file."""

    paths: list[str]
    ids: NDArray[np.uint8]
    """`(n, 8)`."""
    arrays: NDArray[np.bool_]
    """Which of them are marked as arrays."""
    decode: Callable[[int], Node]
    """The node in a row."""
    manifests: Callable[[], tuple[NDArray[np.int64], list[bytes]]]
    """Rows of arrays and the manifests that they name, one pair for each."""
    source: object
    """What the codec needs to store the same nodes again."""
    memory: Purse | None = None


class NodeTable(Mapping[str, Node]):
    """Nodes by path, in the order of the paths' raw bytes; may raise `FormatError`."""

    __slots__ = ("_decoding", "_known", "_named", "_rows", "copyable", "is_sorted", "stored")

    def __init__(self, stored: StoredNodes) -> None:
        """A table of nodes; `ValueError` if two have the same path or the same id."""
        # A decoder counts its memory, so no two threads may use one at a time.
        self._decoding = PerProcess(threading.RLock)
        paths = stored.paths
        rows = range(len(paths))
        self.is_sorted = all(map(lt, paths, paths[1:]))
        if not self.is_sorted:
            rows = sorted(rows, key=paths.__getitem__)  # type: ignore[assignment]
        self._rows = {paths[row]: row for row in rows}
        ids = np.sort(np.ascontiguousarray(stored.ids).view(np.uint64).reshape(-1))
        if len(self._rows) != len(paths) or bool((ids[1:] == ids[:-1]).any()):
            raise ValueError("two nodes have the same path or the same id")
        self.stored = stored
        self.copyable: bool | None = None
        """Whether the codec found that nodes can be copied as bytes; `None`: not checked yet."""
        self._known: dict[int, Node] = {}
        self._named: tuple[NDArray[np.int64], list[bytes]] | None = None

    def row(self, path: str) -> int:
        """The row of a node in the file."""
        return self._rows[path]

    def __getitem__(self, path: str) -> Node:
        return self._node(self._rows[path])

    def __contains__(self, path: object) -> bool:
        """Whether there is such a node; this does not decode it."""
        return path in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> tuple[type[dict[str, Node]], tuple[dict[str, Node]]]:
        """Pickled as its content."""
        return (dict, (dict(self),))

    def decode_all(self) -> None:
        """Decode every node, in the thread that made the table, before others see it."""
        self._known = {row: self.stored.decode(row) for row in self._rows.values()}

    def _node(self, row: int) -> Node:
        known = self._known.get(row)
        if known is None:
            with self._decoding.get(), self.stored.memory or nullcontext():
                known = self._known[row] = self.stored.decode(row)
        return known

    def with_ids(self, ids: Collection[NodeId]) -> list[Node]:
        """The nodes with these ids, in the order of the file."""
        wanted = np.frombuffer(b"".join(ids), np.uint64) if ids else np.zeros(0, np.uint64)
        mine = np.ascontiguousarray(self.stored.ids).view(np.uint64).reshape(-1)
        return [self._node(row) for row in np.flatnonzero(np.isin(mine, wanted)).tolist()]

    def paths_by_id(self) -> dict[NodeId, str]:
        """The path of each node."""
        whole, size = self.stored.ids.tobytes(), NODE_ID_SIZE
        return {
            NodeId(whole[row * size : (row + 1) * size]): path for path, row in self._rows.items()
        }

    def manifests(self, *, but: Collection[int] = ()) -> set[ManifestId]:
        """Manifests that the nodes name, apart from those in some rows."""
        with self._decoding.get(), self.stored.memory or nullcontext():
            # Only once: reading counts against the file's budget, and every commit on it needs
            # this.
            rows, ids = self._named = self._named or self.stored.manifests()
        if not but:
            return set(map(ManifestId, ids))
        apart = np.isin(rows, list(but)).tolist()
        return {ManifestId(one) for one, skipped in zip(ids, apart, strict=True) if not skipped}


class EditedNodes(Mapping[str, Node]):
    """The nodes of a table, some of them changed; none is new, and ids, paths and kinds stay."""

    __slots__ = ("changed", "table")

    def __init__(self, table: NodeTable, changed: Mapping[str, Node]) -> None:
        self.table = table
        self.changed = dict(changed)

    def __getitem__(self, path: str) -> Node:
        found = self.changed.get(path)
        return self.table[path] if found is None else found

    def __contains__(self, path: object) -> bool:
        """Whether there is such a node; this does not decode it."""
        return path in self.table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def __reduce__(self) -> tuple[type[dict[str, Node]], tuple[dict[str, Node]]]:
        """Pickled as its content."""
        return (dict, (dict(self),))


def edited(nodes: Mapping[str, Node], changed: Mapping[str, Node]) -> Mapping[str, Node]:
    """The same nodes with those at the paths of `changed` replaced."""
    nodes = _plain(nodes)
    if isinstance(nodes, EditedNodes):
        return EditedNodes(nodes.table, {**nodes.changed, **changed})
    if isinstance(nodes, NodeTable):
        return EditedNodes(nodes, changed)
    return {path: changed.get(path, node) for path, node in nodes.items()}


def nodes_with(nodes: Mapping[str, Node], ids: Collection[NodeId]) -> list[Node]:
    """The nodes with these ids."""
    nodes = _plain(nodes)
    same = [one for one in ids if len(one) == NODE_ID_SIZE]
    if isinstance(nodes, EditedNodes):
        return [nodes.changed.get(node.path, node) for node in nodes.table.with_ids(same)]
    if isinstance(nodes, NodeTable):
        return nodes.with_ids(same)
    return [node for node in nodes.values() if node.id in ids]


def paths_by_id(nodes: Mapping[str, Node]) -> dict[NodeId, str]:
    """The path of each node; undecoded nodes stay undecoded."""
    nodes = _plain(nodes)
    if isinstance(nodes, EditedNodes):
        nodes = nodes.table
    if isinstance(nodes, NodeTable):
        return nodes.paths_by_id()
    return {node.id: path for path, node in nodes.items()}


def count_arrays(nodes: Mapping[str, Node]) -> int:
    """How many nodes are arrays; undecoded nodes stay undecoded."""
    nodes = _plain(nodes)
    if isinstance(nodes, EditedNodes):
        nodes = nodes.table
    if isinstance(nodes, NodeTable):
        return int(nodes.stored.arrays.sum())
    return sum(node.array is not None for node in nodes.values())


def manifests_of(nodes: Mapping[str, Node]) -> set[ManifestId]:
    """All manifests that arrays name."""
    nodes = _plain(nodes)
    if isinstance(nodes, NodeTable):
        return nodes.manifests()
    if isinstance(nodes, EditedNodes):
        others = nodes.table.manifests(but=[nodes.table.row(path) for path in nodes.changed])
        return others | _named(nodes.changed.values())
    return _named(nodes.values())


def _named(nodes: Collection[Node]) -> set[ManifestId]:
    return {ref.id for node in nodes if node.array for ref in node.array.manifests}


def _plain(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """The nodes themselves if their decoding was deferred."""
    return nodes.content() if isinstance(nodes, Deferred) else nodes
