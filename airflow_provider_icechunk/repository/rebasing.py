"""Moving what a session did over what others committed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_icechunk.exceptions import ConflictError, RebaseFailedError
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.conflicts import (
    Collision,
    ConflictSolver,
    Theirs,
    rebase_step,
)
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.history import commits_between, logs_since_parent
from airflow_provider_icechunk.repository.node_ids import ids_of
from airflow_provider_icechunk.repository.superseding import lay_over
from airflow_provider_icechunk.repository.working_tree import WorkingTree

Replaces = Callable[[Mapping[str, Any]], bool]
"""Says of the metadata of a commit whether it is an earlier one of the same work."""


class Rebasing:
    """Mixed into a session."""

    tree: WorkingTree
    _engine: Engine
    _branch: str | None

    def rebase(self, solver: ConflictSolver) -> None:
        """Move the changes over what was committed to the branch since the session was opened.

        On a conflict that `solver` may not decide, `RebaseFailedError` is raised and the session
        stays on the last commit it could be moved to.
        """
        with self.tree.lock:
            self._check_open()
            assert self._branch is not None
            head = self._engine.ledger.branch(self._branch)
            if head is not None:
                self._rebase_onto(head, solver)

    def _rebase_onto(
        self, head: SnapshotId, solver: ConflictSolver | None, replaces: Replaces | None = None
    ) -> None:
        """Stand on `head`, or, without a solver, on the last of our own commits before another."""
        assets, base = self._engine.assets, self.tree.base.id
        if head == base:
            return
        commits = commits_between(assets, base, head)
        if commits is None:
            ours, theirs = self._engine.show(base), self._engine.show(head)
            raise ConflictError(
                f"branch {self._branch!r} no longer contains {ours}, on which this "
                "session stands (it was reset, or its history expired): changes cannot be "
                "moved over; start again from a new session",
                expected_parent=ours,
                actual_parent=theirs,
            )
        assets.bring_logs(commit.id for commit in commits)
        for commit in commits:
            if replaces is not None and replaces(commit.metadata) and self._stand_over(commit):
                continue
            if solver is None:
                return
            self._stand_on(commit, solver)

    def _check_open(self) -> None:
        """Raise if the session cannot commit (any more)."""
        self.tree.check_writable()

    def _stand_on(self, commit: Snapshot, solver: ConflictSolver) -> None:
        """Make a child of the base the new base, if nothing is in the way."""
        self.tree.changes = self._moved_over(commit, solver)
        self.tree.base = commit

    def _stand_over(self, commit: Snapshot) -> bool:
        """Make an earlier commit of the same work the new base; says whether that was possible."""
        if len(logs_since_parent(self._engine.assets, commit)) > 1:
            # Commits of others expired before it, and what they did must not be passed over.
            return False
        laid = lay_over(self.tree.changes, commit)
        if laid is None:
            return False
        taken = ids_of(commit.nodes.values())
        self.tree.changes = self.tree.node_ids.renumber(laid, taken) if laid.created else laid
        self.tree.base = commit
        return True

    def _moved_over(self, commit: Snapshot, solver: ConflictSolver) -> ChangeSet:
        ours = self.tree.changes
        if ours.created:
            ours = self.tree.node_ids.renumber(ours, ids_of(commit.nodes.values()))
        for log in logs_since_parent(self._engine.assets, commit):
            verdict = rebase_step(ours, self.tree.base, Theirs(log, commit), solver)
            if isinstance(verdict, Collision):
                raise self._collided(commit, verdict)
            ours = verdict.changes
        return ours

    def _collided(self, commit: Snapshot, verdict: Collision) -> RebaseFailedError:
        identity = self._engine.show(commit.id)
        return RebaseFailedError(
            f"Rebase failed on snapshot {identity}: {len(verdict.conflicts)} conflicts "
            f"found: {', '.join(map(repr, verdict.conflicts[:5]))}",
            snapshot=identity,
            conflicts=verdict.conflicts,
        )
