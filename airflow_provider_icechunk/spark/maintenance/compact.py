"""Compaction on executors: one task per packed file, one commit for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.arrays.regions import check_complete
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.leases import Leasehold, Tenancy
from airflow_provider_icechunk.engine.maintenance.compact import (
    ChunkGroup,
    CompactionResult,
    CompactionRules,
    Packed,
    as_if_moved,
    commit_compaction,
    move_group,
    plan_compaction,
)
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.workers.codec import (
    Fragment,
    decode_fragment,
    encode_fragment,
)
from airflow_provider_icechunk.spark.runtime import RepositoryLike, on_executors, opened

_GROUPS = "number long, refs binary"
_ARROW = pa.schema([("number", pa.int64()), ("refs", pa.binary())])


def compact(
    spark: SparkSession,
    repository: RepositoryLike,
    branch: str = "main",
    *,
    rules: CompactionRules | None = None,
    message: str = "compact small chunks",
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> CompactionResult:
    """Pack neighbouring small chunks of the head of a branch into larger files, as one commit.

    Like `Repository.compact`, but executors copy the bytes. Chunks written in the meantime keep
    their new values.
    """
    session = opened(repository).readonly_session(branch)
    core = session.tree.core
    groups = plan_compaction(core, branch, rules or CompactionRules())
    if dry_run:
        return as_if_moved(groups)
    held = core.leasehold()
    packed = _move(spark, session, groups, held)
    return commit_compaction(core, branch, packed, held, message=message, metadata=metadata)


def _move(
    spark: SparkSession, session: Session, groups: list[ChunkGroup], held: Leasehold
) -> list[Packed]:
    if not groups:
        return []
    since = held.hand_out()
    held.count(since)
    tenancy = Tenancy.of_work("compaction", uuid4().hex, since=since)
    held.serves(tenancy)
    base = session.tree.base.id
    rows = [
        (number, encode_fragment(Fragment(base, "", "", {group.node_id: group.refs})))
        for number, group in enumerate(groups)
    ]
    frame = spark.createDataFrame(rows, _GROUPS).repartitionByRange(len(rows), "number")
    moving = frame.mapInArrow(lambda batches: _move_groups(session, batches, tenancy), _GROUPS)
    found = on_executors(moving.collect)
    check_complete(len(groups), [row["number"] for row in found])
    return [
        Packed(groups[row["number"]], _refs(bytes(row["refs"]), f"group {row['number']}"))
        for row in found
    ]


def _move_groups(
    session: Session, batches: Iterator[pa.RecordBatch], tenancy: Tenancy
) -> Iterator[pa.RecordBatch]:
    base = session.tree.base.id
    held = session.tree.core.leasehold(tenancy)
    for batch in batches:
        for number, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            fragment = decode_fragment(data, where=f"group {number}")
            ((node_id, refs),) = fragment.arrays.items()
            moved = move_group(session.tree.core, ChunkGroup(node_id, "", refs), held)
            answer = encode_fragment(Fragment(base, "", "", {node_id: moved.refs}))
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], schema=_ARROW
            )


def _refs(data: bytes, where: str) -> ChunkRefs:
    ((_, refs),) = decode_fragment(data, where=where).arrays.items()
    return refs
