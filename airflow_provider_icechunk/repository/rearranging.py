"""A session that gives nodes other paths and does nothing else; generation `2` only.

Node ids, manifests and chunks stay: a move of any size is one small commit. Others cannot rebase
over it, and it is not rebased over others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    Kind,
    NotFoundError,
    SessionError,
    UnsupportedError,
)
from airflow_provider_icechunk.format.generations.v2.flags import Feature, is_enabled
from airflow_provider_icechunk.format.names import ROOT, check_node_path, is_below, parent_path
from airflow_provider_icechunk.format.snapshot import Node, Snapshot, in_order
from airflow_provider_icechunk.format.transactions import Move, TransactionLog, in_target_order
from airflow_provider_icechunk.repository.amending import amend
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.conflicts import ConflictSolver
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.history import Diff
from airflow_provider_icechunk.repository.ledgers.base import Behind
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger
from airflow_provider_icechunk.repository.session import Session, SessionMode


def moved(nodes: Mapping[str, Node], source: str, target: str) -> dict[str, Node]:
    """The tree with the node at `source`, and all below it, at `target`."""
    if source == ROOT:
        raise InvalidInputError("the root group cannot be moved")
    if source not in nodes:
        raise NotFoundError(f"there is no node at {source}", kind=Kind.NODE_NOT_FOUND)
    if target == source or is_below(target, source):
        raise InvalidInputError(f"{source} cannot be moved into itself, to {target}")
    if target in nodes:
        raise AlreadyExistsError(f"there is a node at {target} already", kind=Kind.NODE_EXISTS)
    parent = parent_path(target)
    above = None if parent is None else nodes.get(parent)
    if above is None or not above.is_group:
        raise NotFoundError(
            f"{target} cannot be the new place: there is no group at {parent}",
            kind=Kind.NODE_NOT_FOUND,
        )
    return in_order(
        replace(node, path=target + path.removeprefix(source))
        if path == source or is_below(path, source)
        else node
        for path, node in nodes.items()
    )


def net_moves(before: Mapping[str, Node], after: Mapping[str, Node]) -> tuple[Move, ...]:
    """Nodes that have another path than before, in the order of their new paths' segments."""
    paths = {node.id: path for path, node in before.items()}
    return in_target_order(
        Move(node.id, not node.is_group, paths[node.id], path)
        for path, node in after.items()
        if paths[node.id] != path
    )


class RearrangeSession(Session):
    """Moves nodes of the head of a branch. Everything can be read, nothing else be written."""

    def __init__(
        self,
        engine: Engine,
        base: Snapshot,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(engine.ledger, V2Ledger):
            raise UnsupportedError(
                "nodes can be moved in repositories of generation `2` only; this one is of "
                f"generation `{engine.generation}`"
            )
        super().__init__(engine, base, metadata=metadata)
        self._ledger = engine.ledger
        self._start = base
        self._target: str | None = branch

    @property
    def read_only(self) -> bool:
        """Whether nothing can be moved any more."""
        return self._target is None

    @property
    def mode(self) -> SessionMode:
        """What the session may do."""
        return SessionMode.readonly if self.read_only else SessionMode.rearrange

    @property
    def branch(self) -> str | None:
        """The branch that `commit` moves."""
        return self._target

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether anything was moved."""
        return bool(self._moves())

    def status(self) -> Diff:
        """What was moved so far."""
        return Diff(moved_nodes=[(move.source, move.target) for move in self._moves()])

    def discard_changes(self) -> None:
        """Forget every move."""
        with self.tree.lock:
            self.tree.base = self._start

    def move(self, from_path: str, to_path: str) -> None:
        """Give the node at `from_path`, with everything below it, another path."""
        check_node_path(from_path)
        check_node_path(to_path)
        with self.tree.lock:
            self._open_branch()
            base = self.tree.base
            self.tree.base = replace(base, nodes=moved(base.nodes, from_path, to_path))

    def commit(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        *,
        token: str | None = None,
        allow_empty: bool = False,
        patience: float = 600.0,
    ) -> str:
        """Store the moves as one commit; returns its id. It is never rebased."""
        del rebase_with, rebase_tries, patience
        if token is not None:
            raise InvalidInputError("moves cannot be committed with a token")
        with self.tree.lock:
            branch, moves = self._ready(allow_empty=allow_empty)
            snapshot = self._flusher.flush(
                self.tree.base,
                ChangeSet(),
                message=message,
                metadata=self._default_metadata | dict(metadata or {}),
                log=lambda log: TransactionLog(log.id, moves=moves),
            )
            outcome = self._ledger.commit(branch, self._start.id, snapshot)
            return self._settle(snapshot if not isinstance(outcome, Behind) else outcome)

    def amend(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        """Add the moves to the newest commit of the branch; returns the id that replaces it."""
        with self.tree.lock:
            branch, moves = self._ready(allow_empty=allow_empty)
            outcome = amend(
                self._engine,
                self._flusher,
                branch=branch,
                base=self.tree.base,
                changes=ChangeSet(),
                moves=moves,
                may_move=True,
                message=message,
                metadata=self._default_metadata | dict(metadata or {}),
            )
            return self._settle(outcome)

    def flush(self, message: str, metadata: Mapping[str, Any] | None = None) -> str:
        """Moves are committed or forgotten, not stored aside."""
        del message, metadata
        raise UnsupportedError("a session that moves nodes cannot be flushed; commit it")

    def rebase(self, solver: ConflictSolver) -> None:
        """Moves are never rebased: paths of the other side may not mean what they did."""
        del solver
        raise UnsupportedError(
            "a session that moves nodes cannot be rebased; make a new one and move again"
        )

    def _moves(self) -> tuple[Move, ...]:
        with self.tree.lock:
            return net_moves(self._start.nodes, self.tree.base.nodes)

    def _open_branch(self) -> str:
        if self._target is None:
            raise SessionError("this session has committed; open another one")
        if not is_enabled(self._ledger.info(), Feature.MOVE_NODE):
            raise UnsupportedError(f"feature `move_node` is disabled in {self.location}")
        return self._target

    def _ready(self, *, allow_empty: bool) -> tuple[str, tuple[Move, ...]]:
        branch, moves = self._open_branch(), self._moves()
        if not moves and not allow_empty:
            raise SessionError(
                "cannot commit, no changes made to the session", kind=Kind.NO_CHANGES
            )
        self._engine.conditions.check()
        self._engine.clock.check()
        return branch, moves

    def _settle(self, outcome: Snapshot | Behind) -> str:
        if isinstance(outcome, Behind):
            raise self._lost_race(self._start.id, outcome.actual, 1)
        self._finish(outcome)
        self._target = None
        return self._engine.show(outcome.id)
