"""What a session changed, and how it is rebased onto commits of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_icechunk.engine import counters
from airflow_provider_icechunk.engine.format.ids import ManifestId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Move, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.history.ancestry import (
    commits_between,
    is_first_since_parent,
    logs_since_parent,
)
from airflow_provider_icechunk.engine.tree.changes import ChangeSet, ids_of
from airflow_provider_icechunk.engine.tree.moves import log_of_moves, net_moves
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.exceptions import ConflictError, RebaseFailedError, SessionError

from .appends import place_again
from .conflicts import Collision, ConflictSolver, Theirs, rebase_step
from .explain import explain
from .merge import (
    ChunkCells,
    Disputes,
    MergeSolver,
    RecordedStep,
    Unresolved,
    add_disputes,
    disputes_with_own,
    merge_step,
    settle,
)
from .moves import rebase_moves
from .records import read_record
from .supersede import lay_over

_SMALL_MANIFEST = 1 << 20
"""Manifests up to this size are read before it is known that the branch has stopped moving."""

Replaces = Callable[[Mapping[str, Any]], bool]
"""Decides from a commit's metadata whether it is an earlier one of the same work."""


class Draft:
    """The changes of a session on top of its base: what a commit stores."""

    rearranges = False
    """Whether it moves nodes and does nothing else."""

    def __init__(self, tree: WorkingTree) -> None:
        self.tree = tree
        self.cells: Callable[[], ChunkCells] | None = None
        """How chunks are decoded, for solvers that merge them."""
        self._disputes: Disputes = {}
        self._passed: list[RecordedStep] = []
        """Commits of others after which our appends must be placed."""
        self._settled: tuple[Snapshot, ChangeSet] | None = None

    @property
    def changes(self) -> ChangeSet:
        """Nodes and chunks that were changed."""
        return self.tree.changes

    @property
    def moves(self) -> tuple[Move, ...]:
        """Nodes with new paths."""
        return ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return self.tree.changes.is_empty()

    def log(self, log: TransactionLog) -> TransactionLog:
        """The log to store, given that of the changes."""
        return log

    def stand_on(self, commit: Snapshot, solver: ConflictSolver) -> None:
        """Make a child of the base the new base, if nothing conflicts."""
        tree, ours = self.tree, self.tree.changes
        if ours.created:
            ours = tree.node_ids.renumber(ours, ids_of(commit.nodes.values()))
        logs = logs_since_parent(tree.core.objects, commit)
        record = read_record(commit.metadata) if len(logs) == 1 else None
        for log in logs:
            theirs = Theirs(log, commit)
            if isinstance(solver, MergeSolver):
                step = RecordedStep(theirs, record)
                merged = merge_step(ours, tree.base, step)
                if isinstance(merged, Collision):
                    raise self._collided(commit, merged, solver)
                if ours.appends:
                    self._passed.append(step)
                self._disputes = add_disputes(self._disputes, merged.disputes)
                ours = merged.changes
                continue
            decision = rebase_step(ours, tree.base, theirs, solver)
            if isinstance(decision, Collision):
                raise self._collided(commit, decision, solver)
            ours = decision.changes
        tree.changes, tree.base = ours, commit

    def stand_over(self, commit: Snapshot, solver: ConflictSolver | None = None) -> bool:
        """Make an earlier commit of the same work the new base; returns whether it could be."""
        tree = self.tree
        logs = logs_since_parent(tree.core.objects, commit)
        if not is_first_since_parent(tree.core.objects, commit):
            # Commits of others before it have expired, and their changes must not be skipped.
            return False
        laid = lay_over(tree.changes, commit)
        if laid is None:
            return False
        taken = ids_of(commit.nodes.values())
        tree.changes = tree.node_ids.renumber(laid, taken) if laid.created else laid
        if isinstance(solver, MergeSolver) and logs:
            touched, record = logs[0].updated_chunks, read_record(commit.metadata)
            more = disputes_with_own(tree.changes, tree.base, commit, touched, record)
            self._disputes = add_disputes(self._disputes, more)
        tree.base = commit
        return True

    def settle(self, solver: MergeSolver, before_storing: Callable[[], None] | None = None) -> None:
        """Merge the chunks that others wrote as well with those of the base.

        :param before_storing: called before merged chunks are stored; may raise.
        """
        if self._settled is None:
            return
        if self._disputes or self.tree.changes.appends:
            if self.cells is None:
                raise SessionError("this session cannot decode chunks, so it cannot merge them")
            left = self._settle(self.cells, solver, before_storing)
            if left is not None:
                collision = Collision((left.conflict,))
                raise self._collided(left.commit or self.tree.base, collision, solver)
        self._disputes, self._passed, self._settled = {}, [], None

    def _settle(
        self,
        cells: Callable[[], ChunkCells],
        solver: MergeSolver,
        before_storing: Callable[[], None] | None,
    ) -> Unresolved | None:
        placed = place_again(self.tree, self._disputes, self._passed, cells, solver)
        if isinstance(placed, Unresolved):
            return placed
        return settle(self.tree, placed, cells, solver, before_storing)

    @property
    def is_disputed(self) -> bool:
        """Whether there is something to merge before the draft can be stored."""
        return bool(self._disputes or self._passed)

    def remember(self) -> None:
        """Remember the current base of the draft, unless it already waits for a merge."""
        if self._settled is None:
            self._settled = self.tree.base, self.tree.changes

    def withdraw(self) -> None:
        """Return to the base before an unfinished merge."""
        if self._settled is not None:
            self.tree.base, self.tree.changes = self._settled
        self._disputes, self._passed, self._settled = {}, [], None

    def discard(self) -> None:
        """Discard the changes."""
        self.tree.changes = ChangeSet()

    def finish(self, snapshot: Snapshot) -> None:
        """Make the commit the final base, with no changes on top."""
        self.tree.base = snapshot
        self.tree.changes = ChangeSet()
        self.tree.read_only = True

    def _collided(
        self, commit: Snapshot, decision: Collision, solver: ConflictSolver | None = None
    ) -> RebaseFailedError:
        identity = self.tree.core.format_id(commit.id)
        return RebaseFailedError(
            f"Rebase failed on snapshot {identity}: {len(decision.conflicts)} conflicts "
            f"found: {', '.join(one.in_short() for one in decision.conflicts[:5])}"
            f"{explain(commit, decision.conflicts, self.changes, solver)}",
            snapshot=identity,
            conflicts=decision.conflicts,
        )


