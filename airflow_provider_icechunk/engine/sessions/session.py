"""A session: one snapshot to read from and, when it is writable, the changes on top of it.

A session never sees changes that others make after it was opened. Its changes are invisible until
`commit` moves the branch in one conditional write. All methods may be called from many threads.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.engine.commit.commit import CommitRequest, Committer
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.commit.merge import ChunkCells
from airflow_provider_icechunk.engine.commit.rebase import Draft, Replaces
from airflow_provider_icechunk.engine.commit.records import as_box
from airflow_provider_icechunk.engine.concurrency import add_async_twins
from airflow_provider_icechunk.engine.core import Authorization, Choices, Core
from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.ids import format_node_id
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.history.diff import Diff, diff_of_changes
from airflow_provider_icechunk.engine.history.versions import parse_snapshot_id
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.opening import open_core
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.tree.chunk_map import ArrayMap, chunk_map
from airflow_provider_icechunk.engine.tree.chunk_table import (
    ChunkTable,
    ChunkType,
    chunk_tables,
    chunk_type,
    virtual_locations,
)
from airflow_provider_icechunk.engine.tree.reindex import ChunkMapping, reindex_array, shift_array
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.engine.workers.codec import Fragment
from airflow_provider_icechunk.engine.workers.coordinator import Coordinator
from airflow_provider_icechunk.engine.workers.merge import OnOverlap
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import Kind, NotFoundError, ReadOnlyError, SessionError

from .preload import preloaded

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.async_twins import SessionTwins
    from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore

    from .fork import ForkSession
else:
    SessionTwins = object

_SHOWN = 5


class SessionMode(Enum):
    """What a session may do."""

    readonly = 0
    writable = 1
    rearrange = 2


class Session(Shown, SessionTwins):
    """Read one snapshot; with a branch, also change it and commit.

    :param core: what the sessions of a repository share.
    :param base: the base snapshot.
    :param branch: the branch that `commit` moves; `None` makes the session read-only.
    """

    _draft_class: ClassVar[type[Draft]] = Draft

    def __init__(
        self,
        core: Core,
        base: Snapshot,
        *,
        branch: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.tree = WorkingTree(core, base, read_only=branch is None)
        self._branch = branch
        self._default_metadata = dict(metadata or {})
        self._draft = self._draft_class(self.tree)
        self._draft.cells = _zarr_cells
        self._committer = Committer(self._draft)
        self._coordinator = Coordinator(self._committer)

    @property
    def _core(self) -> Core:
        return self.tree.core

    @property
    def store(self) -> IcechunkStore:
        """An open Zarr store over this session. Zarr is imported only when this is used."""
        # Not a cached property: before Python 3.12 those of all sessions share one lock, which a
        # child forked at that moment would find held forever.
        made: IcechunkStore | None = self.__dict__.get("_store")
        if made is not None:
            return made
        from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore

        store = IcechunkStore(self)
        store._is_open = True
        kept: IcechunkStore = self.__dict__.setdefault("_store", store)
        return kept

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
        """The base snapshot of the session; after a commit, the new one."""
        return self._core.format_id(self.tree.base.id)

    @property
    def branch(self) -> str | None:
        """The branch that `commit` moves; `None` for a read-only session."""
        return self._branch

    @property
    def config(self) -> RepositoryConfig:
        """The configuration the session uses."""
        return self._core.config

    @property
    def location(self) -> str:
        """Where the repository is, for messages."""
        return self._core.storage.location

    @property
    def virtual(self) -> VirtualReader:
        """Which foreign locations the session may read and refer to."""
        return self._core.virtual

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is anything to commit."""
        with self.tree.lock:
            return not self._draft.is_empty

    def status(self) -> Diff:
        """What the session has changed so far."""
        with self.tree.lock:
            return diff_of_changes(self.tree.base, self.tree.changes)

    def discard_changes(self) -> None:
        """Discard every uncommitted change.

        Chunk files already written are left to collection. Does nothing on a read-only session.
        """
        with self.tree.lock:
            if self.read_only:
                return
            self._draft.discard()
            self.tree.held.forget()
            self.tree.writer = self._core.writer(self.tree.held)
            self._committer.forget()
            self._coordinator.discard()

    def get_node_id(self, path: str) -> str:
        """The id of the group or array at `path`, which it keeps wherever it is moved."""
        node = self.tree.node(check_node_path(path))
        if node is None:
            raise NotFoundError(f"there is no node at {path}", kind=Kind.NODE_NOT_FOUND)
        return format_node_id(node.id)

    def move(self, from_path: str, to_path: str) -> None:
        """Refused: nodes are moved in sessions of their own."""
        raise SessionError(
            f"{from_path} cannot be moved to {to_path} in this session; use one made with "
            "`rearrange_session`, which moves nodes and does nothing else"
        )

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkType:
        """Where the bytes of one chunk are."""
        return chunk_type(self.tree, array_path, chunk_coordinates)

    def chunk_map(self, array_path: str) -> ArrayMap:
        """How many chunks an array has and of which kind; notebooks show it as a picture."""
        return chunk_map(self.tree, array_path)

    def chunk_batches(self, array_path: str, batch_size: int = 1000) -> Iterator[list[list[int]]]:
        """Coordinates of the chunks an array has, in order, in batches."""
        index = self.tree.references(self.tree.array(array_path)).index
        for start in range(0, len(index), batch_size):
            yield index[start : start + batch_size].tolist()

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """The coordinates of the chunks of an array, one by one."""
        for batch in self.chunk_batches(array_path, batch_size):
            for row in batch:
                yield tuple(row)

    def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncIterator[ChunkTable]:
        """Where the chunks of an array are, in tables of up to `batch_size` rows.

        A row has the coordinates of a chunk, its kind, the URL of a virtual one or the id of the
        file of a native one, offset and length there; the bytes of inline chunks are beside the
        columns, by row. Chunks that were never written are left out.
        """
        return chunk_tables(self.tree, array_path, batch_size)

    def all_virtual_chunk_locations(self) -> list[str]:
        """Distinct whole URLs of every virtual chunk that the session sees, sorted."""
        return virtual_locations(self.tree)

    def shift_array(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move all chunks of an array by an offset in each dimension.

        Chunks that would leave the grid are discarded: resize the array first to keep them.
        Positions that become empty read as the fill value.
        """
        shift_array(self.tree, array_path, chunk_offset)

    def reindex_array(
        self, array_path: str, forward: ChunkMapping, backward: ChunkMapping | None = None
    ) -> None:
        """Move every chunk to the position that `forward` returns for its own; `None` leaves it
        there.

        Only existing chunks are moved, so a position that an empty chunk would have moved to keeps
        its chunk, unless `backward`, the inverse, is given: then positions whose origin is `None`
        or empty are erased. An error in either function changes nothing.
        """
        reindex_array(self.tree, array_path, forward, backward)

    @contextmanager
    def recording(
        self,
        boxes: Mapping[str, Sequence[tuple[int, int] | slice]],
        *,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> Iterator[None]:
        """Declare where arrays are written in the block: `with session.recording({"/t2m": box}):
        ...`.

        A box has (first, end) cells for each dimension, end not included. The commit keeps it in
        its metadata, and a `MergeSolver` needs it to merge chunks that two commits wrote.
        Everything written to these arrays in the block, by any thread, must be inside the box; a
        chunk without a cell in it, or one written at another time, leaves the array without a
        record.

        :param labels: labels of growing dimensions that are written, kept beside the boxes.
        """
        said = {
            check_node_path(path if path.startswith("/") else f"/{path}"): (as_box(box),)
            for path, box in boxes.items()
        }
        with self.tree.recording(said):
            yield
        with self.tree.lock:
            self.tree.changes.add_labels(labels or {})

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

        A crash at any point leaves the branch at the old or the new snapshot. If somebody else
        moved the branch first, a `ConflictError` is raised, or with `rebase_with` the changes are
        rebased over the other commits and the commit is retried, at most `rebase_tries` times
        within `patience` seconds. After success the session is read-only.

        With a `token`, kept in the snapshot's metadata, an attempt that finds its own token between
        its base and the head returns that snapshot and writes nothing. Commits that this one
        replaces, as `replaces` decides from their metadata, never conflict with it: what both did
        is done, and where they differ this one counts.
        """
        request = CommitRequest(
            message,
            self._with_default(metadata),
            solver=rebase_with,
            tries=rebase_tries,
            seconds=patience,
            token=token,
            allow_empty=allow_empty,
            replaces=replaces,
        )
        with self.tree.lock:
            return self._finish(self._committer.commit(self._open_branch(), request))

    def amend(
        self, message: str, *, metadata: Mapping[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        """Add the changes to the newest commit of the branch; returns the id that replaces it.

        Only in generation `2`, and not for the first snapshot. The session is read-only afterwards.
        """
        details = self._with_default(metadata)
        with self.tree.lock:
            branch = self._open_branch()
            return self._finish(
                self._committer.amend(branch, message, details, allow_empty=allow_empty)
            )

    def flush(self, message: str, metadata: Mapping[str, Any] | None = None) -> str:
        """Store the changes as a snapshot that no branch names; the session is then read-only.

        Refused if the base snapshot was collected because its branch is gone: it shares chunks.
        """
        with self.tree.lock:
            self._open_branch()
            return self._finish(self._committer.flush(message, self._with_default(metadata)))

    def rebase(self, solver: ConflictSolver) -> None:
        """Rebase the changes onto what was committed to the branch since the session was opened.

        On a conflict that `solver` may not decide, `RebaseFailedError` is raised and the session
        stays on the last commit it could be rebased onto; with a `MergeSolver`, where it was.
        """
        with self.tree.lock:
            self._committer.rebase(self._open_branch(), solver)

    def stage(self) -> Snapshot:
        """Store the current tree as a snapshot that nothing names, as a base for workers.

        Without changes it is the base itself. Collection leaves it alone while it is young.
        """
        return self._coordinator.stage()

    def work_unit(self, job: str) -> WorkUnit:
        """What workers need to write chunks for this session. JSON-able, without credentials."""
        with self.tree.lock:
            return self._coordinator.work_unit(self._writable_branch(), job)

    def merge_fragments(
        self, fragments: Sequence[Fragment], *, on_overlap: OnOverlap = "error"
    ) -> int:
        """Merge what workers wrote; all of it or, on an error, nothing.

        Returns the number of references. Fragments of another base or job are refused, as are
        chunks that two workers wrote, unless `on_overlap` says who wins. A worker that needed
        arrays that were not handed out has staged them on top; these are merged as well, from one
        worker only.
        """
        return self._coordinator.merge_fragments(fragments, on_overlap=on_overlap)

    def resume(self, work: WorkUnit) -> None:
        """Become the session that handed out `work`, with the changes it had made so far."""
        self._coordinator.resume(work)

    def fork(self) -> ForkSession:
        """A session for a worker, based on this one's tree, changes included."""
        # A fork is a session, too: neither module can be imported before the other.
        from .fork import ForkSession

        if self.read_only:
            raise ReadOnlyError(
                "cannot fork a read-only session: a fork writes; open one with `writable_session`"
            )
        with self.tree.lock:
            work = self._coordinator.fork(self._writable_branch())
            return ForkSession(self._core, self._core.objects.snapshot(work.staged), work)

    def merge(self, *others: Session) -> None:
        """Merge what forks of this session, or for a fork its siblings, changed.

        All of it or, on an error, nothing. If two of them wrote a chunk, the later one wins.
        Anything else that both sides changed differently is refused. Warns if none of them wrote a
        chunk although there are new arrays: then workers have written into copies of the forks, and
        those were not merged.
        """
        from .fork import ForkSession

        forks: list[ForkSession] = []
        for other in others:
            if not isinstance(other, ForkSession):
                raise TypeError(
                    f"only forks can be merged, not a {type(other).__name__}; make them with "
                    "`Session.fork`"
                )
            if other is not self:  # Threads return the fork that they all wrote into.
                forks.append(other)
        with self.tree.lock:
            empty = self._coordinator.merge_forks([fork.result() for fork in forks])
        if empty:
            _warn_of_lost_work(empty, len(forks))

    def _with_default(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        return self._default_metadata | dict(metadata or {})

    def _writable_branch(self) -> str:
        """The branch to which changes will be committed; refuses a read-only tree."""
        self.tree.check_writable()
        assert self._branch is not None
        return self._branch

    def _open_branch(self) -> str:
        """The branch to commit to; refuses a session that cannot commit (any more)."""
        return self._writable_branch()

    def _finish(self, snapshot: Snapshot) -> str:
        self._draft.finish(snapshot)
        self._branch = None
        self.tree.held.release()
        return self._core.format_id(snapshot.id)

    def shown_facts(self) -> Mapping[str, object]:
        """Whether it is writable, its snapshot and, if writable, its branch."""
        facts: dict[str, object] = {"read_only": self.read_only, "snapshot_id": self.snapshot_id}
        if not self.read_only:
            facts["branch"] = self.branch
            facts["has_uncommitted_changes"] = self.has_uncommitted_changes
        return facts

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.read_only:
            raise ValueError(
                "a writable session does not leave its process, because only one may commit it: "
                "pickle forks made with `Session.fork`, or work units"
            )
        return (_reader, (Origin.of(self._core), self.snapshot_id))


@dataclass(frozen=True, slots=True)
class Origin:
    """How to open the repository of a session in another process."""

    storage: Storage
    config: RepositoryConfig | None
    authorize: Authorization
    packing: Packing

    @classmethod
    def of(cls, core: Core) -> Origin:
        """The parts of an open repository that may be pickled."""
        return cls(core.storage, core.given, core.authorize, core.packing)

    def open(self) -> Core:
        """The repository in this process."""
        choices = Choices(self.config, self.authorize or None, self.packing)
        return open_core(self.storage, choices)


def _reader(origin: Origin, snapshot_id: str) -> Session:
    """A reader that came from another process: it may go on even if its snapshot has expired."""
    core = origin.open()
    base = core.objects.snapshot(parse_snapshot_id(core, snapshot_id))
    return Session(core, preloaded(core, base))


def _zarr_cells() -> ChunkCells:
    from airflow_provider_icechunk.engine.arrays.cells import ZarrCells

    return ZarrCells()


def _warn_of_lost_work(arrays: Sequence[str], forks: int) -> None:
    shown = ", ".join(arrays[:_SHOWN]) + (", ..." if len(arrays) > _SHOWN else "")
    warnings.warn(
        f"none of the {forks} merged forks brings a chunk, although there are new or longer arrays "
        f"without any: {shown}. Committed like this, their new cells hold the fill value. Workers "
        "of other processes (Dask, multiprocessing, Spark) write into copies of a fork, and what "
        "they wrote is in those copies alone: let each worker return its fork after writing, "
        "for example `store.session`, and merge what came back, `session.merge(*returned)`",
        stacklevel=3,
    )


add_async_twins(
    Session,
    (
        *("all_virtual_chunk_locations", "amend", "chunk_type", "commit", "flush"),
        *("get_node_id", "merge", "move", "rebase"),
    ),
)
