"""Ids for new nodes: eight random bytes, or in early generations a free random number.

Numbers are few, so two sessions may choose the same one. Each session avoids those of its own tree;
when changes move onto another tree, `renumber` gives new numbers to those that are taken there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import replace

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import NODE_ID_SIZE, NodeId
from airflow_provider_icechunk.format.snapshot import Node, Snapshot
from airflow_provider_icechunk.repository.changes import ChangeSet

_DRAWS = 64


class NodeIds:
    """Gives out ids that no node of a session's tree has or had."""

    def __init__(self, generation: Generation, entropy: Callable[[int], bytes]) -> None:
        self._numbers = generation.node_numbers
        self._entropy = entropy
        self._seen: tuple[Snapshot, ChangeSet] | None = None
        self._taken: set[NodeId] = set()

    def new(self, base: Snapshot, changes: ChangeSet) -> NodeId:
        """An id for one more node on `base` with `changes`."""
        if self._numbers is None:
            return NodeId(self._entropy(NODE_ID_SIZE))
        if self._seen is None or self._seen[0] is not base or self._seen[1] is not changes:
            self._seen = base, changes
            self._taken = ids_of(base.nodes.values()) | ids_of(changes.created.values())
        identity = self._free(self._taken)
        self._taken.add(identity)
        return identity

    def renumber(self, changes: ChangeSet, taken: set[NodeId]) -> ChangeSet:
        """The same changes with another id for each created node whose id is in `taken`."""
        clashes = {path: node for path, node in changes.created.items() if node.id in taken}
        if self._numbers is None or not clashes:
            return changes
        renumbered = changes.copy()
        used = taken | ids_of(changes.created.values())
        for path, node in clashes.items():
            identity = self._free(used)
            used.add(identity)
            renumbered.created[path] = replace(node, id=identity)
            if node.id in renumbered.chunks:
                renumbered.chunks[identity] = renumbered.chunks.pop(node.id)
        return renumbered

    def _free(self, taken: Container[NodeId]) -> NodeId:
        assert self._numbers is not None
        for _ in range(_DRAWS):
            number = int.from_bytes(self._entropy(NODE_ID_SIZE), "big") % self._numbers
            if (identity := number_id(number)) not in taken:
                return identity
        for number in range(self._numbers):
            if (identity := number_id(number)) not in taken:
                return identity
        raise InvalidInputError(
            f"this format generation holds {self._numbers} nodes at most; use a newer one",
            kind=Kind.INVALID_METADATA,
        )


def number_id(number: int) -> NodeId:
    """The model's id of a node that is stored as a number."""
    return NodeId(number.to_bytes(NODE_ID_SIZE, "big"))


def ids_of(nodes: Iterable[Node]) -> set[NodeId]:
    """Ids of nodes."""
    return {node.id for node in nodes}
