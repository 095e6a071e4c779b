"""A session that writes on behalf of another: it hands back a fragment and cannot commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never, Self

from airflow_provider_icechunk.exceptions import ForkError, SessionError
from airflow_provider_icechunk.format.fragments import Fragment
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.conflicts import ConflictSolver
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.handoff import WorkUnit, counted_since
from airflow_provider_icechunk.repository.merging import Handed
from airflow_provider_icechunk.repository.rebasing import Replaces
from airflow_provider_icechunk.repository.session import Session


class ForkSession(Session):
    """Writes for the session that made the work unit."""

    def __init__(
        self, engine: Engine, staged: Snapshot, work: WorkUnit, changes: ChangeSet | None = None
    ) -> None:
        super().__init__(engine, staged, branch=work.branch)
        self._work = work
        self.tree.held.join(work.tenancy)
        self._handed[staged.id] = Handed(staged.id, staged, ChangeSet())
        if changes is not None:
            self.tree.changes = changes
            self.tree.held.count(counted_since(work, staged))

    @property
    def work(self) -> WorkUnit:
        """The work this session does."""
        assert self._work is not None
        return self._work

    def fork(self) -> Self:
        """A session for a worker of this worker, which stands on this one's tree, changes included.

        Merge it into this session, and this one into the session that it was forked from.
        """
        with self.tree.lock:
            work = self._hand_out(self.work.job)
            return type(self)(self._engine, self._engine.assets.snapshot(work.staged), work)

    def hand_over(self) -> ChangeSet:
        """What this session changed, its chunks stored durably first."""
        with self.tree.lock:
            self.tree.writer.flush()
            self._engine.storage.settle()
            return self.tree.changes.copy()

    def fragment(self, worker: str) -> Fragment:
        """What this session wrote, stored durably first; `worker` names the writer in errors.

        Only chunks can be handed back: arrays and groups are made by the session that hands out.
        """
        with self.tree.lock:
            changes = self.tree.changes
            if changes.created or changes.updated or changes.deleted:
                raise SessionError(
                    "a worker may only write chunks, but this one created, changed or deleted "
                    "nodes: make those changes before handing out work"
                )
            self.tree.writer.flush()
            self._engine.storage.settle()
            return Fragment(
                base=self.work.staged,
                job=self.work.job,
                worker=worker,
                arrays=dict(changes.edited()),
                since=self.tree.held.oldest() if self.tree.held.is_old else None,
            )

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
        replaces: Replaces | None = None,
    ) -> Never:
        """Refused: the session that handed out the work commits."""
        del message, metadata, rebase_with, rebase_tries, token, allow_empty, patience, replaces
        raise _refused("commit")

    def flush(self, message: str, metadata: Mapping[str, Any] | None = None) -> Never:
        """Refused: the session that handed out the work stores snapshots."""
        del message, metadata
        raise _refused("flush")

    def rebase(self, solver: ConflictSolver) -> Never:
        """Refused: the session that handed out the work rebases."""
        del solver
        raise _refused("rebase")


def _refused(what: str) -> ForkError:
    return ForkError(
        f"a forked session cannot {what}; give its result to the session it was forked from"
    )
