"""A commit, from top to bottom.

1. Check that there is something to commit. The guarantees of the store and the clock of this host
   are checked alongside the rest, and the answers are known before the branch moves.
2. Check whether an earlier attempt with the same token landed; if so, that is the commit.
3. Rebase a draft that is known to be behind over the commits of others.
4. Store chunks, manifests, log and snapshot, all at once. Nothing refers to them yet.
5. Move the branch, if it is still where the session began: one conditional write decides.
6. If that write lost: wait for a turn, read the branch again, look for the token in what the others
   committed, and go on with 3. Before anything is stored, the branch is read once more: a draft
   that would lose its race anyway is rebased, not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_icechunk.engine import counters
from airflow_provider_icechunk.engine.concurrency import Background
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Metadata, Snapshot
from airflow_provider_icechunk.engine.history.ancestry import (
    PARENT_KEY,
    TOKEN_KEY,
    commits_between,
    find_token,
)
from airflow_provider_icechunk.engine.objects.line import LONGEST_LINE, with_line
from airflow_provider_icechunk.engine.refs.base import Behind, Moved, Register
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    IcechunkError,
    Kind,
    NotFoundError,
    OutcomeUnknownError,
    SessionError,
)

from .amend import amend
from .conflicts import ConflictSolver
from .merge import MergeSolver
from .rebase import Draft, Replaces, rebase_onto
from .records import record_of, with_record
from .writer import CommitWriter

_LOOKS = 4
"""How often one attempt follows the branch before it pauses."""


class _OvertakenError(Exception):
    """Somebody else has moved the branch."""

    def __init__(self, head: SnapshotId | None) -> None:
        super().__init__()
        self.head = head


def _check_same(head: SnapshotId, now: SnapshotId | None) -> None:
    if now != head:
        raise _OvertakenError(now)


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """How to commit."""

    message: str
    metadata: Mapping[str, Any]
    solver: ConflictSolver | None = None
    """Rebases the changes over commits of others; without it they are a conflict."""
    tries: int = 1_000
    seconds: float = 600.0
    token: str | None = None
    """Kept in the snapshot: an attempt that finds its own token committed writes nothing."""
    allow_empty: bool = False
    replaces: Replaces | None = None
    """Says which commits this one supersedes: they never conflict with it."""


class Committer:
    """Stores what one session did and moves its branch. Its methods need the lock of the tree."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._writer = self._new_writer()
        self._began = draft.tree.base.id
        self._rebases = 0
        self._checked: Callable[[], None] = lambda: None
        """Waits for the checks of the store, before a branch moves."""

    @property
    def _core(self) -> Core:
        return self.draft.tree.core

    def commit(self, branch: str, request: CommitRequest) -> Snapshot:
        """Store the changes as a new snapshot and move the branch to it.

        A crash at any point leaves the branch at the old or the new snapshot.
        """
        with counters.timed("commit_seconds", self._core.world.monotonic):
            try:
                return self._commit(branch, request)
            except ConflictError:
                counters.add("conflicts")
                raise

    def _commit(self, branch: str, request: CommitRequest) -> Snapshot:
        token = request.token
        self._began, self._rebases = self.draft.tree.base.id, 0
        self._checked = self._check(allow_empty=request.allow_empty or token is not None)
        self.draft.tree.writer.begin_flush()
        metadata = dict(request.metadata)
        if token is not None:
            metadata[TOKEN_KEY] = token
        known = token or request.solver or request.replaces
        head = self._head(branch) if known else None
        earlier = self._find_token(head, token)
        if earlier is not None:
            return earlier
        try:
            return self._land(branch, request, metadata, head)
        except BaseException:
            self.draft.withdraw()
            raise

    def _land(
        self, branch: str, request: CommitRequest, metadata: Metadata, head: SnapshotId | None
    ) -> Snapshot:
        """Try until the branch names a snapshot of ours.

        :param head: where the branch is, if it was read; searched for the token.
        """
        tries = 0
        for _ in self._backoff(request).attempts():
            tries += 1
            if tries > 1:
                # Others may have committed during the pause: a draft on an earlier head would
                # lose.
                head = self._head(branch)
            outcome = self._try(branch, request, metadata, head, racing=tries > 1)
            if isinstance(outcome, Snapshot):
                return outcome
            counters.add("lost_races")
            head = outcome.actual
            if request.solver is None or head is None:
                break
        raise self._lost_race(branch, self.draft.tree.base.id, head, tries)

    def _try(
        self,
        branch: str,
        request: CommitRequest,
        metadata: Metadata,
        head: SnapshotId | None,
        *,
        racing: bool,
    ) -> Snapshot | Behind:
        """Follow the branch, store and swap once; the commit that has our token also counts."""
        solver, replaces = request.solver, request.replaces
        earlier = self._find_token(head, request.token) if racing else None
        if earlier is not None:
            return earlier
        if head is not None and (solver is not None or replaces is not None):
            with counters.timed("commit_rebase_seconds", self._core.world.monotonic):
                standing = self._follow(branch, request, head, racing=racing)
            if isinstance(standing, Snapshot) or standing.actual is None:
                return standing
            if solver is not None and standing.actual != self.draft.tree.base.id:
                return standing
        base = self.draft.tree.base
        if replaces is not None and not self._core.generation.keeps_logs:
            metadata = {**metadata, PARENT_KEY: self._core.format_id(base.id)}
        if base.id != self._began:
            metadata = with_line(metadata, self._line(), self._core.generation, self._rebases)
        with counters.timed("commit_store_seconds", self._core.world.monotonic):
            snapshot = self.store(request.message, metadata)
            self._checked()
        move = partial(self._move_branch, branch, base.id, snapshot)
        undo = partial(take_back, self._core, branch, base.id, snapshot.id)
        with counters.timed("commit_branch_seconds", self._core.world.monotonic):
            outcome = self.draft.tree.held.swap(move, undo)
        if isinstance(outcome, Moved):
            counters.add("commits")
            return snapshot
        return self._find_token(outcome.actual, request.token) or outcome

    def _line(self) -> list[SnapshotId]:
        """Ids of commits below the base, as far as they are in memory: others race with us."""
        objects, commit = self._core.objects, self.draft.tree.base
        line: list[SnapshotId] = []
        while len(line) < LONGEST_LINE:
            parent = objects.refs.parent(commit)
            if parent is None:
                break
            line.append(parent)
            if not objects.has_snapshot(parent):
                break
            commit = objects.snapshot_header(parent)
        return line

    def _follow(
        self, branch: str, request: CommitRequest, head: SnapshotId, *, racing: bool
    ) -> Behind | Snapshot:
        """Reach the head, with nothing left to merge; or return the commit that has our token.

        While others commit, the branch is read again before chunks are merged and anything is
        stored, and followed a few times: rebasing over one more commit is cheap, losing is not. If
        the branch keeps moving, the session stays behind the returned head.
        """
        draft = self.draft
        for look in range(_LOOKS):
            # Requested while the draft is rebased: both wait for the storage.
            asked = Background(partial(self._head, branch)) if racing or look else None
            # A draft known to be behind is rebased before anything is written, not after; onto the
            # head that was searched for the token, not onto what the branch may have become since.
            self._rebases += head != draft.tree.base.id
            rebase_onto(draft, branch, head, request.solver, request.replaces)
            try:
                if asked is not None:
                    _check_same(head, asked.result())
                elif draft.is_disputed:
                    self._check_head(branch, head)
                if isinstance(request.solver, MergeSolver):
                    draft.settle(request.solver, partial(self._check_head, branch, head))
            except _OvertakenError as overtaken:
                # What was merged for that head must be merged again, starting from what we wrote.
                draft.withdraw()
                if overtaken.head is None:
                    return Behind(None)
                head = overtaken.head
            else:
                return Behind(head)
            earlier = self._find_token(head, request.token)
            if earlier is not None:
                return earlier
        return Behind(head)

    def _check_head(self, branch: str, head: SnapshotId) -> None:
        _check_same(head, self._head(branch))

    def _head(self, branch: str) -> SnapshotId | None:
        """Where the branch is; also reads what a rebase onto it needs."""
        head = self._core.refs.branch(branch)
        if head is not None and head != self.draft.tree.base.id:
            self._core.objects.prefetch_commit(head, self.draft.tree.base.id)
        return head

    def _backoff(self, request: CommitRequest) -> Backoff:
        return Backoff(
            1 + max(0, request.tries),
            first_pause=0.005,
            longest_pause=2.0,
            seconds=request.seconds,
            by_effort=True,
            world=self._core.world,
        )

    def _check(self, *, allow_empty: bool) -> Callable[[], None]:
        """Refuse an empty commit, and start querying the store; the returned call waits for the
        answer.
        """
        if not allow_empty:
            self._check_changed()
        return self._core.begin_checks()

    def _check_changed(self) -> None:
        if self.draft.is_empty:
            raise SessionError(
                "cannot commit, no changes made to the session", kind=Kind.NO_CHANGES
            )

    def _find_token(self, head: SnapshotId | None, token: str | None) -> Snapshot | None:
        if head is None or token is None:
            return None
        commits = commits_between(self._core.objects, self.draft.tree.base.id, head)
        return find_token(commits or (), token)

    def store(self, message: str, metadata: Metadata) -> Snapshot:
        """Store the current tree as a snapshot that nothing names."""
        chunks = self.draft.tree.writer
        chunks.begin_flush()
        base, changes = self.draft.tree.base, self.draft.changes
        return self._writer.store(
            base,
            changes,
            chunks=chunks.flush,
            message=message,
            metadata=with_record(metadata, record_of(changes, base)),
            log=self.draft.log,
        )

    def _move_branch(self, branch: str, base: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Move the branch; a write of unknown outcome is settled by the history, if it can be.

        If the branch contains the snapshot, the write landed. If it is somewhere else, it cannot
        have: only one child of `base` ever becomes the head. If it is still at `base`, the write
        may be in flight, and its outcome is unknown.
        """
        refs = self._core.refs
        try:
            return refs.commit(branch, base, snapshot)
        except OutcomeUnknownError:
            head = refs.branch(branch)
            if head == base:
                raise
            path = None if head is None else commits_between(self._core.objects, base, head)
            if path is None:
                raise
            landed = any(commit.id == snapshot.id for commit in path)
            return Moved() if landed else Behind(head)

    def _lost_race(
        self, branch: str, expected: SnapshotId, actual: SnapshotId | None, tries: int
    ) -> ConflictError:
        ours = self._core.format_id(expected)
        theirs = None if actual is None else self._core.format_id(actual)
        if actual is None:
            reason = f"branch {branch!r} no longer exists"
        elif tries > 1:
            reason = f"branch {branch!r} moved {tries} times while this commit was tried"
        else:
            reason = f"branch {branch!r} is at {theirs}; rebase and commit again"
        return ConflictError(
            f"Failed to commit, expected parent: {ours}, actual parent: {theirs}: {reason}",
            expected_parent=ours,
            actual_parent=theirs,
            kind=Kind.ATTEMPTS_EXHAUSTED if tries > 1 else Kind.CONFLICT,
        )

    def rebase(self, branch: str, solver: ConflictSolver) -> None:
        """Rebase the changes onto what was committed to the branch since the session was opened."""
        head = self._head(branch)
        if head is None:
            return
        try:
            rebase_onto(self.draft, branch, head, solver)
            if isinstance(solver, MergeSolver):
                self.draft.settle(solver)
        except BaseException:
            self.draft.withdraw()
            raise

    def amend(
        self, branch: str, message: str, metadata: Metadata, *, allow_empty: bool
    ) -> Snapshot:
        """Store the changes together with the newest commit, which the result replaces."""
        self._check(allow_empty=allow_empty)()
        self.draft.tree.writer.flush()
        base = self.draft.tree.base
        outcome = amend(
            self._core,
            self._writer,
            branch=branch,
            base=base,
            changes=self.draft.changes,
            moves=self.draft.moves,
            may_move=self.draft.rearranges,
            message=message,
            # It includes the commit below, so the record of the whole is unknown.
            metadata=with_record(metadata, None),
        )
        if isinstance(outcome, Behind):
            raise self._lost_race(branch, base.id, outcome.actual, 1)
        return outcome

    def flush(self, message: str, metadata: Metadata) -> Snapshot:
        """Store the changes as a snapshot that no branch names."""
        self._check_changed()
        snapshot = self.store(message, metadata)
        self._check_base()
        try:
            self.draft.tree.held.swap(partial(self._core.refs.announce, snapshot))
        except SessionError:
            unlist(self._core, snapshot.id)
            raise
        return snapshot

    def _check_base(self) -> None:
        """A commit finds its base at the head of the branch; otherwise nothing shows that it still
        exists.
        """
        core, base = self._core, self.draft.tree.base.id
        try:
            core.objects.stored_now(base)
        except NotFoundError as error:
            raise SessionError(
                f"snapshot {core.format_id(base)} of {core.storage.location}, on which this "
                "session is based, was collected, perhaps with chunks that the changes share; "
                "nothing was committed: write them again in a new session",
                kind=Kind.CHUNKS_COLLECTED,
            ) from error

    def forget(self) -> None:
        """Discard what was stored so far."""
        self._writer = self._new_writer()

    def _new_writer(self) -> CommitWriter:
        core, held = self._core, self.draft.tree.held
        return CommitWriter(core.objects, core.settings.splitting, core.world, held)


def take_back(core: Core, branch: str, base: SnapshotId, snapshot: SnapshotId) -> bool:
    """Move a branch from a possibly incomplete `snapshot` back to `base`; returns whether it did.

    A process that stalls between its last look at the collections and the write that moves its
    branch may move it to a snapshot that was collected meanwhile, and notice only afterwards. The
    branch stays where it is if others have committed on top, or if `base` was collected as well.
    """
    refs = core.refs
    try:
        if isinstance(refs.reset_branch(branch, base, snapshot), Behind):
            return False
        try:
            core.objects.stored_now(base)
        except NotFoundError:
            refs.reset_branch(branch, snapshot, base)
            return False
        unlist(core, snapshot)
    except IcechunkError:
        return False
    return True


def unlist(core: Core, snapshot: SnapshotId) -> None:
    """Unlist a snapshot whose files may be gone: listed, it would stop every collection."""
    refs = core.refs
    if isinstance(refs, Register) and snapshot in refs.register().snapshots:
        refs.unlist(frozenset({snapshot}))