class Rearrangement(Draft):
    """Moves of nodes. The tree is read-only: what is moved is a base whose nodes have other paths.

    It is rebased over commits that left the nodes it moves, and their new places, alone.
    """

    rearranges = True

    def __init__(self, tree: WorkingTree) -> None:
        super().__init__(tree)
        self._start = tree.base

    @property
    def changes(self) -> ChangeSet:
        """Only paths change."""
        return ChangeSet()

    @property
    def moves(self) -> tuple[Move, ...]:
        """Where nodes ended up, by whatever route."""
        return net_moves(self._start.nodes, self.tree.base.nodes)

    @property
    def is_empty(self) -> bool:
        """Whether every node is where it was."""
        return not self.moves

    def log(self, log: TransactionLog) -> TransactionLog:
        """A log of moves, if the generation has them."""
        logs_moves = self.tree.core.generation.logs_moves
        return log_of_moves(log.id, self.moves, logs_moves=logs_moves)

    def stand_on(self, commit: Snapshot, solver: ConflictSolver) -> None:
        """Make a child of the base the new base; moves are already decided."""
        del solver
        logs = logs_since_parent(self.tree.core.objects, commit)
        theirs = tuple(move for log in logs for move in log.moves)
        theirs = theirs or net_moves(self._start.nodes, commit.nodes)
        decision = rebase_moves(self._start.nodes, self.tree.base.nodes, theirs, commit.nodes)
        if isinstance(decision, Collision):
            raise self._collided(commit, decision)
        self._start, self.tree.base = commit, replace(commit, nodes=decision.nodes)

    def stand_over(self, commit: Snapshot, solver: ConflictSolver | None = None) -> bool:
        """Moves never supersede a commit."""
        del commit, solver
        return False

    def discard(self) -> None:
        """Forget every move."""
        self.tree.base = self._start

    def finish(self, snapshot: Snapshot) -> None:
        """Make the commit the base."""
        super().finish(snapshot)
        self._start = snapshot


def rebase_onto(
    draft: Draft,
    branch: str,
    head: SnapshotId,
    solver: ConflictSolver | None,
    replaces: Replaces | None = None,
) -> None:
    """Rebase onto `head`, or, without a solver, onto the last of our own commits before a foreign
    one.

    On a conflict that `solver` may not decide, `RebaseFailedError` is raised and the draft stays on
    the last commit it could be moved to. With a `MergeSolver` chunks may be left to merge: cells
    are merged only for the head, so the caller has to `settle` the draft when it gets there, and to
    `withdraw` it after an error, which takes it back to where it was.
    """
    core, base = draft.tree.core, draft.tree.base.id
    if head == base:
        return
    commits = commits_between(core.objects, base, head)
    if commits is None:
        ours, theirs = core.format_id(base), core.format_id(head)
        raise ConflictError(
            f"branch {branch!r} no longer contains {ours}, on which this session is based (it was "
            "reset, or its history expired): the session cannot be rebased; start again from a "
            "new session",
            expected_parent=ours,
            actual_parent=theirs,
        )
    counters.add("rebases")
    core.objects.prefetch(
        (commit.id for commit in commits), _manifests_to_rewrite(draft.changes, commits[-1])
    )
    if not isinstance(solver, MergeSolver) or draft.rearranges:
        _pass(draft, commits, solver, replaces)
        return
    draft.remember()
    _pass(draft, commits, solver, replaces)


def _manifests_to_rewrite(changes: ChangeSet, head: Snapshot) -> list[ManifestId]:
    """Manifests that a commit on `head` needs whatever it wrote: the only ones of their arrays."""
    found = []
    for node in head.nodes.values():
        if node.array is not None and len(node.array.manifests) == 1 and node.id in changes.chunks:
            (only,) = node.array.manifests
            file = head.manifest_files.get(only.id)
            if file is not None and file.size_bytes <= _SMALL_MANIFEST:
                found.append(only.id)
    return found


def _pass(
    draft: Draft,
    commits: Sequence[Snapshot],
    solver: ConflictSolver | None,
    replaces: Replaces | None,
) -> None:
    for commit in commits:
        if replaces is not None and replaces(commit.metadata) and draft.stand_over(commit, solver):
            continue
        if solver is None:
            return
        draft.stand_on(commit, solver)
