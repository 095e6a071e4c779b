"""Give an array other chunks: executors read its cells from the previous version and write them
again.

The array stays at its path with its attributes, codecs and fill value; cells that were never
written stay unwritten. Nothing passes through the driver. Concurrent writes to the array are a
conflict, because their chunks no longer fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.arrays.moving import move_cells, open_target
from airflow_provider_icechunk.engine.arrays.rechunk import (
    MEMORY,
    RechunkPlan,
    plan_stored,
    rechunked,
)
from airflow_provider_icechunk.engine.arrays.regions import Region
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.spark.runtime import RepositoryLike, opened

from .job import JobResult
from .regions import region_name
from .work import commit_work


@dataclass(frozen=True, slots=True)
class RechunkWriter:
    """Moves planned blocks of one array from one version to the next."""

    path: str
    to: tuple[int, ...]
    blocks: tuple[Region, ...]

    @property
    def names(self) -> list[str]:
        """The name of what each task writes."""
        return [region_name(f"rechunk {self.path} {self.to}", block) for block in self.blocks]

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Move the block of a task."""
        core = fork.tree.core
        before = Session(core, core.objects.snapshot(fork.work.base))
        old = zarr.open_array(before.store, path=self.path.strip("/"), mode="r")
        new = open_target(fork.store, self.path)
        return move_cells(before, old, fork, new, self.blocks[number])


@dataclass(frozen=True, slots=True)
class RechunkWork:
    """An array to give other chunks."""

    array: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    memory: int = MEMORY

    @property
    def path(self) -> str:
        """The array's path, from the root."""
        return "/" + self.array.strip("/")

    def plan(self, session: Session) -> RechunkPlan:
        """The plan, from a session with the old array."""
        return plan_stored(session.store, self.path, self.chunks, self.shards, memory=self.memory)

    def prepare(self, session: Session) -> None:
        """Replace the old array by an empty one with the new chunks."""
        node = session.tree.array(self.path)
        document = rechunked(node.user_data, self.chunks, self.shards, self.path)
        session.tree.delete(self.path)
        session.tree.put_document(self.path, document)

    def writer(self, view: Session, at_once: int) -> RechunkWriter:
        """A task for each block; how many there are does not depend on the cluster."""
        del at_once
        core = view.tree.core
        plan = self.plan(Session(core, view.tree.base))
        return RechunkWriter(self.path, plan.after, plan.blocks)


def rechunk(
    spark: SparkSession | None,
    repository: RepositoryLike,
    array: str,
    chunks: Sequence[int],
    *,
    shards: Sequence[int] | None = None,
    memory: int = MEMORY,
    job: str,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    dry_run: bool = False,
) -> JobResult | RechunkPlan:
    """Give an array other chunks, in one commit; its values stay the same, bit by bit.

    :param spark: may be `None` for a dry run.
    :param job: an id that is the same on every attempt; submitted twice, it commits once.
    :param shards: lengths of shards, whole numbers of chunks; by default there are none.
    :param memory: bytes of values that a task holds at once, if a chunk is not larger.
    :param dry_run: return the plan, with chunks, bytes and tasks, and change nothing.
    """
    work = RechunkWork(array, tuple(chunks), None if shards is None else tuple(shards), memory)
    if dry_run or spark is None:
        return work.plan(opened(repository).readonly_session(branch))
    return commit_work(
        spark,
        repository,
        work,
        job=job,
        branch=branch,
        prepare=None,
        resume=True,
        message=message or f"rechunk {array} to {work.chunks}",
        metadata=metadata,
        rebase_with=rebase_with,
    )
