"""Sessions with a Zarr store, and the repository that hands them out."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.config import RepositoryConfig
from airflow_provider_icechunk.repository.change_codec import decode_changes, encode_changes
from airflow_provider_icechunk.repository.chunks import Packing
from airflow_provider_icechunk.repository.conflicts import ConflictSolver
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.fork import ForkSession as CoreForkSession
from airflow_provider_icechunk.repository.handoff import WorkUnit
from airflow_provider_icechunk.repository.merging import unfilled
from airflow_provider_icechunk.repository.preloading import preloaded
from airflow_provider_icechunk.repository.rearranging import (
    RearrangeSession as CoreRearrangeSession,
)
from airflow_provider_icechunk.repository.repository import BaseRepository
from airflow_provider_icechunk.repository.session import Session as CoreSession
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.virtual.credentials import AnyCredential

if TYPE_CHECKING:
    from airflow_provider_icechunk.zarr_store.store import IcechunkStore


_SHOWN = 5


class _WithStore(CoreSession):
    """A session whose tree Zarr can use."""

    @cached_property
    def store(self) -> IcechunkStore:
        """A Zarr store over this session, open. Zarr is imported by those who ask for it."""
        from airflow_provider_icechunk.zarr_store.store import IcechunkStore

        store = IcechunkStore(self)
        store._is_open = True
        return store

    def merge(self, *others: CoreSession) -> None:
        """Take over what forks of this session, or for a fork its siblings, changed.

        All of it or, on an error, nothing.

        Of a chunk that two of them wrote the later one's stays. Anything else that both sides
        changed differently is refused. Warns if none of them wrote a chunk although there are new
        arrays: then workers have written into copies of the forks, and those were not merged.
        """
        forks: list[CoreForkSession] = []
        for other in others:
            if not isinstance(other, CoreForkSession):
                raise TypeError(
                    f"only forks can be merged, not a {type(other).__name__}; make them with "
                    "`Session.fork`"
                )
            forks.append(other)
        with self.tree.lock:
            before = self.tree.changes
            written = False
            try:
                for fork in forks:
                    changes = fork.hand_over()
                    written = written or any(True for _ in changes.edited())
                    self.merge_changes(fork.work.staged, changes)
            except BaseException:
                self.tree.changes = before
                raise
            for fork in forks:
                self.tree.held.absorb(fork.tree.held)
            empty = [] if written or not forks else unfilled(self.tree.changes, self.tree.base)
        if empty:
            _warn_of_lost_work(empty, len(forks))

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """Coordinates of the chunks that an array has, one after the other."""
        for batch in self.chunk_batches(array_path, batch_size):
            for row in batch:
                yield tuple(row)


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


class ForkSession(_WithStore, CoreForkSession):
    """A session of a worker, with a Zarr store. It cannot commit.

    It can be pickled, there and back; static credentials refuse to travel with it.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        changes = encode_changes(self.hand_over(), self.tree.base)
        return (_fork, (_origin(self._engine), self.work.to_json(), changes))


class Session(_WithStore):
    """A session with a Zarr store."""

    def fork(self) -> ForkSession:
        """A session for a worker that stands on this one's tree, changes included."""
        with self.tree.lock:
            self.tree.check_writable()
            work = self._hand_out("fork")
            self._work = self._work or work
            return ForkSession(self._engine, self._engine.assets.snapshot(work.staged), work)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.read_only:
            raise ValueError(
                "a writable session does not leave its process, because only one may commit it: "
                "pickle forks made with `Session.fork`, or work units"
            )
        return (_reader, (_origin(self._engine), self.snapshot_id))


class RearrangeSession(_WithStore, CoreRearrangeSession):
    """A session that moves nodes, with a Zarr store to read them."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """How to open the repository of a session in another process."""

    storage: Storage
    config: RepositoryConfig | None
    authorize: Mapping[str, AnyCredential | None]
    packing: Packing

    def open(self) -> Repository:
        return Repository.open(
            self.storage, self.config, self.authorize or None, packing=self.packing
        )


def _origin(engine: Engine) -> _Origin:
    return _Origin(engine.storage, engine.given, engine.authorize, engine.packing)


def _reader(origin: _Origin, snapshot_id: str) -> Session:
    return origin.open()._reader(snapshot_id)


def _fork(origin: _Origin, work: Mapping[str, Any], changes: bytes) -> ForkSession:
    fork = origin.open().fork(work)
    made = decode_changes(changes, fork.tree.base, where="the pickled fork")
    return ForkSession(fork.tree.engine, fork.tree.base, fork.work, made)


class Repository(BaseRepository[Session]):
    """A repository whose sessions have Zarr stores."""

    session_class = Session

    def rearrange_session(self, branch: str) -> RearrangeSession:
        """A session that gives nodes at the head of `branch` other paths, and does nothing else."""
        base = self._engine.assets.snapshot(self._head_to_change(branch))
        return RearrangeSession(
            self._engine, base, branch=branch, metadata=self._default_commit_metadata
        )

    def _reader(self, snapshot_id: str) -> Session:
        """A reader that came from another process: it may go on if its snapshot has expired."""
        base = self._engine.assets.snapshot(self._parse(snapshot_id))
        return Session(self._engine, preloaded(self._engine, base))

    def resume(self, work: WorkUnit | Mapping[str, Any] | str) -> Session:
        """The session that handed out `work`, in another process or after a restart."""
        unit = self._checked(work)
        session = self.writable_session(unit.branch)
        session.resume(unit)
        return session

    def fork(self, work: WorkUnit | Mapping[str, Any] | str) -> ForkSession:
        """A worker's session for a work unit that another process handed out."""
        unit = self._checked(work)
        return ForkSession(self._engine, self._engine.assets.snapshot(unit.staged), unit)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
    ) -> Iterator[IcechunkStore]:
        """Commit what the block writes to the store; an exception leaves nothing behind."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(
            message, metadata=metadata, rebase_with=rebase_with, rebase_tries=rebase_tries
        )

    def _checked(self, work: WorkUnit | Mapping[str, Any] | str) -> WorkUnit:
        unit = work if isinstance(work, WorkUnit) else WorkUnit.from_json(work)
        if unit.generation != self._engine.generation.value:
            raise InvalidInputError(
                f"the work unit is for a repository of generation `{unit.generation}`, "
                f"{self.storage.location} is of generation `{self._engine.generation.value}`"
            )
        return unit
