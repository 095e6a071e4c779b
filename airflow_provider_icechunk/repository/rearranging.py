"""A session that gives nodes other paths and does nothing else.

Node ids, manifests and chunks stay: a move of any size is one small commit. It is rebased over
others who left the nodes that it moves, and their new places, alone. In generation `2` nobody can
rebase over it; in the others, whose logs know no moves, those can who left the moved nodes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_icechunk.exceptions import SessionError, UnsupportedError
from airflow_provider_icechunk.format.generations.v2.flags import Feature, is_enabled
from airflow_provider_icechunk.format.names import check_node_path
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.format.transactions import Move
from airflow_provider_icechunk.repository.amending import amend
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.conflicts import Collision, ConflictSolver
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.history import Diff, logs_since_parent
from airflow_provider_icechunk.repository.ledgers.base import Behind
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger
from airflow_provider_icechunk.repository.moves import (
    log_of_moves,
    moved,
    net_moves,
    rebase_moves,
)
from airflow_provider_icechunk.repository.session import Session, SessionMode


class RearrangeSession(Session):
    """Moves nodes of the head of a branch. Everything can be read, nothing else be written.

    It commits, amends and rebases as other sessions do. Its tree is read-only: what is moved is a
    base whose nodes have other paths.
    """

    def __init__(
        self,
        engine: Engine,
        base: Snapshot,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(engine, base, metadata=metadata)
        self._branch = branch
        self._start = base

    @property
    def read_only(self) -> bool:
        """Whether nothing can be moved any more."""
        return self._branch is None

    @property
    def mode(self) -> SessionMode:
        """What the session may do."""
        return SessionMode.readonly if self.read_only else SessionMode.rearrange

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
            self._check_open()
            base = self.tree.base
            self.tree.base = replace(base, nodes=moved(base.nodes, from_path, to_path))

    def _moves(self) -> tuple[Move, ...]:
        with self.tree.lock:
            return net_moves(self._start.nodes, self.tree.base.nodes)

    def _check_open(self) -> None:
        if self._branch is None:
            raise SessionError("this session has committed; open another one")
        ledger = self._engine.ledger
        ledger.check_writable()
        if isinstance(ledger, V2Ledger) and not is_enabled(ledger.info(), Feature.MOVE_NODE):
            raise UnsupportedError(f"feature `move_node` is disabled in {self.location}")

    def _store_snapshot(self, message: str, metadata: dict[str, Any]) -> Snapshot:
        moves = self._moves()
        return self._flusher.flush(
            self.tree.base,
            ChangeSet(),
            message=message,
            metadata=metadata,
            log=lambda log: log_of_moves(
                log.id, moves, logs_moves=self._engine.generation.logs_moves
            ),
        )

    def _amended(self, message: str, metadata: dict[str, Any]) -> Snapshot | Behind:
        assert self._branch is not None
        return amend(
            self._engine,
            self._flusher,
            branch=self._branch,
            base=self.tree.base,
            changes=ChangeSet(),
            moves=self._moves(),
            may_move=True,
            message=message,
            metadata=metadata,
        )

    def _stand_on(self, commit: Snapshot, solver: ConflictSolver) -> None:
        del solver  # Nothing about moves is left to be decided.
        logs = logs_since_parent(self._engine.assets, commit)
        theirs = tuple(move for log in logs for move in log.moves)
        theirs = theirs or net_moves(self._start.nodes, commit.nodes)
        verdict = rebase_moves(self._start.nodes, self.tree.base.nodes, theirs, commit.nodes)
        if isinstance(verdict, Collision):
            raise self._collided(commit, verdict)
        self._start, self.tree.base = commit, replace(commit, nodes=verdict.nodes)

    def _finish(self, snapshot: Snapshot) -> None:
        super()._finish(snapshot)
        self._start = snapshot
