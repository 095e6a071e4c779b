"""A session: one snapshot to read from and, when it is writable, the changes on top of it.

A session never sees what others do after it was opened. Its changes are invisible until `commit`
moves the branch in one conditional write. All methods may be called from many threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import partial
from typing import Any

import numpy as np

from airflow_provider_icechunk.exceptions import (
    ConflictError,
    Kind,
    NotFoundError,
    OutcomeUnknownError,
    SessionError,
)
from airflow_provider_icechunk.format.config import RepositoryConfig
from airflow_provider_icechunk.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.format.names import check_node_path
from airflow_provider_icechunk.format.references import Inline, Native, RefKind, Virtual
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.amending import amend
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.chunk_table import ChunkTables
from airflow_provider_icechunk.repository.commit import Flusher
from airflow_provider_icechunk.repository.conflicts import ConflictSolver
from airflow_provider_icechunk.repository.coordination import Coordination
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.handoff import WorkUnit
from airflow_provider_icechunk.repository.history import Diff, combine_paths, commits_between
from airflow_provider_icechunk.repository.ledgers.base import Behind, Moved
from airflow_provider_icechunk.repository.merging import Handed
from airflow_provider_icechunk.repository.patience import Patience
from airflow_provider_icechunk.repository.rebasing import Rebasing, Replaces
from airflow_provider_icechunk.repository.reindexing import Reindexing
from airflow_provider_icechunk.repository.working_tree import WorkingTree
from airflow_provider_icechunk.virtual.fetch import VirtualReader
from airflow_provider_icechunk.virtual.locations import BY_NAME

TOKEN_KEY = "commit_token"  # noqa: S105 - a name, not a secret
"""Snapshot metadata under which a commit keeps the token of the attempt that made it."""


class SessionMode(Enum):
    """What a session may do."""

    readonly = 0
    writable = 1
    rearrange = 2


class ChunkType(IntEnum):
    """Where the bytes of a chunk are, equal to its number in the columns of chunk tables.

    Official releases 2.x have the names in lower case.
    """

    UNINITIALIZED = uninitialized = 0
    NATIVE = native = 1
    VIRTUAL = virtual = 2
    INLINE = inline = 3

    __str__ = Enum.__str__


class Session(Coordination, Rebasing, Reindexing, ChunkTables):
    """Read one snapshot; with a branch, also change it and commit.

    :param engine: what the sessions of a repository share.
    :param base: the snapshot to stand on.
    :param branch: the branch that `commit` moves; `None` makes the session read-only.
    """

    def __init__(
        self,
        engine: Engine,
        base: Snapshot,
        *,
        branch: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.tree = WorkingTree(engine, base, read_only=branch is None)
        self._engine = engine
        self._branch = branch
        self._default_metadata = dict(metadata or {})
        self._flusher = self._new_flusher()
        self._work: WorkUnit | None = None
        self._handed: dict[SnapshotId, Handed] = {}

    @property
    def read_only(self) -> bool:
        """Whether the session cannot be written to. A session that committed is finished."""
        return self.tree.read_only

    @property
    def mode(self) -> SessionMode:
        """What the session may do."""
        return SessionMode.readonly if self.read_only else SessionMode.writable

    @property
    def snapshot_id(self) -> str:
        """The snapshot the session stands on; after a commit, the new one."""
        return self._engine.show(self.tree.base.id)

    @property
    def branch(self) -> str | None:
        """The branch that `commit` moves; `None` for a read-only session."""
        return self._branch

    @property
    def config(self) -> RepositoryConfig:
        """The configuration the session works with."""
        return self._engine.config

    @property
    def location(self) -> str:
        """Where the repository is, for messages."""
        return self._engine.storage.location

    @property
    def virtual(self) -> VirtualReader:
        """Which foreign locations the session may read and refer to."""
        return self._engine.virtual

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is anything to commit."""
        with self.tree.lock:
            return not self.tree.changes.is_empty()

    def status(self) -> Diff:
        """What the session changed so far."""
        with self.tree.lock:
            base, changes = self.tree.base, self.tree.changes
            paths = {node.id: path for path, node in base.nodes.items()}
            paths |= {node.id: path for path, node in changes.created.items()}
            return combine_paths([changes.log(base.id)], paths)

    def discard_changes(self) -> None:
        """Forget every uncommitted change. Chunk files written meanwhile are left to collection.

        A read-only session has none, and nothing happens.
        """
        with self.tree.lock:
            if self.read_only:
                return
            self.tree.changes = ChangeSet()
            self.tree.held.forget()
            self.tree.writer = self._engine.writer(self.tree.held)
            self._flusher = self._new_flusher()
            self._handed = {n: h for n, h in self._handed.items() if h.changes.is_empty()}

    def get_node_id(self, path: str) -> str:
        """The id of the group or array at `path`, which it keeps wherever it is moved."""
        node = self.tree.node(check_node_path(path))
        if node is None:
            raise NotFoundError(f"there is no node at {path}", kind=Kind.NODE_NOT_FOUND)
        return encode_base32(node.id)

    def move(self, from_path: str, to_path: str) -> None:
        """Refused: nodes are moved in sessions of their own."""
        raise SessionError(
            f"{from_path} cannot be moved to {to_path} in this session; use one made with "
            "`rearrange_session`, which moves nodes and does nothing else"
        )

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Where the bytes of one chunk are."""
        self.tree.array(array_path)
        match self.tree.chunk(array_path, tuple(int(number) for number in chunk_coordinates)):
            case Inline():
                return ChunkType.INLINE
            case Native():
                return ChunkType.NATIVE
            case Virtual():
                return ChunkType.VIRTUAL
            case None:
                return ChunkType.UNINITIALIZED

    def chunk_batches(self, array_path: str, batch_size: int = 1000) -> Iterator[list[list[int]]]:
        """Coordinates of the chunks an array has, in order, in batches."""
        index = self.tree.references(self.tree.array(array_path)).index
        for start in range(0, len(index), batch_size):
            yield index[start : start + batch_size].tolist()

    def all_virtual_chunk_locations(self) -> list[str]:
        """Distinct whole URLs of every virtual chunk that the session sees, sorted."""
        locations: set[str] = set()
        for node in self.tree.nodes():
            if node.array is not None:
                refs = self.tree.references(node)
                locations.update(refs.take(refs.kind == np.uint8(RefKind.VIRTUAL)).locations())
        named = {location for location in locations if location.startswith(f"{BY_NAME}://")}
        return sorted((locations - named) | {self.virtual.expanded(one) for one in named})

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
    ) -> str:
        """Store the changes as a new snapshot and move the branch to it; returns its id.

        Dying at any point leaves the branch at the old or at the new snapshot. If somebody else
        moved the branch first, a `ConflictError` is raised, or with `rebase_with` the changes are
        moved over the other commits and it is tried again, `rebase_tries` times within `patience`
        seconds at most. After success the session is read-only.

        With a `token`, kept in the snapshot's metadata, an attempt that finds its own token between
        its base and the head returns that snapshot and writes nothing. Commits of which `replaces`
        says, by their metadata, that this one takes their place are never in conflict with it:
        what both did is done, and where they differ this one counts.
        """
        with self.tree.lock:
            self._check_open()
            if token is None and not allow_empty:
                self._check_changed()
            self._engine.conditions.check()
            self._engine.clock.check()
            self.tree.writer.flush()
            details = self._default_metadata | dict(metadata or {})
            if token is not None:
                details[TOKEN_KEY] = token
            snapshot = self._commit_loop(
                message,
                details,
                rebase_with,
                Patience(self._engine.world, rebase_tries, patience),
                replaces,
            )
            self._finish(snapshot)
            return self._engine.show(snapshot.id)

    def _commit_loop(
        self,
        message: str,
        metadata: dict[str, Any],
        solver: ConflictSolver | None,
        patience: Patience,
        replaces: Replaces | None,
    ) -> Snapshot:
        assert self._branch is not None
        ledger = self._engine.ledger
        token = metadata.get(TOKEN_KEY)
        head = ledger.branch(self._branch) if token or solver or replaces else None
        if token is not None and head is not None:
            earlier = self._find_token(head, token)
            if earlier:
                return earlier
        if (solver is not None or replaces is not None) and head is not None:
            # What is known to be behind is moved before anything is written, not after.
            self._rebase_onto(head, solver, replaces)
        while True:
            base = self.tree.base
            snapshot = self._store_snapshot(message, metadata)
            outcome = self.tree.held.swap(partial(self._move_branch, base.id, snapshot))
            if isinstance(outcome, Moved):
                return snapshot
            actual = outcome.actual
            if token is not None and actual is not None:
                earlier = self._find_token(actual, token)
                if earlier:
                    return earlier
            if solver is None or actual is None or not patience.another():
                raise self._lost_race(base.id, actual, patience.tries)
            # Onto what was searched for the token, not onto what the branch may have become since.
            self._rebase_onto(actual, solver, replaces)

    def _move_branch(self, base: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Move the branch; a write of unknown outcome is settled by the history, if it can be.

        If the branch contains the snapshot, the write landed. If it stands somewhere else, it can
        not have: only one child of `base` ever becomes the head. If it still is at `base`, the
        write may be under way, and nobody can know.
        """
        assert self._branch is not None
        ledger = self._engine.ledger
        try:
            return ledger.commit(self._branch, base, snapshot)
        except OutcomeUnknownError:
            head = ledger.branch(self._branch)
            if head == base:
                raise
            path = None if head is None else commits_between(self._engine.assets, base, head)
            if path is None:
                raise
            landed = any(commit.id == snapshot.id for commit in path)
            return Moved() if landed else Behind(head)

    def amend(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        """Add the changes to the newest commit of the branch; returns the id that replaces it.

        Only in generation `2`, and not for the first snapshot. The session is read-only then.
        """
        with self.tree.lock:
            self._check_open()
            if not allow_empty:
                self._check_changed()
            self._engine.conditions.check()
            self._engine.clock.check()
            self.tree.writer.flush()
            outcome = self._amended(message, self._default_metadata | dict(metadata or {}))
            if isinstance(outcome, Behind):
                raise self._lost_race(self.tree.base.id, outcome.actual, 1)
            self._finish(outcome)
            return self._engine.show(outcome.id)

    def _amended(self, message: str, metadata: dict[str, Any]) -> Snapshot | Behind:
        assert self._branch is not None
        return amend(
            self._engine,
            self._flusher,
            branch=self._branch,
            base=self.tree.base,
            changes=self.tree.changes,
            message=message,
            metadata=metadata,
        )

    def flush(self, message: str, metadata: Mapping[str, Any] | None = None) -> str:
        """Store the changes as a snapshot that no branch names; the session is read-only then.

        Refused if the snapshot below was collected, because its branch is gone: it shares chunks.
        """
        with self.tree.lock:
            self._check_open()
            self._check_changed()
            snapshot = self._store_snapshot(message, self._default_metadata | dict(metadata or {}))
            self._check_base()
            self.tree.held.swap(partial(self._engine.ledger.announce, snapshot))
            self._finish(snapshot)
            return self._engine.show(snapshot.id)

    def _check_base(self) -> None:
        """A commit finds its base where the branch is; nothing else says that it still is there."""
        try:
            self._engine.assets.stored_now(self.tree.base.id)
        except NotFoundError as error:
            raise SessionError(
                f"snapshot {self.snapshot_id} of {self.location}, on which this session stands, "
                "was collected, and the chunks that it shares with the changes may be, too; "
                "nothing was committed: write it again in a new session",
                kind=Kind.CHUNKS_COLLECTED,
            ) from error

    def _check_changed(self) -> None:
        if not self.has_uncommitted_changes:
            raise SessionError(
                "cannot commit, no changes made to the session", kind=Kind.NO_CHANGES
            )

    def _find_token(self, head: SnapshotId, token: str) -> Snapshot | None:
        commits = commits_between(self._engine.assets, self.tree.base.id, head)
        for commit in commits or ():
            if commit.metadata.get(TOKEN_KEY) == token:
                return commit
        return None

    def _finish(self, snapshot: Snapshot) -> None:
        self.tree.base = snapshot
        self.tree.changes = ChangeSet()
        self.tree.read_only = True
        self._branch = None
        self.tree.held.release()

    def _lost_race(
        self, expected: SnapshotId, actual: SnapshotId | None, tries: int
    ) -> ConflictError:
        ours = self._engine.show(expected)
        theirs = None if actual is None else self._engine.show(actual)
        if actual is None:
            reason = f"branch {self._branch!r} does not exist any more"
        elif tries > 1:
            reason = f"branch {self._branch!r} moved {tries} times while this commit was tried"
        else:
            reason = f"branch {self._branch!r} is at {theirs}; rebase and commit again"
        return ConflictError(
            f"Failed to commit, expected parent: {ours}, actual parent: {theirs}: {reason}",
            expected_parent=ours,
            actual_parent=theirs,
            kind=Kind.ATTEMPTS_EXHAUSTED if tries > 1 else Kind.CONFLICT,
        )

    def _new_flusher(self) -> Flusher:
        engine = self._engine
        return Flusher(engine.assets, engine.settings.splitting, engine.world, self.tree.held)
