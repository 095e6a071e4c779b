"""Compaction on executors: one task for each packed file, one commit for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_icechunk.format.fragments import Fragment, decode_fragment, encode_fragment
from airflow_provider_icechunk.format.references import ChunkRefs
from airflow_provider_icechunk.repository.leases import Leasehold, Tenancy
from airflow_provider_icechunk.repository.maintenance.compaction import (
    CompactionRules,
    Group,
    Packed,
)
from airflow_provider_icechunk.repository.maintenance.compaction_run import (
    CompactionResult,
    as_if_moved,
    commit_compaction,
    move_group,
    plan_compaction,
)
from airflow_provider_icechunk.spark.executor_errors import on_executors
from airflow_provider_icechunk.spark.places import RepositoryLike, opened
from airflow_provider_icechunk.spark.plan import check_complete
from airflow_provider_icechunk.zarr_store.sessions import Session

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
    """Put neighbouring small chunks of the head of a branch into packed files, as one commit.

    The same as `compact` of `repository.maintenance.compaction_run`, with the bytes copied by
    executors. A chunk that is written meanwhile keeps what was written.
    """
    session = opened(repository).readonly_session(branch)
    engine = session.tree.engine
    groups = plan_compaction(engine, branch, rules or CompactionRules())
    if dry_run:
        return as_if_moved(groups)
    held = engine.leasehold()
    packed = _move(spark, session, groups, held)
    return commit_compaction(engine, branch, packed, held, message=message, metadata=metadata)


def _move(
    spark: SparkSession, session: Session, groups: list[Group], held: Leasehold
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
    held = session.tree.engine.leasehold(tenancy)
    for batch in batches:
        for number, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            fragment = decode_fragment(data, where=f"group {number}")
            ((node_id, refs),) = fragment.arrays.items()
            moved = move_group(session.tree.engine, Group(node_id, "", refs), held)
            answer = encode_fragment(Fragment(base, "", "", {node_id: moved.refs}))
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], schema=_ARROW
            )


def _refs(data: bytes, where: str) -> ChunkRefs:
    ((_, refs),) = decode_fragment(data, where=where).arrays.items()
    return refs
