"""A transaction log: what one commit changed, in ids and columns. Conflicts are decided from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.ids import NodeId, SnapshotId

Coordinates = NDArray[np.uint32]
"""`(n, d)` chunk coordinates, rows strictly increasing."""


@dataclass(frozen=True, slots=True)
class Move:
    """A node that a commit gave another path. Its id stays."""

    node_id: NodeId
    is_array: bool
    source: str
    target: str


def in_target_order(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Moves by the segments of their targets: `/a`, `/a/b`, `/a-b`; nodes of a snapshot differ."""
    return tuple(sorted(moves, key=lambda move: move.target.encode().split(b"/")))


@dataclass(frozen=True, slots=True, eq=False)
class TransactionLog:
    """Nodes and chunks that one commit touched.

    A node that the commit created is only in `new_*`, also when it was updated later; a node
    created and deleted in one session is nowhere. `updated_chunks` lists written and deleted
    coordinates, for new arrays too.
    """

    id: SnapshotId
    new_groups: frozenset[NodeId] = frozenset()
    new_arrays: frozenset[NodeId] = frozenset()
    deleted_groups: frozenset[NodeId] = frozenset()
    deleted_arrays: frozenset[NodeId] = frozenset()
    updated_groups: frozenset[NodeId] = frozenset()
    updated_arrays: frozenset[NodeId] = frozenset()
    updated_chunks: Mapping[NodeId, Coordinates] = field(default_factory=dict)
    """Per array its coordinates; the arrays in the order of their ids."""
    moves: tuple[Move, ...] = ()
    """Net moves, descendants of a moved group included; only in generation `2`."""

    @property
    def renamed(self) -> frozenset[NodeId]:
        """Nodes that got another path where logs know no moves: deleted and created under one id.

        Every other new node has an id that no node had before.
        """
        return (self.new_groups & self.deleted_groups) | (self.new_arrays & self.deleted_arrays)

    @property
    def moves_nodes(self) -> bool:
        """Whether the commit gave nodes other paths, in either form."""
        return bool(self.moves or self.renamed)
