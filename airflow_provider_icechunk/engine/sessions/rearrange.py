"""A session that renames nodes and does nothing else.

Node ids, manifests and chunks stay: a move of any size is one small commit. It can be rebased over
commits that did not touch the nodes it moves or their new paths. In generation `2` nothing can be
rebased over it; in the others, whose logs have no moves, commits that did not touch the moved
nodes can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_icechunk.engine.commit.rebase import Rearrangement
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.history.diff import Diff
from airflow_provider_icechunk.engine.refs import v2_refs
from airflow_provider_icechunk.engine.tree.moves import moved
from airflow_provider_icechunk.exceptions import SessionError, UnsupportedError

from .session import Session, SessionMode


class RearrangeSession(Session):
    """Moves nodes of the head of a branch. Everything can be read, and nothing else written.

    It commits, amends and rebases as other sessions do.
    """

    _draft_class = Rearrangement

    def __init__(
        self,
        core: Core,
        base: Snapshot,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(core, base, metadata=metadata)
        self._branch = branch

    @property
    def read_only(self) -> bool:
        """Whether nothing can be moved any more."""
        return self._branch is None

    @property
    def mode(self) -> SessionMode:
        """What the session may do."""
        return SessionMode.readonly if self.read_only else SessionMode.rearrange

    def status(self) -> Diff:
        """What has been moved so far."""
        with self.tree.lock:
            moves = self._draft.moves
        return Diff(moved_nodes=[(move.source, move.target) for move in moves])

    def discard_changes(self) -> None:
        """Forget every move."""
        with self.tree.lock:
            self._draft.discard()

    def move(self, from_path: str, to_path: str) -> None:
        """Give the node at `from_path`, with everything below it, another path."""
        check_node_path(from_path)
        check_node_path(to_path)
        with self.tree.lock:
            self._open_branch()
            base = self.tree.base
            self.tree.base = replace(base, nodes=moved(base.nodes, from_path, to_path))

    def _open_branch(self) -> str:
        if self._branch is None:
            raise SessionError("this session has committed; open another one")
        refs = self._core.refs
        refs.check_writable()
        if refs.generation.has_features:
            from airflow_provider_icechunk.engine.format.v2.repo import Feature, is_enabled

            info = v2_refs(refs, "a feature").info()
            if not is_enabled(info, Feature.MOVE_NODE):
                raise UnsupportedError(f"feature `move_node` is disabled in {self.location}")
        return self._branch
