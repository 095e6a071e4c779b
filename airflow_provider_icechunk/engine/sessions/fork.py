"""A session that writes on behalf of another: it hands back what it wrote and cannot commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never

from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.commit.rebase import Replaces
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.engine.workers.codec import (
    Fragment,
    decode_changes,
    encode_changes,
    recorded,
)
from airflow_provider_icechunk.engine.workers.coordinator import ForkResult, read_work
from airflow_provider_icechunk.engine.workers.releases import RELEASE, both_releases
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit, counted_since
from airflow_provider_icechunk.exceptions import ForkError, SessionError

from .session import Origin, Session


class ForkSession(Session):
    """Writes for the session that made the work unit.

    It can be pickled in both directions; static credentials refuse to travel with it.
    """

    def __init__(
        self, core: Core, staged: Snapshot, work: WorkUnit, changes: ChangeSet | None = None
    ) -> None:
        super().__init__(core, staged, branch=work.branch)
        self._coordinator.begin(work, staged)
        if changes is not None:
            self.tree.changes = changes
            self.tree.held.count(counted_since(work, staged))

    @property
    def work(self) -> WorkUnit:
        """The work this session does."""
        assert self._coordinator.work is not None
        return self._coordinator.work

    def fork(self) -> ForkSession:
        """A session for a worker of this worker, based on this one's tree, changes included.

        Merge it into this session, and this one into the session that it was forked from.
        """
        with self.tree.lock:
            work = self._coordinator.hand_out(self.work.branch, self.work.job)
            return ForkSession(self._core, self._core.objects.snapshot(work.staged), work)

    def hand_over(self) -> ChangeSet:
        """What this session changed, after storing its chunks durably."""
        with self.tree.lock:
            self.tree.writer.flush()
            self._core.storage.settle()
            return self.tree.changes.copy()

    def result(self) -> ForkResult:
        """What the parent session of this fork merges."""
        return ForkResult(self.work.staged, self.hand_over(), self.tree.held)

    def fragment(self, worker: str) -> Fragment:
        """What this session wrote, after storing it durably; `worker` names the writer in errors.

        Only chunks can be handed back: the session that hands out the work creates arrays and
        groups.
        """
        with self.tree.lock:
            changes = self.tree.changes
            if changes.created or changes.updated or changes.deleted:
                raise SessionError(
                    "a worker may only write chunks, but this one created, changed or deleted "
                    "nodes: make those changes before handing out work"
                )
            self.tree.writer.flush()
            self._core.storage.settle()
            return Fragment(
                base=self.work.staged,
                job=self.work.job,
                worker=worker,
                arrays=dict(changes.edited()),
                since=self.tree.held.oldest() if self.tree.held.is_old else None,
                boxes=recorded(changes),
                labels=dict(changes.labels),
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

    def __reduce__(self) -> tuple[Any, ...]:
        changes = encode_changes(self.hand_over(), self.tree.base)
        return (_fork, (Origin.of(self._core), self.work.to_json(), changes))


def _fork(origin: Origin, work: Mapping[str, Any], changes: bytes) -> ForkSession:
    """A fork that came from another process."""
    told = both_releases(work.get(RELEASE))
    if told:
        # It carries functions by name, which the other release may have changed.
        raise ForkError(f"this fork came from another process{told}")
    core = origin.open()
    unit = read_work(core, work)
    staged = core.objects.snapshot(unit.staged)
    made = decode_changes(changes, staged, where="the pickled fork")
    return ForkSession(core, staged, unit, made)


def _refused(what: str) -> ForkError:
    return ForkError(
        f"cannot {what} a forked session: commits are not allowed in it; give its result to the "
        "session it was forked from"
    )
